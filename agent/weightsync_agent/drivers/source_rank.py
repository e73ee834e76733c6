"""One trainer rank: fills arenas together with the Publisher, writes what the coordinator orders."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.buckets import Bucket, bucket_size, cut, shard
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, PeerError, Refused, WeightSyncError
from weightsync.plan import Plan
from weightsync.version import version_name
from weightsync.wire import local
from weightsync.wire.v1 import (
    Accepted,
    NamesAnswer,
    NamesRequest,
    OrderEnd,
    PublishAnswer,
    PublishOutcome,
    PublishRequest,
    PublishTrouble,
    RouteEnd,
    ShardDigests,
    SyncOrder,
    WriterId,
)
from weightsync_agent.arenas.pool import ArenaPool, Slot
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.route_runner import RouteRunner
from weightsync_agent.peers.client import PeerClient, Unreachable
from weightsync_agent.protocol.route import AllFilled, Cancel, Filled
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)

POLL = 10.0  # seconds of one long poll
KEPT = 16  # publishes whose outcome can still be asked for
GRACE = 5.0  # seconds after a sync's deadline until a lost coordinator becomes the outcome


@dataclass
class Shard:
    """What this rank's stage owns of one program: known after its first publish."""

    owned: frozenset[str]
    names: frozenset[str]


@dataclass
class Publish:
    """One call of publish()."""

    id: str
    request: local.BeginRequest
    slots: dict[str, Slot] = field(default_factory=dict)
    version: PublishAnswer | None = None
    copied: bool = False
    trouble: tuple[str, str] | None = None
    outcome: asyncio.Future[PublishOutcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    digesting: set[asyncio.Task[None]] = field(default_factory=set)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Order:
    """The order that is being carried out."""

    order: SyncOrder
    runners: dict[str, list[RouteRunner]] = field(default_factory=dict)  # by program
    slots: dict[str, Slot] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None
    reported: set[str] = field(default_factory=set)


class SourceRank:
    """See the module. plan: the newest plan, None before the first."""

    def __init__(
        self,
        who: SourceRankRecord,
        uid: str,
        *,
        plan: Callable[[], Plan | None],
        client: PeerClient,
        programs: Programs,
        pool: ArenaPool,
        start: Callable[[str], Awaitable[TransferWorker]],
    ) -> None:
        self.who = who
        self.writer = WriterId(uid=uid, rank=who.rank)
        self._plan = plan
        self._client = client
        self._programs = programs
        self._pool = pool
        self._start = start
        self._worker: TransferWorker | None = None
        self._publishes: dict[str, Publish] = {}
        self._order: Order | None = None
        self._ordering = asyncio.Lock()
        self._shards: dict[str, Shard] = {}
        self._versioned = asyncio.Condition()
        self._background = Background(f"source {who.rank}")

    def renew(self, who: SourceRankRecord) -> None:
        """Another Publisher took the rank over: what the former one said of its names holds no longer."""
        if who.nonce != self.who.nonce:
            self._shards.clear()
        self.who = who

    # --- the Publisher's side ---

    async def begin(self, request: local.BeginRequest) -> local.BeginAnswer:
        """publish() was called: choose arenas, join the other ranks in the background."""
        again = next((p for p in self._publishes.values() if p.request == request), None)
        if again is not None:  # the answer was lost, not the call
            await again.begun.wait()
            return local.BeginAnswer(id=again.id, replicas=self._replicas(again))
        publish = Publish(secrets.token_hex(8), request)
        self._keep(publish)
        for digest in sorted(self._wanted()):
            program = await self._programs.get(digest)
            publish.slots[digest] = await self._pool.take(program)
        publish.begun.set()
        self._background.spawn(self._join(publish))
        return local.BeginAnswer(id=publish.id, replicas=self._replicas(publish))

    def _keep(self, publish: Publish) -> None:
        self._publishes[publish.id] = publish
        for old in list(self._publishes)[:-KEPT]:
            del self._publishes[old]

    def _wanted(self) -> set[str]:
        """Programs that the plan has this rank serve."""
        plan = self._plan()
        if plan is None:
            return set()
        return {
            target.rank.program
            for engine in plan.engines
            for target in engine.targets
            for route in target.routes
            if (route.source, route.rank) == (self.writer.uid, self.writer.rank)
        }

    def _replicas(self, publish: Publish) -> tuple[local.Replica, ...]:
        replicas = []
        for digest, slot in publish.slots.items():
            known = self._shards.get(digest)
            if known is not None:
                self._cut(slot, known)
                if not slot.buckets:
                    continue  # this stage owns nothing of the program: there is nothing to fill
            replicas.append(
                local.Replica(
                    program=digest,
                    program_path=str(self._programs.path(digest)),
                    arena_path=str(slot.arena.path),
                    buckets=slot.buckets if known is not None else (),
                    owned=tuple(sorted(known.owned)) if known is not None else (),
                )
            )
        return tuple(replicas)

    def _cut(self, slot: Slot, known: Shard) -> None:
        plan = self._plan()
        limit = plan.transfer.bucket_bytes if plan is not None else slot.program.layout.nbytes
        if slot.cut == (limit, known.owned):
            return
        slot.cut = (limit, known.owned)
        extents = shard(slot.program, known.owned)
        self._pool.prefault(slot, extents)
        slot.buckets = tuple(cut(extents, bucket_size(slot.program.layout.nbytes, limit)))

    async def names(self, id_: str, report: local.NamesReport) -> local.NamesReply:
        """The first publish of a life told which names the stage has: the coordinator says which it owns."""
        publish = self._find(id_)
        names = frozenset(report.names)
        for digest, slot in publish.slots.items():
            if digest not in self._shards:
                request = NamesRequest(
                    term=self._term(),
                    writer=self.writer,
                    stage=self.who.stage,
                    program=digest,
                    names=tuple(sorted(names & {tensor.name for tensor in slot.program.tensors})),
                )
                answer = await self._client.persist(
                    self._coordinator(), "/v1/names", NamesAnswer, request, seconds=self._deadline()
                )
                self._shards[digest] = Shard(frozenset(answer.owned), names)
        return local.NamesReply(replicas=self._replicas(publish))

    def filled(self, id_: str, report: local.Filled) -> None:
        """Buckets are full: digest them, and write them as soon as an order is there."""
        publish = self._find(id_)
        slot = publish.slots.get(report.program)
        if slot is None:
            raise InputError(f"publish {id_} does not fill program {report.program}")
        wanted = {bucket.offset: bucket for bucket in slot.buckets}
        unknown = [offset for offset in report.offsets if offset not in wanted]
        if unknown:
            raise InputError(f"publish {id_}: {unknown[0]} is no bucket of program {report.program}")
        if report.digests and len(report.digests) != len(report.offsets):
            raise InputError(f"publish {id_}: {len(report.digests)} digests for {len(report.offsets)} buckets")
        known, unread = [], []
        for offset, digest in zip(report.offsets, report.digests or ("",) * len(report.offsets), strict=True):
            bucket = wanted[offset]
            if digest:
                known.append(BucketDigest(offset=offset, nbytes=bucket.nbytes, digest=digest))
            else:
                unread.append(bucket)
        task = asyncio.create_task(self._digest(slot, known, unread))
        publish.digesting.add(task)
        task.add_done_callback(publish.digesting.discard)

    async def _digest(self, slot: Slot, known: list[BucketDigest], unread: list[Bucket]) -> None:
        """Take the Publisher's digests; have the worker read what came in another order than the arena's."""
        found = list(known)
        if unread:
            worker = await self._ready(slot)
            found += await worker.digest(slot.arena.path, unread)
        slot.digests.update({bucket.offset: bucket for bucket in found})
        order = self._order
        if order is not None and order.slots.get(slot.program.digest) is slot:
            for runner in order.runners[slot.program.digest]:
                runner.feed(Filled(tuple(found)))
            await self._complete(order, slot)

    async def copied(self, id_: str) -> None:
        """Everything is full: the trainer may change its tensors. Bytes go on being written from the arenas."""
        publish = self._find(id_)
        publish.copied = True
        if publish.digesting:
            await asyncio.gather(*publish.digesting)
        for digest, slot in publish.slots.items():
            if not slot.complete:
                raise InputError(f"publish {id_}: program {digest} has buckets that were never filled")
            await self._pool.release(slot)

    async def failed(self, id_: str, failure: local.PublishFailure) -> None:
        """The trainer's part is wrong: that version will never be whole, for nobody."""
        publish = self._find(id_)
        async with self._versioned:
            publish.trouble = (failure.reason, failure.message)
            self._versioned.notify_all()
        if publish.digesting:
            await asyncio.gather(*publish.digesting, return_exceptions=True)
        for slot in publish.slots.values():
            slot.arena.empty()
            slot.name = ""
            await self._pool.release(slot)
        if publish.version is not None:
            await self._tell_trouble(publish)

    async def _tell_trouble(self, publish: Publish) -> None:
        if publish.version is None or publish.trouble is None:
            return
        reason, message = publish.trouble
        trouble = PublishTrouble(
            writer=self.writer,
            lineage=publish.version.lineage,
            number=publish.version.number,
            reason=reason,
            message=f"rank {self.who.rank}: {message}",
        )
        await self._client.persist(self._coordinator(), "/v1/trouble", Accepted, trouble, seconds=POLL)

    async def outcome(self, id_: str, wait: float) -> PublishOutcome:
        """Long poll: ended False where it has not ended within ``wait`` seconds."""
        publish = self._find(id_)
        try:
            return await asyncio.wait_for(asyncio.shield(publish.outcome), wait)
        except TimeoutError:
            return PublishOutcome(ended=False)

    def _find(self, id_: str) -> Publish:
        publish = self._publishes.get(id_)
        if publish is None:
            raise Refused(f"publish {id_} is not known (any more)", reason="UnknownPublish", status=404)
        return publish

    # --- joining the other ranks ---

    async def _join(self, publish: Publish) -> None:
        """Register with the coordinator, learn the version, then wait for its outcome."""
        try:
            publish.outcome.set_result(await self._follow(publish))
        except (WeightSyncError, TimeoutError) as error:
            reason = error.reason if isinstance(error, WeightSyncError) else "DeadlineExceeded"
            log.warning("publish without an outcome", rank=self.who.rank, why=str(error))
            publish.outcome.set_result(PublishOutcome(ended=True, reason=reason, message=str(error)))

    async def _follow(self, publish: Publish) -> PublishOutcome:
        plan = self._plan()
        if plan is None or not plan.coordinator:
            return PublishOutcome(ended=True, reason="NoTargets", message="no plan names this trainer yet")
        who, request = self.who, publish.request
        body = PublishRequest(
            writer=self.writer,
            world_size=who.world_size,
            stage=who.stage,
            stages=who.stages,
            nonce=who.nonce,
            sequence=request.sequence,
            label=request.label,
        )
        address, deadline = self._coordinator(), self._deadline()
        answer = await self._client.call(address, "/v1/publishes", PublishAnswer, body, seconds=deadline + GRACE)
        name = version_name(answer.lineage, answer.number)
        async with self._versioned:
            publish.version = answer
            for slot in publish.slots.values():
                slot.name = name if publish.trouble is None else ""
            self._versioned.notify_all()
        if publish.trouble is not None:
            await self._tell_trouble(publish)
        loop = asyncio.get_running_loop()
        # At most one earlier sync runs before this one's own deadline starts.
        until = loop.time() + 2 * (deadline + GRACE)
        while loop.time() < until:
            path = f"/v1/outcomes/{answer.lineage}/{answer.number}?wait={POLL}"
            outcome = await self._client.call(address, path, PublishOutcome, seconds=POLL + GRACE)
            if outcome.ended:
                return outcome
        raise Unreachable(f"the coordinator at {address} did not tell the outcome of {name} by its deadline")

    # --- the coordinator's side ---

    async def order(self, order: SyncOrder) -> Accepted:
        """Take an order: write the routes from arenas that hold, or will hold, that version."""
        async with self._ordering:
            if self._order is not None:
                await self._end(self._order, "a newer order came")
            found = await self._slots_for(order)
            current = Order(order, slots=found, runners={digest: [] for digest in found})
            worker = await self._ready(*found.values())
            await self._pool.reading(list(found.values()), +1)
            for planned in order.routes:
                slot = found[planned.program]
                runner = RouteRunner(
                    planned,
                    order,
                    self.writer,
                    arena=slot.arena.path,
                    worker=worker,
                    client=self._client,
                    report=self._report,
                )
                current.runners[planned.program].append(runner)
                if slot.digests:
                    runner.feed(Filled(tuple(slot.digests.values())))
            self._order = current
            current.task = asyncio.create_task(self._carry_out(current))
            for slot in found.values():
                await self._complete(current, slot)
        return Accepted()

    async def _slots_for(self, order: SyncOrder) -> dict[str, Slot]:
        """The order may overtake the answer to our own publish: wait for the version's name to be known."""
        name = version_name(order.lineage, order.number)

        def found() -> dict[str, Slot]:
            pairs = {digest: self._pool.find(digest, order.lineage, order.number) for digest in order.programs}
            return {digest: slot for digest, slot in pairs.items() if slot is not None}

        def broken() -> bool:
            wanted = (order.lineage, order.number)
            told = [p for p in self._publishes.values() if p.trouble and p.version]
            return any((p.version.lineage, p.version.number) == wanted for p in told if p.version)

        async with self._versioned:
            try:
                await asyncio.wait_for(
                    self._versioned.wait_for(lambda: broken() or len(found()) == len(order.programs)),
                    order.stall_seconds,
                )
                if broken():
                    raise TimeoutError
            except TimeoutError:
                lack = sorted(set(order.programs) - set(found()))
                raise Refused(
                    f"rank {self.who.rank} of {self.writer.uid} does not hold {name} of program {lack[0]}",
                    reason="NotFilled",
                ) from None
        return found()

    async def _complete(self, order: Order, slot: Slot) -> None:
        """The shard is digested: routes learn it, and the coordinator gets the digests, once."""
        digest = slot.program.digest
        if not slot.complete or digest in order.reported:
            return
        order.reported.add(digest)
        for runner in order.runners[digest]:
            runner.feed(AllFilled())
        shard_digests = ShardDigests(
            term=order.order.term,
            sync=order.order.sync,
            writer=self.writer,
            stage=self.who.stage,
            program=digest,
            buckets=tuple(slot.digests[offset] for offset in sorted(slot.digests)),
        )
        self._background.spawn(self._tell(shard_digests))

    async def _tell(self, shard_digests: ShardDigests) -> None:
        await self._client.persist(self._coordinator(), "/v1/shards", Accepted, shard_digests, seconds=POLL)

    async def _report(self, end: RouteEnd) -> Accepted:
        return await self._client.persist(self._coordinator(), "/v1/routes", Accepted, end, seconds=POLL)

    async def _carry_out(self, order: Order) -> None:
        runners = [runner for runners in order.runners.values() for runner in runners]
        results = await asyncio.gather(*(runner.run() for runner in runners), return_exceptions=True)
        for result in results:
            if isinstance(result, PeerError):
                log.warning("the coordinator did not take a route's end", why=str(result))
            elif isinstance(result, BaseException):
                raise result
        if any(runner.stalled for runner in runners):
            # A stalled write may still read from the arena; the end of the worker's process ends that.
            log.warning("a write stalled: replacing the source's worker", rank=self.who.rank)
            await self._replace_worker()
        await self._pool.reading(list(order.slots.values()), -1)

    async def end(self, end: OrderEnd) -> Accepted:
        """The sync is over: stop what still runs; the bytes have a name now, or never will."""
        async with self._ordering:
            order = self._order
            if order is None or order.order.sync != end.sync:
                return Accepted()
            await self._end(order, "the sync has ended")
            self._order = None
            if end.version is not None:
                for slot in order.slots.values():
                    if slot.name == end.version.name and slot.complete:
                        self._pool.seal(slot, end.version)
        return Accepted()

    async def _end(self, order: Order, why: str) -> None:
        for runners in order.runners.values():
            for runner in runners:
                runner.feed(Cancel("Superseded", why))
        if order.task is not None:
            await order.task
            order.task = None

    # --- the worker ---

    async def _ready(self, *slots: Slot) -> TransferWorker:
        if self._worker is None or self._worker.dead.done():
            self._worker = await self._start(f"source-{self.who.rank}")
        for slot in slots:
            await self._worker.attach(slot.arena.path)
        return self._worker

    async def _replace_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            await asyncio.shield(self._worker.dead)
        self._worker = None

    # --- small ---

    def _coordinator(self) -> str:
        plan = self._plan()
        source = plan.source(plan.coordinator) if plan is not None else None
        if source is None:
            raise Refused("the plan has no coordinator", reason="NoCoordinator", status=503)
        return source.address

    def _deadline(self) -> float:
        plan = self._plan()
        return float(plan.strategy.deadline_seconds) if plan is not None else 60.0

    def _term(self) -> int:
        plan = self._plan()
        return plan.term if plan is not None else 0

    async def close(self) -> None:
        """End the worker; arenas stay in the volume."""
        await self._background.close()
        if self._order is not None and self._order.task is not None:
            self._order.task.cancel()
        if self._worker is not None:
            await self._worker.close()
        self._pool.close()
