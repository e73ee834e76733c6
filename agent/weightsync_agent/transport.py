"""From an agent's settings and this pod's devices to what its transfer workers are started with."""

import structlog

from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.devices.choice import Decision, decide
from weightsync_agent.settings import Settings
from weightsync_agent.transfer.settings import TransferSettings, Verbs

log = structlog.get_logger(__name__)

# Less than any model's shard: what a container runtime leaves by default (64 KiB to 8 MiB), for which Auto takes TCP.
LEAST_LOCKABLE = 64 << 20


def chosen(settings: Settings) -> Decision:
    """The transport of this agent; devices are looked at only where they matter."""
    if settings.transport == "tcp":
        return decide("tcp", ())
    return decide(
        settings.transport,
        verbs.opened(sysfs.discover()),
        names=settings.device_names,
        port=settings.device_port,
        gid_index=settings.gid_index,
        lockable=verbs.Lockable.of_this_process().nbytes,
        least_lockable=LEAST_LOCKABLE,
    )


def transfer_settings(settings: Settings) -> TransferSettings:
    """What the agent's workers are started with; the choice and its reason are logged."""
    decision = chosen(settings)
    tell = log.warning if settings.transport == "auto" and decision.transport == "tcp" else log.info
    names = tuple(device.name for device in decision.devices)
    tell("transport", transport=decision.transport, wanted=settings.transport, devices=names, why=decision.why)
    low, high = settings.ports
    return TransferSettings(
        io_threads=settings.io_threads,
        slice_bytes=settings.slice_bytes,
        min_port=low,
        max_port=high,
        transport=decision.transport,
        verbs=Verbs(
            # With RDMA set and nothing usable the names go to Mooncake all the same: its refusal ends the worker.
            devices=names or settings.device_names,
            port=settings.device_port,
            gid_index=settings.gid_index,
            traffic_class=settings.traffic_class,
            service_level=settings.service_level,
            mtu=settings.rdma_mtu,
            queue_pairs=settings.queue_pairs,
            retries=settings.retries,
        ),
    )
