"""The asyncio side of one transfer worker: what the agent calls. Judges what has stalled, and what is quiet."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

from weightsync.arena import PAYLOAD, Header
from weightsync.buckets import PAGE, Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, TransferError
from weightsync.wire.v1 import Capabilities, Region
from weightsync_agent.threads import to_its_end
from weightsync_agent.transfer import capabilities
from weightsync_agent.transfer.child import DIED, STALLED, Child
from weightsync_agent.transfer.ending import STOPPED, STUCK, failure, held
from weightsync_agent.transfer.frames import Message
from weightsync_agent.transfer.probe import probe
from weightsync_agent.transfer.runs import Placed, within
from weightsync_agent.transfer.settings import TransferSettings, child_environment

__all__ = ["DIED", "STALLED", "STOPPED", "STUCK", "TransferSettings", "TransferWorker"]

log = structlog.get_logger(__name__)

OUT_OF_REGION = "OutOfRegion"
CLOSE_SECONDS = 2.0
FENCE_GRACE_SECONDS = 0.5  # for what is on its way to other peers when a source is fenced
FENCE_SECONDS = 15.0  # Mooncake tries each piece again over fresh connections before it gives it up


class TransferWorker:
    """One child process around one Mooncake engine. Made by start(); of no use after ``dead``.

    Call start() from a thread that lives as long as the worker: the kernel ends the child with that thread.
    """

    session: str  # host:port that peers dial
    capabilities: Capabilities
    _child: Child

    def __init__(self, name: str, settings: TransferSettings) -> None:
        self.name = name
        self._settings = settings
        self._ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._writes: dict[int, tuple[str, asyncio.Queue[Message]]] = {}  # number: session, what happened
        self._regions: dict[Path, Region] = {}
        self._met: set[tuple[str, int]] = set()
        self._addressed: set[str] = set()
        self._contact: asyncio.TimerHandle | None = None
        self._stuck = ""  # the session whose first contact holds the worker
        self._fenced = ""  # the session to which a write stalled, so that the source's memory is taken away
        self._silent = False  # it has been: nothing of this worker lands any more

    # --- life ---

    @classmethod
    async def start(cls, host: str, settings: TransferSettings, *, name: str) -> "TransferWorker":
        """Spawn a worker whose session peers dial at ``host`` (an address of this pod).

        Raises TransferError where Mooncake is missing, does not initialise, or is not ready in time, InputError
        where this process's environment forbids a worker (MC_TCP_PROTO=1).
        """
        version = capabilities.installed()
        environment = child_environment(settings, host, os.environ)
        bracketed = f"[{host}]" if ":" in host else host
        sizes = ("peer_pieces", "peer_bytes", "piece_bytes", "poll_seconds", "digest_threads")
        options = {
            "parent": os.getpid(), "host": bracketed, "transport": settings.transport,
            "devices": settings.verbs.devices, **{size: getattr(settings, size) for size in sizes},
        }  # fmt: skip
        worker = cls(name, settings)
        worker.capabilities = capabilities.of(version, environment)
        worker._child = await Child.spawn(
            name, lambda pipe: json.dumps({**options, "pipe": pipe}), environment, worker._happened
        )
        worker.session = f"{bracketed}:{await worker._await_ready()}"
        log.info(
            "transfer worker started", worker=name, session=worker.session, pid=worker._child.pid,
            transport=settings.transport, devices=settings.verbs.devices,
        )  # fmt: skip
        return worker

    async def _await_ready(self) -> int:
        taken = False
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                port = await self._ready
            taken = True
        except TimeoutError as error:
            raise TransferError(
                f"worker {self.name} was not ready within {self._settings.start_seconds:g} s", quiet=True
            ) from error
        finally:
            # Also one that got ready in the very moment in which its caller gave up: nobody would know of it.
            if not taken:
                self._child.kill()
                await to_its_end(self._child.ended())
        return port

    @property
    def pid(self) -> int:
        """Of the child process, for logs."""
        return self._child.pid

    @property
    def dead(self) -> "asyncio.Future[str]":
        """Resolves with the reason once the process has ended: from then on its regions are quiet."""
        return self._child.dead

    def kill(self) -> None:
        """End the process by SIGKILL: the fence. Its regions are quiet once ``dead`` has resolved, not before."""
        self._child.kill()

    async def close(self) -> None:
        """End the process and wait for that; what is pending raises TransferError."""
        self._child.send({"call": "close"})
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(self.dead)
        except TimeoutError:
            self.kill()
        await self._child.ended()

    # --- calls ---

    async def attach(self, path: Path) -> Region:
        """Map the arena file, register its payload; the same file again gives the same region.

        Raises InputError where the file is no arena, TransferError where it cannot be registered.
        """
        nbytes = _header(path).nbytes
        address = await self._child.call(
            "attach", self._settings.call_seconds, path=str(path), payload=PAYLOAD, nbytes=nbytes
        )
        region = self._regions[path] = Region(session=self.session, address=address, nbytes=nbytes)
        return region

    async def detach(self, path: Path) -> None:
        """Unmap a source's arena. Raises TransferError while a write from it is not terminal.

        Never for an arena that others write into: Mooncake writes to an address even after it was unregistered.
        """
        await self._child.call("detach", self._settings.call_seconds, path=str(path))
        self._regions.pop(path, None)

    async def digest(self, path: Path, buckets: Sequence[Bucket]) -> list[BucketDigest]:
        """xxh3-128 of each bucket of an attached arena, in their order."""
        runs = [(bucket.offset, bucket.nbytes) for bucket in buckets]
        found = await self._child.call("digest", self._settings.call_seconds, path=str(path), buckets=runs)
        return [
            BucketDigest(offset=bucket.offset, nbytes=bucket.nbytes, digest=digest)
            for bucket, digest in zip(buckets, found, strict=True)
        ]

    async def read(self, region: Region, buckets: Sequence[Bucket], *, deadline_seconds: float) -> list[BucketDigest]:
        """xxh3-128 of each bucket as it stands in another process's memory, read one-sided, in their order.

        deadline_seconds: for the probe that comes first. Raises TransferError; after one the worker is of no use.
        """
        await self._meet(region, deadline_seconds)
        runs = [(bucket.offset, bucket.nbytes) for bucket in buckets]
        found = await self._child.call(
            "read", self._settings.call_seconds, session=region.session, buckets=runs, runs=_runs(region)
        )
        return [
            BucketDigest(offset=bucket.offset, nbytes=bucket.nbytes, digest=digest)
            for bucket, digest in zip(buckets, found, strict=True)
        ]

    async def meet(self, region: Region, *, deadline_seconds: float) -> None:
        """First contact with whom is to be read from. Raises TransferError where the region is not there."""
        await self._meet(region, deadline_seconds)

    async def fetch(self, path: Path, offset: int, nbytes: int, of: Region, *, seconds: float) -> None:
        """Read a run of another worker's arena to the same offset of an attached one, one-sided.

        Raises TransferError, with reason Stalled after ``seconds``. After one, and where the caller is cancelled,
        bytes of it may still come into the arena until this worker has ended.
        """
        mine = self._regions.get(path)
        if mine is None or of.runs or offset + nbytes > min(mine.nbytes, of.nbytes):
            raise TransferError(
                f"{nbytes} bytes at {offset} are not within {path} here and the arena at {of.session}",
                reason=OUT_OF_REGION,
                quiet=True,
            )
        await self._child.call(
            "fetch", seconds, path=str(path), offset=offset, nbytes=nbytes, session=of.session,
            address=of.address + offset,
        )  # fmt: skip

    def has_addressed(self, session: str) -> bool:
        """A write to it was asked for: the worker may be connected to it, or will be."""
        return session in self._addressed

    async def probe(self, session: str, *, deadline_seconds: float) -> None:
        """Whether a peer's worker answers. Raises TransferError."""
        await probe(session, deadline_seconds)

    async def write(
        self,
        path: Path,
        buckets: Sequence[Bucket],
        to: Region,
        *,
        stall_seconds: float,
        stop: asyncio.Event | None = None,
    ) -> AsyncIterator[Bucket]:
        """Write buckets of an attached arena to the same offsets of ``to``; yields each once it has landed.

        Raises TransferError. With reason Stalled nothing became terminal for ``stall_seconds``, nor of the writes to
        the same session that it waits behind; with any other every piece of this call is terminal and the source's
        bytes may change again. ``quiet`` tells of the region: none of this call's bytes can land any more. A
        piece that Mooncake accepted and then failed may have left bytes in the target's sockets, which a target that
        was only stopped still applies when it goes on: there ``quiet`` is True only where the target's process is
        known to have ended.
        On RDMA a write that stalls is ended here: the arenas are taken from the device, which reads no memory that is
        not registered. Stalled is then quiet, and the worker is of no further use: other writes of it end with reason
        WorkerStuck.
        stop: once it is set no further piece is submitted; what was submitted is waited for, and buckets that landed
        are yielded before TransferError with reason Stopped. A caller that leaves the iteration instead stops what
        was not submitted, too, and does not learn when the rest is terminal.
        """
        self._check(path, buckets, to)
        self._addressed.add(to.session)
        await self._meet(to, min(stall_seconds, self._settings.contact_seconds))
        number = self._child.number()
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._writes[number] = (to.session, queue)
        self._child.send({
            "call": "write", "id": number, "path": str(path), "session": to.session, "address": to.address,
            "buckets": [(bucket.offset, bucket.nbytes) for bucket in buckets], "runs": _runs(to),
        })  # fmt: skip
        ended = False
        stopping = asyncio.create_task(self._stop(number, stop)) if stop is not None else None
        try:
            while not ended:
                message = await self._next(queue, to, stall_seconds)
                ended = message["event"] in {"end", "dead"}
                if error := await self._failure(message, to):
                    raise error
                for done in message.get("done", ()):
                    yield buckets[done]
        finally:
            if stopping is not None:
                stopping.cancel()
            del self._writes[number]
            if not ended:
                self._child.send({"call": "drop", "id": number})

    # --- of a write ---

    async def _stop(self, number: int, stop: asyncio.Event) -> None:
        await stop.wait()
        self._child.send({"call": "drop", "id": number})

    async def _next(self, queue: "asyncio.Queue[Message]", to: Region, stall_seconds: float) -> Message:
        try:
            async with asyncio.timeout(stall_seconds):
                return await queue.get()
        except TimeoutError as error:
            what = f"nothing of a write to {to.session} ended for {stall_seconds:g} s"
            fenced = self._rdma and await self._fence(queue, to)
            raise TransferError(
                f"{what}; it was ended by taking the source's memory from the device" if fenced else what,
                reason=STALLED,
                quiet=fenced,
            ) from error

    async def _fence(self, queue: "asyncio.Queue[Message]", to: Region) -> bool:
        """Unregister the arenas at the source. Whether the write that ``queue`` tells of has ended by that."""
        log.warning("a write over RDMA stalled: its source is unregistered", worker=self.name, session=to.session)
        self._fenced = to.session
        try:
            async with asyncio.timeout(FENCE_SECONDS):
                await self._child.call("fence", FENCE_SECONDS, session=to.session, grace=FENCE_GRACE_SECONDS)
                self._silent = True
                while (await queue.get())["event"] not in {"end", "dead"}:
                    pass
        except (TimeoutError, TransferError) as error:
            log.warning("the fence of a source failed", worker=self.name, session=to.session, why=str(error))
            return False
        return True

    def _check(self, path: Path, buckets: Sequence[Bucket], to: Region) -> None:
        """Raises TransferError before anything is asked of the worker."""
        self._child.alive()
        if self._stuck or self._fenced:
            raise TransferError(held(self.name, self._stuck, self._fenced), reason=STUCK, quiet=True)
        source = self._regions.get(path)
        if source is None:
            raise TransferError(f"{path}: not attached to worker {self.name}", quiet=True)
        placed = _runs(to)
        for bucket in buckets:
            if placed and not within(placed, bucket.offset, bucket.nbytes):
                raise TransferError(
                    f"no byte of the bucket at {bucket.offset} lies in the parameters at {to.session}",
                    reason=OUT_OF_REGION,
                    quiet=True,
                )
            if bucket.offset + bucket.nbytes > min(source.nbytes, to.nbytes):
                raise TransferError(
                    f"bucket of {bucket.nbytes} bytes at {bucket.offset} is not within both regions "
                    f"({source.nbytes} bytes here, {to.nbytes} at {to.session})",
                    reason=OUT_OF_REGION,
                    quiet=True,
                )

    async def _meet(self, to: Region, deadline: float) -> None:
        """Probe a region before this worker's first write to it."""
        if _meeting(to) in self._met:
            return
        peer = await probe(to.session, deadline)
        for _, nbytes, address in _runs(to) or [Placed(0, to.nbytes, to.address)]:
            if not peer.holds(address, nbytes):
                raise TransferError(
                    f"worker {to.session} has not registered {nbytes} bytes at {address:#x}",
                    reason=OUT_OF_REGION,
                    quiet=True,
                )
        if peer.transport != self.capabilities.transport:
            raise TransferError(
                f"worker {to.session} speaks {peer.transport}, worker {self.name} {self.capabilities.transport}",
                reason="CapabilityMismatch",
                quiet=True,
            )
        self._met.add(_meeting(to))

    async def _failure(self, message: Message, to: Region) -> TransferError | None:
        why = held(self.name, self._stuck, self._fenced)
        return await failure(message, to, rdma=self._rdma, silent=self._silent, halted=why)

    @property
    def _rdma(self) -> bool:
        return self.capabilities.transport == "rdma"

    # --- what the child tells ---

    def _happened(self, message: Message) -> None:
        match message:
            case {"event": "ready", "port": port}:
                if not self._ready.done():
                    self._ready.set_result(port)
            case {"event": "unusable", "message": reason}:
                self._unready(reason)
            case {"event": "contact", "session": session}:
                loop = asyncio.get_running_loop()
                self._contact = loop.call_later(self._settings.contact_seconds, self._hold, session)
            case {"event": "contacted"}:
                self._contact_over()
                self._stuck = ""
            case {"event": "dead", "message": reason}:
                self._contact_over()
                self._unready(reason)
                for _, queue in self._writes.values():
                    queue.put_nowait(message)
            case {"event": "progress", "writes": numbers}:
                for number in self._writes.keys() & numbers:
                    self._writes[number][1].put_nowait(message)
            case {"write": number} if number in self._writes:
                self._writes[number][1].put_nowait(message)

    def _unready(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(TransferError(f"worker {self.name}: {reason}", reason=DIED, quiet=True))

    def _contact_over(self) -> None:
        if self._contact is not None:
            self._contact.cancel()

    def _hold(self, session: str) -> None:
        """A first contact does not end: no write of this worker can go on, to whomever."""
        log.warning("transfer worker is held in a first contact", worker=self.name, session=session)
        self._stuck = session
        for to, queue in self._writes.values():
            if to == session:
                queue.put_nowait({"event": "held"})
        self._child.send({"call": "halt"})


def _runs(region: Region) -> list[Placed]:
    return [Placed(run.offset, run.nbytes, run.address) for run in region.runs]


def _meeting(region: Region) -> tuple[str, int]:
    """Whom, and what of it, was looked at."""
    return region.session, region.runs[0].address if region.runs else region.address


def _header(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            header = Header.unpack(file.read(PAGE), str(path))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if size != PAYLOAD + header.nbytes:
        raise InputError(f"{path}: {size} bytes, {PAYLOAD + header.nbytes} expected by its header")
    return header
