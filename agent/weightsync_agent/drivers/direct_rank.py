"""One rank's live parameters as a target, and the worker that reads them back: runs protocol.direct.DirectTarget."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from weightsync.buckets import needed
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import Refused, TransferError, WeightSyncError
from weightsync.wire.v1 import (
    Capabilities,
    CommitRequest,
    Grant,
    GrantRequest,
    RankStatus,
    Receipts,
    ReceiptsAnswer,
    Region,
    Transport,
    VoidRequest,
    Way,
)
from weightsync_agent import failpoints
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.drain import AskQuiet, Drain, Peer
from weightsync_agent.drivers.rank_target import runs_of
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.drivers.seed_region import region_of
from weightsync_agent.drivers.ways import transports
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.seed import Seed
from weightsync_agent.journal.records import JournalRank, JournalWriter
from weightsync_agent.observability import feeds
from weightsync_agent.protocol import direct as d
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.engine_leader import ANOTHER_LIFE, NOT_CERTIFIED
from weightsync_agent.protocol.fence import Fence, OpenGrant
from weightsync_agent.transfer.capabilities import agree, along
from weightsync_agent.transfer.probe import probe
from weightsync_agent.transfer.settings import Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)

MEMORY = "engine-memory"  # in a journal: no file in the volume
PROBE_SECONDS = 5.0
ANYBODY = "*/"  # in place of a writer's key, where it is not known who was let in

LetIn = Callable[[OpenGrant], Awaitable[None]]
STATES = {
    d.DirectState.CLOSED: "Empty",
    d.DirectState.OPEN: "Filling",
    d.DirectState.DRAINING: "Draining",
    d.DirectState.WHOLE: "Sealed",
}


class DirectRank:
    """seed: where the parameters of the engine that runs now lie, asked anew; quiet: asks a writer's agent."""

    def __init__(
        self,
        program: CopyProgram,
        start: StartWorker,
        seed: Callable[[int], Awaitable[Seed | None]],
        quiet: AskQuiet,
    ) -> None:
        self.program = program
        self.machine = d.DirectTarget(program.rank, program.layout.digest, program.digest, needed(program))
        self.served: tuple[BucketDigest, ...] = ()  # of what the engine serves
        self.addresses: dict[str, str] = {}  # of agents of writers, by uid: also of those that have left
        self._start = start
        self._seed = seed
        self._quiet = quiet
        self._planned: Mapping[str, str] = {}  # agents of the plan's trainer pods, as the last asker had it
        self._region: Region | None = None
        self._port = 0  # where the engine takes bytes over TCP
        self._speaks: Transport = "tcp"  # the engine's own Mooncake
        self._worker: TransferWorker | None = None
        self._draining: asyncio.Task[None] | None = None
        self._background = Background(f"direct {program.rank}")
        self._lock = asyncio.Lock()  # one event at a time
        self._starting = asyncio.Lock()
        self._capabilities: Capabilities | None = None  # of this agent's workers: all have the same

    # --- a life of the engine ---

    async def open(self, seed: Seed) -> None:
        """Take up what the engine that runs now registered. Raises InputError, TransferError where it is of no use.

        Another session is another process, to whose memory nobody was let in.
        """
        peer = await probe(seed.session, PROBE_SECONDS)
        region = region_of(self.program.layout, seed, peer.regions)
        async with self._lock:
            if self._region is not None and self._region.session != region.session:
                self._handle(d.NewLife())
                self.served = ()
                self._kill_reader()
            self._speaks = peer.transport
            self._region, self._port = region, peer.data_port if peer.transport == "tcp" else 0

    async def restore(self, writers: tuple[JournalWriter, ...]) -> None:
        """An agent before this one let them into the engine that runs: nobody else is before they have ended."""
        mine = [writer for writer in writers if writer.rank == self.program.rank]
        self.addresses |= {_uid(writer.key): writer.address for writer in mine if writer.address}
        if mine:
            await self._restore(mine[0].grant, frozenset(writer.key for writer in mine))

    async def restore_anybody(self) -> None:
        """An agent before this one may have let in anybody: nobody is before all sources are known to be out."""
        await self._restore("0" * 32, frozenset({ANYBODY}))

    async def _restore(self, grant: str, keys: frozenset[str]) -> None:
        async with self._lock:
            if self.machine.state is d.DirectState.CLOSED:
                open_ = OpenGrant(grant, 0, "", "", "0" * 16, 0, self.program.digest, keys, set(keys))
                self._handle(d.Restored(open_))

    @property
    def region(self) -> Region:
        """Raises TransferError before open()."""
        if self._region is None:
            raise TransferError(f"rank {self.program.rank}: the engine's parameters are not known yet")
        return self._region

    async def check_life(self) -> None:
        """Raises EngineError, reason EngineRestarted, where another process runs than the one that was opened."""
        seed = await self._seed(self.program.rank)
        if seed is None or seed.session != self.region.session:
            found = seed.session if seed is not None else "no session"
            raise engine_error(
                ANOTHER_LIFE, f"rank {self.program.rank}: {self.region.session} was looked at, and {found} is there"
            )

    # --- requests ---

    async def grant(self, request: GrantRequest, fence: Fence, let_in: LetIn) -> Grant:
        """The handshake. let_in: returns once the engine is journalled torn, with this grant's writers, and paused.

        Raises Refused, reason Fencing, while a writer of an older grant may still write.
        """
        async with self._lock:
            self.machine.check_ask(request)
            theirs = self._capabilities or (await self._reader()).capabilities
            ways = self._ways(request)
            agree(along(request.ours, self._speaks, request.rdma), theirs)
            self._learn(request.sources)
            event = t.Ask(request, secrets.token_hex(16))
            if self.machine.quiet():
                await let_in(self.machine.fresh(event))
            fence.check_sync(request.term, request.coordinator, request.sync)  # another may have come meanwhile
            for action in self._handle(event):
                match action:
                    case d.Drain():
                        self._drain()
                    case t.RefuseAsk(message):
                        raise Refused(message, reason="Fencing", status=503)
            return Grant(grant=event.grant, region=self.region, theirs=theirs, ways=ways)

    def _ways(self, request: GrantRequest) -> dict[str, Way]:
        """All writers come over what the engine speaks. Raises Refused where that is not what the request allows."""
        name = f"the engine's own Mooncake at {self.region.session}"
        if self._speaks == "rdma":  # whose devices it uses, it does not say
            engine = Side(name, request.rdma.devices or ("its own",), tcp=False)
        else:
            engine = Side(name, why="it speaks TCP: see its MC_* and its container's devices")
        return {
            key: Way(transport=choice.transport, region=self.region, why=choice.why[:1024])
            for key, choice in transports(request, engine).items()
        }

    def _learn(self, sources: Mapping[str, str]) -> None:
        if sources:
            self._planned = sources
        self.addresses |= sources

    async def void(self, request: VoidRequest) -> None:
        """These writers never got an order for the grant."""
        async with self._lock:
            for writer in request.writers:
                self._last(t.LastReceipt(request.grant, writer.key, "it was never ordered to write"))

    def _last(self, event: t.LastReceipt) -> None:
        if self.machine.takes(event):
            self._handle(event)

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """Read back, digest and compare what a writer calls terminal; close the writer's part with its last."""
        answer, key = ReceiptsAnswer(), request.writer.key
        if request.buckets:
            self.machine.check_writing(request.grant, key)
            await failpoints.reach("target", "writing")
            began = time.monotonic()
            computed = await self._read(request.buckets)
            seconds = time.monotonic() - began
            async with self._lock:
                self.machine.check_grant(request.grant, key)
                actions = self._handle(t.Landed(request.grant, computed, request.buckets))
            found = next(action for action in actions if isinstance(action, t.AnswerReceipt))
            answer = ReceiptsAnswer(verified=found.verified, unequal=found.unequal)
            feeds.receipt_checked(computed, answer, seconds)
        if request.last:
            async with self._lock:
                last = t.LastReceipt(request.grant, key, request.failed)
                if not self.machine.takes(last):
                    self.machine.check_grant(request.grant, key)  # the reason
                self._last(last)
            await failpoints.reach("target", "verified")
        return answer

    async def seal(self, request: CommitRequest) -> None:
        """The parameters are the decided version, if they are. Raises Refused with what is missing."""
        async with self._lock:
            self.machine.check_commit(request)
            self._handle(t.Commit(request, self.program.rank))
            self.served = self.verified()

    # --- reading back ---

    async def read_back(self) -> None:
        """Raises EngineError, reason NotCertified, where the parameters are not, byte for byte, what was verified."""
        found = await self._read(self.served)
        differing = next((now for now, was in zip(found, self.served, strict=True) if now != was), None)
        if differing is not None:
            names = [
                p.name
                for p in self.program.layout.parameters
                if p.offset < differing.offset + differing.nbytes and differing.offset < p.offset + p.nbytes
            ]
            raise engine_error(
                NOT_CERTIFIED,
                f"what was written does not stand in the engine: rank {self.program.rank}: {differing.nbytes} bytes "
                f"at {differing.offset}, of {', '.join(names[:3])}. Parameters that are repacked after loading, "
                "moved at run time or merged with others cannot be synced",
                retryable=False,
            )

    async def _read(self, buckets: tuple[BucketDigest, ...]) -> tuple[BucketDigest, ...]:
        runs = runs_of(self.program, buckets)
        worker = await self._reader()
        try:
            return tuple(await worker.read(self.region, runs, deadline_seconds=PROBE_SECONDS))
        except TransferError:
            worker.kill()  # a read that failed may still come in, into a buffer that the next one would use
            raise

    async def _reader(self) -> TransferWorker:
        async with self._starting:  # receipts of several writers come at once
            if self._worker is None or self._worker.dead.done():
                self._worker = await self._start(f"reader-{self.program.rank}", Carrier(self._speaks))
                self._capabilities = self._worker.capabilities
            return self._worker

    def _kill_reader(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    # --- writers that may still write ---

    def _drain(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = self._background.spawn(self._until_quiet())

    async def _until_quiet(self) -> None:
        grant = self.machine.grant
        if grant is None:
            return
        log.warning("writers may still write into the engine", rank=self.program.rank, open=sorted(grant.open))
        drain = Drain(grant.grant, self.region.session, self._port, self._quiet)
        # Not by its name: what nobody knows the writers of is restored under one name at each look.
        while self.machine.state is d.DirectState.DRAINING and self.machine.grant is grant:
            async with self._lock:
                self._kill_reader()  # its connections would be taken for theirs
            for key in sorted(grant.open):
                try:
                    over = await (drain.all_over(self._planned) if key == ANYBODY else drain.over(self._peer(key)))
                except (WeightSyncError, OSError, ValueError) as error:
                    log.info("whether a writer has ended is not known", writer=key, why=str(error))
                    continue
                gone = d.Gone(grant.grant, (key,))
                if over and self.machine.takes(gone):
                    self._handle(gone)
            await asyncio.sleep(drain.pause())

    def _peer(self, key: str) -> Peer:
        uid = _uid(key)
        return Peer(self.addresses.get(uid, ""), left=bool(self._planned) and uid not in self._planned)

    # --- what others may know ---

    def granted(self, grant: str) -> "DirectRank":
        """Itself. Raises Refused where that is not its grant."""
        if not self.machine.current(grant):
            raise Refused(f"grant {grant} is not open at rank {self.program.rank}", reason="GrantClosed")
        return self

    def verified(self) -> tuple[BucketDigest, ...]:
        """The buckets that were verified, by offset."""
        return tuple(self.machine.verified[offset] for offset in sorted(self.machine.verified))

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of it."""
        return JournalRank(rank=self.program.rank, program=self.program.digest, arena=MEMORY, buckets=self.verified())

    def writers(self) -> tuple[JournalWriter, ...]:
        """Who may still write."""
        return self.named(self.machine.grant) if self.machine.grant is not None else ()

    def named(self, grant: OpenGrant) -> tuple[JournalWriter, ...]:
        """The grant's open writers as a journal names them."""
        return tuple(
            JournalWriter(
                rank=self.program.rank, grant=grant.grant, key=key, address=self.addresses.get(_uid(key), "")
            )
            for key in sorted(grant.open)
        )

    def status(self) -> RankStatus:
        """For GET /v1/status."""
        machine = self.machine
        return RankStatus.model_validate(
            {
                "rank": self.program.rank,
                "state": STATES[machine.state],
                "grant": machine.grant.grant if machine.grant is not None else "",
                "version": machine.version.name if machine.version is not None else "",
            }
        )

    def _handle(self, event: object) -> list[object]:
        return self.machine.handle(event, time.monotonic())

    async def close(self) -> None:
        """End the reader; who may still write goes on."""
        await self._background.close()
        if self._worker is not None:
            await self._worker.close()


def _uid(key: str) -> str:
    """Of the pod in a writer's key."""
    return key.rpartition("/")[0]
