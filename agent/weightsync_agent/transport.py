"""From an agent's settings and this pod's devices to what its transfer workers are started with."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from weightsync.errors import TransferError
from weightsync.plan import Rdma
from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.devices.choice import Decision, Place, assign, decide
from weightsync_agent.devices.records import Device
from weightsync_agent.devices.route import NO_DEVICE, Side
from weightsync_agent.settings import Settings
from weightsync_agent.transfer.settings import Carrier, TransferSettings, Verbs

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
    """What workers are started with where a route asks for nothing else; that is logged, with its reason."""
    names = tuple(device.name for device in decision.devices)
    log.info("transport", transport=decision.transport, wanted=settings.transport, devices=names, why=decision.why)
    low, high = settings.ports
    return TransferSettings(
        io_threads=settings.io_threads,
        slice_bytes=settings.slice_bytes,
        min_port=low,
        max_port=high,
        transport=decision.transport,
        start_seconds=settings.worker_start_seconds,
        contact_seconds=settings.contact_seconds,
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


def side(settings: Settings, decision: Decision) -> Side:
    """This agent as one end of a route, as it announces itself."""
    found = tuple(device.name for device in decision.devices)
    # With RDMA set, a Mooncake of the user's own may know devices that verbs do not.
    names = found or (settings.device_names if settings.transport == "rdma" else ())
    return Side(settings.name, names, "" if names else decision.why, tcp=settings.transport != "rdma")


def over(common: TransferSettings, ours: Side, carrier: Carrier) -> TransferSettings:
    """What a worker over that carrier is started with. What the agent's environment sets counts before the carrier.

    Raises TransferError, reason NoDevice, where this agent does not have that transport.
    """
    if carrier.transport in {None, common.transport} and carrier.rdma == Rdma():
        return common
    if carrier.transport == "tcp":
        if not ours.tcp:
            raise _lacks(f"{ours.name} takes RDMA only (WEIGHTSYNC_TRANSPORT=rdma), and is to write over TCP")
        return replace(common, transport="tcp")
    mine = ours.only(carrier.rdma.devices)
    if not mine.devices:
        raise _lacks(f"{mine.name} has no RDMA device that it can use ({mine.why})")
    wanted, set_ = carrier.rdma, common.verbs
    return replace(
        common,
        transport="rdma",
        verbs=replace(
            set_,
            devices=mine.devices,
            gid_index=_first(set_.gid_index, wanted.gid_index),
            traffic_class=_first(set_.traffic_class, wanted.traffic_class),
            service_level=_first(set_.service_level, wanted.service_level),
            mtu=_first(set_.mtu, wanted.mtu),
            queue_pairs=_first(set_.queue_pairs, wanted.queue_pairs),
        ),
    )


def _first(ours: int | None, theirs: int | None) -> int | None:
    return theirs if ours is None else ours


def _lacks(message: str) -> TransferError:
    return TransferError(message, reason=NO_DEVICE, quiet=True)


def of_rank(
    common: TransferSettings, devices: Sequence[Device], rank: int, ranks: Collection[int]
) -> TransferSettings:
    """What the workers of one rank are started with: its own devices, of those that the agent may use.

    ranks: of this pod, ``rank`` among them. Where their accelerators are is not known here: devices are shared out in
    the order of names and ranks, as machines with a device for each accelerator number them.
    """
    usable = [device for device in devices if device.name in common.verbs.devices]
    if common.transport != "rdma" or not usable:
        return common
    given = assign([Place()] * len(ranks), usable)[sorted(ranks).index(rank)]
    return replace(common, verbs=replace(common.verbs, devices=given))
