"""What two transfer workers must agree on before a byte moves."""

import re
from collections.abc import Mapping
from importlib import metadata

from weightsync.errors import Refused, TransferError
from weightsync.plan import Rdma
from weightsync.wire.v1 import Capabilities, Transport
from weightsync_agent.transfer.settings import SHARED, SHARED_OVER_RDMA

DISTRIBUTIONS = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)
MINIMUM = (0, 3, 13)  # the first whose TCP transport acknowledges landed bytes


def installed() -> str:
    """Version of the Mooncake package that is installed. Raises TransferError where none is."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise TransferError(f"no Mooncake is installed: install one of {', '.join(DISTRIBUTIONS)}", quiet=True)


def of(version: str, environment: Mapping[str, str]) -> Capabilities:
    """A worker's capabilities. environment: that of its process, which forces one transport."""
    rdma = bool(environment.get("MC_FORCE_HCA"))
    return Capabilities(
        mooncake=version,
        transport="rdma" if rdma else "tcp",
        tcp_protocol=1 if environment.get("MC_TCP_PROTO") == "1" else 2,
        settings={name: environment[name] for name in SHARED_OVER_RDMA if environment.get(name)},
    )


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.3.13.post1`` is (0, 3, 13)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def agree(ours: Capabilities, theirs: Capabilities) -> None:
    """Raises Refused (reason CapabilityMismatch) with both sides' values of the first thing that differs."""
    for side, one in (("our", ours), ("their", theirs)):
        if release(one.mooncake) < MINIMUM:
            raise _mismatch(
                f"{side} Mooncake {one.mooncake} is older than {'.'.join(map(str, MINIMUM))}, whose TCP transport is "
                f"the first to acknowledge landed bytes (ours {ours.mooncake}, theirs {theirs.mooncake})"
            )
    if ours.transport != theirs.transport:
        raise _mismatch(
            f"our transport is {ours.transport}, theirs {theirs.transport}: give both pods a device, or set "
            "WEIGHTSYNC_TRANSPORT=tcp on all agents"
        )
    if min(ours.tcp_protocol, theirs.tcp_protocol) < 2:
        raise _mismatch(
            f"MC_TCP_PROTO=1 is forbidden: it reports writes done before they have landed (our protocol version "
            f"{ours.tcp_protocol}, theirs {theirs.tcp_protocol}); unset it"
        )
    shared = SHARED_OVER_RDMA if ours.transport == "rdma" else SHARED
    for name in sorted({*shared} & ({*ours.settings} | {*theirs.settings})):
        mine, other = ours.settings.get(name, "unset"), theirs.settings.get(name, "unset")
        if mine != other:
            raise _mismatch(f"{name} is {mine} on our side and {other} on theirs; set it alike on all agents")


def along(ours: Capabilities, transport: Transport, rdma: Rdma) -> Capabilities:
    """What the writers' side has for a route over that transport. ours: as its coordinator's agent was started."""
    mtu = {"MC_MTU": str(rdma.mtu)} if rdma.mtu is not None else {}
    return ours.model_copy(update={"transport": transport, "settings": mtu | ours.settings})


def _mismatch(message: str) -> Refused:
    return Refused(message, reason="CapabilityMismatch")
