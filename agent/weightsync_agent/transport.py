"""From an agent's settings and this pod's devices to what its transfer workers are started with."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.devices.choice import Decision, Place, assign, decide
from weightsync_agent.devices.records import Device
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


def transfer_settings(settings: Settings, decision: Decision) -> TransferSettings:
    """What the agent's workers are started with; the choice and its reason are logged."""
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


def of_rank(
    common: TransferSettings, devices: Sequence[Device], rank: int, ranks: Collection[int]
) -> TransferSettings:
    """What the workers of one rank are started with: its own devices, of those that the agent may use.

    ranks: of this pod, ``rank`` among them. Where their accelerators are is not known here: devices are shared out in
    the order of names and ranks, as machines with a device for each accelerator number them.
    """
    if common.transport != "rdma" or not devices:
        return common
    given = assign([Place()] * len(ranks), devices)[sorted(ranks).index(rank)]
    return replace(common, verbs=replace(common.verbs, devices=given))
