"""The ways that a target offers to its writers: from a handshake to one transport for each of them. Pure."""

from weightsync.wire.v1 import GrantRequest
from weightsync_agent.devices.route import Choice, Side, choose


def transports(request: GrantRequest, target: Side) -> dict[str, Choice]:
    """By writer key. Raises Refused, reason NoDevice, where a writer cannot come over what the request allows."""
    allowed = request.rdma.devices
    mine = target.only(allowed)
    return {
        writer.key: choose(
            request.protocol, Side(f"source {writer.uid}", request.devices.get(writer.uid, ())).only(allowed), mine
        )
        for writer in request.writers
    }
