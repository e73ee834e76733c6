"""One engine rank's arena and its receiving worker: runs protocol.target.Target."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from weightsync.arena import Arena, ArenaState, Header
from weightsync.buckets import Bucket
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, Refused, TransferError
from weightsync.version import Version
from weightsync.wire.v1 import (
    CommitRequest,
    Grant,
    GrantRequest,
    MoreRequest,
    PassAnswer,
    PassRequest,
    RankStatus,
    Receipts,
    ReceiptsAnswer,
    VoidRequest,
    Way,
)
from weightsync_agent import failpoints
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.receivers import Receivers, StartWorker
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.drivers.ways import transports
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.observability import feeds, metrics
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.transfer.capabilities import agree, along
from weightsync_agent.transfer.settings import Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)


FAILED_WRITES = 2  # in a row; one may be its source's fault
LONGEST_WAIT = 5.0  # seconds for which one who reads from here is left without an answer


def runs_of(program: CopyProgram, buckets: Sequence[BucketDigest]) -> list[Bucket]:
    """Where the buckets lie in the rank's payload. Raises InputError for one that reaches past it."""
    for bucket in buckets:
        if bucket.offset + bucket.nbytes > program.layout.nbytes:
            raise InputError(f"bucket {bucket.offset}+{bucket.nbytes} lies outside rank {program.rank}")
    return [Bucket(offset=b.offset, nbytes=b.nbytes) for b in buckets]


class RankTarget:
    """Owns the rank's arenas and the worker whose process may be written to.

    With two arenas the version that the engine serves stays sealed in one while the next is written into the other.
    served: what the engine serves now; side: what its pod can be written to over.
    """

    def __init__(
        self,
        program: CopyProgram,
        folder: Path,
        start: StartWorker,
        *,
        arenas: int = 1,
        served: Callable[[], Version | None] = lambda: None,
        side: Side | None = None,
    ) -> None:
        self.program = program
        self.arenas = tuple(TargetArena(program, folder, index) for index in range(arenas))
        self._start = start
        self._served = served
        self._side = side or Side("this agent")
        self._worker: TransferWorker | None = None
        self._others = Receivers(f"target-{program.rank}", start)
        self._granted_at = 0.0
        self._over_rdma = False  # some writer of the last grant was told to come so
        self._failed = 0  # parts of grants over RDMA that ended in a failure, since bytes came last
        self._background = Background(f"target {program.rank}")
        self._lock = asyncio.Lock()  # one event at a time: a grant is given, fenced or sealed, never two at once

    # --- life ---

    async def open(self) -> None:
        """Take over the arenas that are there, or make them; start the worker; register each once."""
        try:
            for each in self.arenas:
                await each.open()
            await self._register()
        except BaseException:
            for each in self.arenas:
                each.close()  # or its lock would keep the next look from taking the same file over
            raise

    async def _register(self) -> None:
        """Start a worker that has the arenas registered; where that fails, no region of an earlier one is left."""
        for each in self.arenas:
            each.region = None
        worker = await self._start(f"target-{self.program.rank}")
        try:
            regions = [await worker.attach(each.path) for each in self.arenas]
        except BaseException:
            await worker.close()
            raise
        self._worker = worker
        for each, region in zip(self.arenas, regions, strict=True):
            each.region = region

    async def close(self) -> None:
        """End the worker, keep the arenas' files."""
        await self._background.close()
        if self._worker is not None:
            await self._worker.close()
        await self._others.close()
        for each in self.arenas:
            each.close()

    def remove_files(self) -> None:
        """Give their memory back. After close()."""
        for each in self.arenas:
            each.path.unlink(missing_ok=True)

    @property
    def is_lent(self) -> bool:
        """The engine is being certified in its first arena."""
        return self.arenas[0].machine.state is t.TargetState.LENT

    def granted(self, grant: str) -> TargetArena:
        """The arena of that grant. Raises Refused where it is none's."""
        for each in self.arenas:
            if each.machine.grant is not None and each.machine.grant.grant == grant:
                return each
        raise Refused(f"grant {grant} is not open at rank {self.program.rank}", reason="GrantClosed")

    def holding(self, version: Version) -> TargetArena | None:
        """The arena that is sealed as that version."""
        return next((each for each in self.arenas if each.arena.header.version == version), None)

    def named(self, name: str) -> TargetArena | None:
        """The arena whose file has that name."""
        return next((each for each in self.arenas if each.path.name == name), None)

    @property
    def worker(self) -> TransferWorker:
        """The receiving worker. Raises TransferError before open(), or after its replacement failed."""
        if self._worker is None:
            raise TransferError(f"rank {self.program.rank} has no transfer worker")
        return self._worker

    async def recover(self, rank: JournalRank, version: Version) -> bool:
        """The arena is sealed as ``version`` and its bytes are those of the journal: take them over."""
        found = self.named(rank.arena)
        if found is None or found.arena.header.version != version or rank.program != self.program.digest:
            return False
        header = found.arena.header
        async with self._lock:
            if not self._fencing:
                await self._living_worker()
        computed = await self.worker.digest(
            found.path, [Bucket(offset=b.offset, nbytes=b.nbytes) for b in rank.buckets]
        )
        if tuple(computed) != rank.buckets:
            log.error("the sealed arena's bytes are not those of the journal", rank=rank.rank, version=version.name)
            return False
        async with self._lock:
            if found.machine.state is t.TargetState.EMPTY:
                found.handle(t.Recovered(version, header.grant, rank.program, rank.buckets))
        return True

    @property
    def _fencing(self) -> bool:
        return any(each.machine.state is t.TargetState.FENCING for each in self.arenas)

    # --- requests ---

    async def grant(self, request: GrantRequest, fence: Fence) -> Grant:
        """The handshake. Raises Refused with what differs, or for a term that is over, before anything is written."""
        async with self._lock:
            chosen = self.arenas[t.choose([each.rank for each in self.arenas], self._served())]
            chosen.machine.check_ask(request)
            await self._end_those_nobody_reaches()
            await self._living_worker()
            region = chosen.region
            if region is None:
                raise TransferError(f"rank {self.program.rank} has no registered arena")
            ways = await self._ways(request, chosen)
            fence.check_sync(request.term, request.coordinator, request.sync)  # another may have come meanwhile
            actions = self._unfenced(chosen, chosen.handle(t.Ask(request, secrets.token_hex(16))))
            for action in actions:
                chosen.seals(action)
            given = next(action for action in actions if isinstance(action, t.GiveGrant))
            self._granted_at = time.monotonic()
            self._over_rdma = any(way.transport == "rdma" for way in ways.values())
        return Grant(grant=given.grant, region=region, theirs=self.worker.capabilities, ways=ways)

    async def _ways(self, request: GrantRequest, arena: TargetArena) -> dict[str, Way]:
        """Over what each writer comes, and to which worker. Raises Refused, TransferError."""
        ways = {}
        for key, choice in transports(request, self._side).items():
            carrier = Carrier.of(choice.transport, request.rdma)
            worker, region = self.worker, arena.region
            if worker.capabilities.transport != choice.transport or carrier.rdma != Carrier().rdma or region is None:
                worker, region = await self._others.region(carrier, arena.path, [each.path for each in self.arenas])
            agree(along(request.ours, choice.transport, request.rdma), worker.capabilities)
            ways[key] = Way(transport=choice.transport, region=region, why=choice.why[:1024])
        return ways

    async def begin_pull(self, version: Version, term: int, *, fence: bool = False) -> TargetArena:
        """The arena for our own worker to read that version into; end_pull() is called once that has ended.

        Raises Refused, reason Busy while others may write; with ``fence`` they are fenced first, and it is Fencing.
        """
        async with self._lock:
            chosen = self.arenas[t.choose([each.rank for each in self.arenas], self._served())]
            event = t.Pull(version, term, secrets.token_hex(16), fence)
            if not chosen.machine.takes(event):
                state = chosen.machine.state.value
                raise Refused(f"rank {self.program.rank}: {state}", reason="Busy", status=503)
            for action in self._unfenced(chosen, chosen.handle(event)):
                chosen.seals(action)
        return chosen

    async def begin_relay(self, grant: str) -> TargetArena:
        """The arena of that grant, for our own worker to read into; as begin_pull().

        Raises Refused where the grant is none any more, or is read into already.
        """
        async with self._lock:
            granted = self.granted(grant)
            event = t.Relay(grant)
            if not granted.machine.takes(event):
                state = granted.machine.state.value
                raise Refused(f"grant {grant} of rank {self.program.rank}: {state}", reason="GrantClosed")
            granted.handle(event)
        return granted

    async def passes(self, request: PassRequest) -> PassAnswer:
        """What others may read of a sync's grant; see TargetArena.more(). Raises Refused."""
        arena = self.granted(request.grant)
        return await self._more(request, arena, arena.machine.check_passing)

    async def grown(self, request: MoreRequest) -> PassAnswer:
        """What others may read of what our own worker reads in no sync. Raises Refused."""
        arena = self.granted(request.grant)
        return await self._more(request, arena, arena.machine.check_growing)

    async def _more(
        self, request: MoreRequest, arena: TargetArena, check: Callable[[str, int], tuple[BucketDigest, ...]]
    ) -> PassAnswer:
        asked = partial(check, request.grant, request.after)
        asked()
        agree(request.ours, self.worker.capabilities)
        buckets = await arena.more(asked, min(request.wait, LONGEST_WAIT))
        if arena.region is None or self.worker.dead.done():
            raise Refused(f"rank {self.program.rank} has no worker to be read from", reason="NoWorker", status=503)
        return PassAnswer(region=arena.region, buckets=buckets)

    async def pulled(self, pulled: TargetArena, computed: BucketDigest, claimed: BucketDigest) -> bool:
        """A bucket was read and digested here. Whether it is what the holder said."""
        grant = pulled.machine.grant
        async with self._lock:
            if grant is None or pulled.machine.state is not t.TargetState.PULLING:
                return False
            actions = pulled.handle(t.Landed(grant.grant, (computed,), (claimed,)))
        return any(isinstance(action, t.AnswerReceipt) and bool(action.verified) for action in actions)

    async def end_pull(self, pulled: TargetArena) -> None:
        """Our reading worker has ended."""
        async with self._lock:
            if pulled.machine.takes(t.PullEnded()):
                pulled.handle(t.PullEnded())

    def grant_of(self, version: Version) -> str:
        """The grant under which the version lies here, sealed or to be sealed. Raises Refused where none does."""
        for each in sorted(self.arenas, key=lambda each: each.machine.version != version):
            grant = each.machine.grant
            named = grant is not None and (grant.lineage, grant.number) == (version.lineage, version.number)
            if grant is not None and named and not each.machine.missing():
                return grant.grant
        raise Refused(f"rank {self.program.rank} does not hold all of {version.name}", reason="GrantClosed")

    def lendable(self, version: Version) -> TargetArena | None:
        """The arena that is sealed as that version, where others can read it."""
        whole = (t.TargetState.SEALED, t.TargetState.KEPT)
        return self._readable(lambda machine: machine.version == version and machine.state in whole)

    def growing(self, version: Version) -> TargetArena | None:
        """The arena that our own worker reads that version into, where others can read it."""
        return self._readable(lambda machine: bool(machine.grows(version)))

    def _readable(self, holds: Callable[[t.Target], bool]) -> TargetArena | None:
        """The arena of which that is so, with a worker behind which others can read it."""
        if self._worker is None or self._worker.dead.done():
            return None
        return next((each for each in self.arenas if each.region is not None and holds(each.machine)), None)

    @property
    def written_since(self) -> float | None:
        """When an arena was granted to a sync that is not over, as far as is known here; None where none is.

        It is not while somebody may write, nor while all that was written waits for its commit.
        """
        fencing = any(each.machine.state is t.TargetState.FENCING for each in self.arenas)
        waits = fencing or any(not each.machine.quiet() or each.machine.awaits_commit() for each in self.arenas)
        return self._granted_at if waits else None

    @property
    def kept(self) -> bool:
        """A commit needs one of the arenas as it is."""
        return any(each.machine.state is t.TargetState.KEPT for each in self.arenas)

    async def lend(self) -> Arena:
        """The first arena, to certify the engine in. Raises Refused (Fencing) while a writer may still write."""
        first = self.arenas[0]
        async with self._lock:
            self._unfenced(first, first.handle(t.Lend()))
        return first.arena

    def _unfenced(self, asked: TargetArena, actions: list[object]) -> list[object]:
        """What is to be done now that nobody can write. Raises Refused (Fencing), and sees to the fence, before."""
        for action in actions:
            if isinstance(action, t.ReplaceWorker):
                self._background.spawn(self._replace_worker(asked))
            if isinstance(action, t.RefuseAsk):
                raise Refused(f"rank {self.program.rank}: {action.message}", reason="Fencing", status=503)
        return actions

    async def returned(self) -> None:
        """What lies in the arena is nothing any more, and grants may be given again."""
        async with self._lock:
            self.arenas[0].arena.empty()
            self.arenas[0].handle(t.Returned())

    async def _replace_worker(self, fenced: TargetArena) -> None:
        """Feed what became of it, whatever that is: no failure may leave the rank fencing."""
        try:
            await self._fence(fenced)
        except Exception as error:
            async with self._lock:
                fenced.handle(t.FenceFailed(f"{type(error).__name__}: {error}"))
            raise
        async with self._lock:
            fenced.handle(t.Fenced())

    async def _fence(self, fenced: TargetArena) -> None:
        """Writers of the old grant may still write: only the death of the process that they reach ends that."""
        grant = fenced.machine.grant
        log.warning(
            "fence: killing the receiving worker", rank=self.program.rank, open=sorted(grant.open if grant else ())
        )
        metrics.WORKER_RESTARTS.labels(reason="fence").inc()
        if self._worker is not None:
            self._worker.kill()
            await asyncio.shield(self._worker.dead)  # only then no byte can land any more
        await self._others.end()
        await self._register()

    async def void(self, request: VoidRequest) -> None:
        """These writers never got an order for the grant: they will not write, and their parts are closed."""
        async with self._lock:
            for each in self.arenas:
                for writer in request.writers:
                    event = t.LastReceipt(request.grant, writer.key, "it was never ordered to write")
                    if each.machine.takes(event):
                        each.handle(event)

    async def _living_worker(self) -> None:
        """A worker that died by itself is replaced: nobody reaches the arena through it any more.

        So is one whose replacement failed: it ended before that was tried.
        """
        registered = all(each.region is not None for each in self.arenas)
        if self._worker is not None and registered and not self._worker.dead.done():
            return
        why = self._worker.dead.result() if self._worker is not None and self._worker.dead.done() else "none is left"
        log.warning("the rank has no receiving worker; another is started", rank=self.program.rank, why=why)
        metrics.WORKER_RESTARTS.labels(reason="died").inc()
        await self._register()

    async def _end_those_nobody_reaches(self) -> None:
        """A process whose device's link was down may never be reached again, though it lives: its GID has moved.

        Only who writes to it sees that; by the second failure in a row it makes room for another.
        """
        if self._failed < FAILED_WRITES or not all(each.machine.quiet() for each in self.arenas):
            return
        log.warning(
            "writes over RDMA failed, one after another; the receiving workers are replaced", rank=self.program.rank
        )
        self._failed = 0
        if self._worker is not None and self._worker.capabilities.transport == "rdma":
            self._worker.kill()
            await asyncio.shield(self._worker.dead)  # _living_worker() starts the next one
        await self._others.end()

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """Digest and compare the buckets that a writer calls terminal; close the writer's part with its last."""
        written = self.granted(request.grant)
        machine = written.machine
        machine.check_grant(request.grant, request.writer.key)
        answer = ReceiptsAnswer()
        if request.buckets:
            machine.check_writing(request.grant, request.writer.key)
            runs = runs_of(self.program, request.buckets)
            await failpoints.reach("target", "writing")
            began = time.monotonic()
            computed = tuple(await self.worker.digest(written.path, runs))
            seconds = time.monotonic() - began
            async with self._lock:
                machine.check_grant(request.grant, request.writer.key)
                actions = written.handle(t.Landed(request.grant, computed, request.buckets))
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            answer = ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
            self._failed = 0
            feeds.receipt_checked(computed, answer, seconds)
        if request.last:
            async with self._lock:
                machine.check_grant(request.grant, request.writer.key)  # a fence may have begun meanwhile
                written.handle(t.LastReceipt(request.grant, request.writer.key, request.failed))
            self._failed += bool(request.failed) and self._over_rdma
            await failpoints.reach("target", "verified")
        return answer

    async def seal(self, request: CommitRequest) -> str:
        """Seal the arena as the decided version, if it is, and keep it: release() its grant, which is returned.

        Raises Refused with what is missing.
        """
        async with self._lock:
            mine = next((rank for rank in request.ranks if rank.rank == self.program.rank), None)
            sealed = self.granted(mine.grant) if mine is not None else self.arenas[0]
            sealed.machine.check_commit(request)
            for action in sealed.handle(t.Commit(request, self.program.rank)):
                sealed.seals(action)
            sealed.handle(t.Keep())  # at once: whoever waits for the lock would take it
            return sealed.arena.header.grant

    async def keep(self, grant: str) -> None:
        """Nobody fills that arena from here on, until it was released as often.

        Raises Refused where it is not sealed.
        """
        async with self._lock:
            kept = self.granted(grant)
            if not kept.machine.takes(t.Keep()):
                raise Refused(
                    f"grant {grant} of rank {self.program.rank}: {kept.machine.state.value}", reason="GrantClosed"
                )
            kept.handle(t.Keep())

    async def release(self, grant: str) -> None:
        """One who kept it needs it no more. Without effect where nobody keeps it."""
        async with self._lock:
            kept = self.granted(grant)
            if kept.machine.takes(t.Release()):
                kept.handle(t.Release())

    # --- what others may know ---

    def status(self) -> RankStatus:
        """For GET /v1/status: the arena of the newest version, else of the grant that is open."""
        header = max((each.arena.header for each in self.arenas), key=_newest)
        state = {ArenaState.EMPTY: "Empty", ArenaState.FILLING: "Filling", ArenaState.SEALED: "Sealed"}[header.state]
        version = header.version.name if header.version else ""
        return RankStatus.model_validate(
            {"rank": self.program.rank, "state": state, "grant": header.grant, "version": version}
        )


def _newest(header: Header) -> tuple[int, int]:
    return header.version.number if header.version else 0, header.state
