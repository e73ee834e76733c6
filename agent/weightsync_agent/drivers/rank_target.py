"""One engine rank's arena and its receiving worker: runs protocol.target.Target."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from weightsync.arena import Arena, ArenaState
from weightsync.buckets import Bucket, needed
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest, program_root
from weightsync.errors import InputError, Refused, TransferError
from weightsync.version import Version
from weightsync.wire.v1 import (
    CommitRequest,
    Grant,
    GrantRequest,
    RankStatus,
    Receipts,
    ReceiptsAnswer,
    Region,
    VoidRequest,
)
from weightsync_agent import failpoints
from weightsync_agent.arenas.sizing import check_room
from weightsync_agent.drivers.background import Background, in_thread
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.observability import metrics
from weightsync_agent.protocol import target as t
from weightsync_agent.transfer.capabilities import agree
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)

StartWorker = Callable[[str], Awaitable[TransferWorker]]

PREFAULT = 256 << 20  # bytes at once: mapping pages holds the interpreter's lock, and others must run in between


class RankTarget:
    """Owns the rank's arena file and the worker whose process may be written to."""

    def __init__(self, program: CopyProgram, folder: Path, start: StartWorker, memory_limit: int | None) -> None:
        self.program = program
        self.path = folder / f"{program.layout.digest}-{program.rank}-0"
        self.machine = t.Target(program.rank, program.layout.digest, program.digest, needed(program))
        self._start = start
        self._limit = memory_limit
        self._arena: Arena | None = None
        self._worker: TransferWorker | None = None
        self._region: Region | None = None
        self._background = Background(f"target {program.rank}")
        self._lock = asyncio.Lock()  # one event at a time: a grant is given, fenced or sealed, never two at once

    # --- life ---

    async def open(self) -> None:
        """Take over the arena that is there, or make one; start the worker; register once."""
        self._arena = self._reopen() or await self._create()
        try:
            await self._register()
        except BaseException:
            self._arena.close()  # or its lock would keep the next look from taking the same file over
            self._arena = None
            raise

    def _reopen(self) -> Arena | None:
        if not self.path.exists():
            return None
        try:
            arena = Arena.open(self.path, lock=True)
        except InputError as error:
            log.warning(
                "the arena in the volume cannot be used; a new one is made", path=str(self.path), why=str(error)
            )
            return None
        header = arena.header
        if header.program != self.program.digest or header.nbytes != self.program.layout.nbytes:
            arena.close()
            return None
        return arena

    async def _create(self) -> Arena:
        nbytes = self.program.layout.nbytes
        check_room(nbytes, self._limit, f"the arena of rank {self.program.rank}")
        arena = Arena.create(
            self.path,
            layout=self.program.layout.digest,
            program=self.program.digest,
            nbytes=nbytes,
        )
        try:
            await in_thread(arena.prefault, [(at, min(at + PREFAULT, nbytes)) for at in range(0, nbytes, PREFAULT)])
        except BaseException:
            arena.close()
            raise
        return arena

    async def _register(self) -> None:
        """Start a worker that has the arena registered; where that fails, no region of an earlier one is left."""
        self._region = None
        worker = await self._start(f"target-{self.program.rank}")
        try:
            region = await worker.attach(self.path)
        except BaseException:
            await worker.close()
            raise
        self._worker, self._region = worker, region

    async def close(self) -> None:
        """End the worker, keep the arena's file."""
        await self._background.close()
        if self._worker is not None:
            await self._worker.close()
        if self._arena is not None:
            self._arena.close()

    @property
    def arena(self) -> Arena:
        """The open arena. Raises TransferError before open()."""
        if self._arena is None:
            raise TransferError(f"rank {self.program.rank} has no arena yet")
        return self._arena

    @property
    def worker(self) -> TransferWorker:
        """The receiving worker. Raises TransferError before open(), or after its replacement failed."""
        if self._worker is None:
            raise TransferError(f"rank {self.program.rank} has no transfer worker")
        return self._worker

    async def recover(self, rank: JournalRank, version: Version) -> bool:
        """The arena is sealed as ``version`` and its bytes are those of the journal: take them over."""
        header = self.arena.header
        if header.state is not ArenaState.SEALED or header.version != version or rank.program != self.program.digest:
            return False
        async with self._lock:
            if self.machine.state is not t.TargetState.FENCING:
                await self._living_worker()
        found = await self.worker.digest(self.path, [Bucket(offset=b.offset, nbytes=b.nbytes) for b in rank.buckets])
        if tuple(found) != rank.buckets:
            log.error("the sealed arena's bytes are not those of the journal", rank=rank.rank, version=version.name)
            return False
        async with self._lock:
            if self.machine.state is t.TargetState.EMPTY:
                self._handle(t.Recovered(version, header.grant, rank.program, rank.buckets))
        return True

    # --- requests ---

    async def grant(self, request: GrantRequest) -> Grant:
        """The handshake. Raises Refused with what differs, before anything is written."""
        async with self._lock:
            self.machine.check_ask(request)
            await self._living_worker()
            region = self._region
            if region is None:
                raise TransferError(f"rank {self.program.rank} has no registered arena")
            agree(request.ours, self.worker.capabilities)
            actions = self._handle(t.Ask(request, secrets.token_hex(16)))
            for action in actions:
                if isinstance(action, t.ReplaceWorker):
                    self._background.spawn(self._replace_worker())
                if isinstance(action, t.RefuseAsk):
                    raise Refused(action.message, reason="Fencing", status=503)
                if isinstance(action, t.WriteFilling):
                    self.arena.fill(action.grant)
            given = next(action for action in actions if isinstance(action, t.GiveGrant))
        return Grant(grant=given.grant, region=region, theirs=self.worker.capabilities)

    async def _replace_worker(self) -> None:
        """Feed what became of it, whatever that is: no failure may leave the rank fencing."""
        try:
            await self._fence()
        except Exception as error:
            async with self._lock:
                self._handle(t.FenceFailed(f"{type(error).__name__}: {error}"))
            raise
        async with self._lock:
            self._handle(t.Fenced())

    async def _fence(self) -> None:
        """Writers of the old grant may still write: only the death of the process that they reach ends that."""
        grant = self.machine.grant
        log.warning(
            "fence: killing the receiving worker", rank=self.program.rank, open=sorted(grant.open if grant else ())
        )
        metrics.WORKER_RESTARTS.labels(reason="fence").inc()
        if self._worker is not None:
            self._worker.kill()
            await asyncio.shield(self._worker.dead)  # only then no byte can land any more
        await self._register()

    async def void(self, request: VoidRequest) -> None:
        """These writers never got an order for the grant: they will not write, and their parts are closed."""
        async with self._lock:
            for writer in request.writers:
                event = t.LastReceipt(request.grant, writer.key, "it was never ordered to write")
                if self.machine.takes(event):
                    self._handle(event)

    async def _living_worker(self) -> None:
        """A worker that died by itself is replaced: nobody reaches the arena through it any more.

        So is one whose replacement failed: it ended before that was tried.
        """
        if self._worker is not None and self._region is not None and not self._worker.dead.done():
            return
        why = self._worker.dead.result() if self._worker is not None and self._worker.dead.done() else "none is left"
        log.warning("the rank has no receiving worker; another is started", rank=self.program.rank, why=why)
        metrics.WORKER_RESTARTS.labels(reason="died").inc()
        await self._register()

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """Digest and compare the buckets that a writer calls terminal; close the writer's part with its last."""
        grant = self.machine.check_grant(request.grant, request.writer.key)
        answer = ReceiptsAnswer()
        if request.buckets and request.writer.key not in grant.open:
            raise Refused(f"{request.writer.key} closed its part of grant {grant.grant}", reason="GrantClosed")
        if request.buckets:
            for bucket in request.buckets:
                if bucket.offset + bucket.nbytes > self.program.layout.nbytes:
                    raise InputError(f"bucket {bucket.offset}+{bucket.nbytes} lies outside rank {self.program.rank}")
            await failpoints.reach("target", "writing")
            began = time.monotonic()
            runs = [Bucket(offset=b.offset, nbytes=b.nbytes) for b in request.buckets]
            computed = tuple(await self.worker.digest(self.path, runs))
            metrics.PHASE_SECONDS.labels(phase="check").observe(time.monotonic() - began)
            async with self._lock:
                self.machine.check_grant(request.grant, request.writer.key)
                actions = self._handle(t.Landed(request.grant, computed, request.buckets))
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            answer = ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
        if request.last:
            async with self._lock:
                self._handle(t.LastReceipt(request.grant, request.writer.key, request.failed))
            await failpoints.reach("target", "verified")
        return answer

    async def seal(self, request: CommitRequest) -> None:
        """Seal the arena as the decided version, if it is. Raises Refused with what is missing."""
        async with self._lock:
            self.machine.check_commit(request)
            for action in self._handle(t.Commit(request, self.program.rank)):
                if isinstance(action, t.Seal):
                    self.arena.seal(action.grant, action.version)

    async def apply_begins(self) -> None:
        """No grant from here on."""
        async with self._lock:
            self._handle(t.ApplyBegins())

    async def apply_ends(self) -> None:
        """Grants again."""
        async with self._lock:
            if self.machine.takes(t.ApplyEnds()):
                self._handle(t.ApplyEnds())

    def _handle(self, event: object) -> list[object]:
        return self.machine.handle(event, time.monotonic())

    # --- what others may know ---

    def verified(self) -> tuple[BucketDigest, ...]:
        """The buckets that this rank verified, by offset."""
        return tuple(self.machine.verified[offset] for offset in sorted(self.machine.verified))

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of this rank."""
        return JournalRank(
            rank=self.program.rank, program=self.program.digest, arena=self.path.name, buckets=self.verified()
        )

    def root(self) -> str:
        """The replica's root over the verified buckets."""
        return program_root(self.verified())

    def status(self) -> RankStatus:
        """For GET /v1/status."""
        header = self.arena.header
        state = {ArenaState.EMPTY: "Empty", ArenaState.FILLING: "Filling", ArenaState.SEALED: "Sealed"}[header.state]
        version = header.version.name if header.version else ""
        return RankStatus.model_validate(
            {"rank": self.program.rank, "state": state, "grant": header.grant, "version": version}
        )
