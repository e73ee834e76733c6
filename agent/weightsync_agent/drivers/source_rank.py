"""One trainer rank: fills arenas together with the Publisher, writes what the coordinator orders."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.buckets import Bucket, bucket_size, cut
from weightsync.buckets import shard as shard_of
from weightsync.convert.program import CopyProgram
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
    PlannedRoute,
    PublishAnswer,
    PublishOutcome,
    PublishRequest,
    PublishTrouble,
    RouteEnd,
    ShardDigests,
    SyncOrder,
    WriterId,
)
from weightsync_agent import failpoints
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
AGAIN = 1.0  # seconds until a coordinator that could not be reached is asked for the outcome again
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
        self._working = asyncio.Lock()
        self._publishes: dict[str, Publish] = {}
        self._order: Order | None = None
        self._ordering = asyncio.Lock()
        self._shards: dict[str, Shard] = {}
        self._told_life = ""  # the life of the coordinator that knows our names
        self._versioned = asyncio.Condition()
        self._background = Background(f"source {who.rank}")

    async def renew(self, who: SourceRankRecord) -> None:
        """Another Publisher took the rank over: what the former one said of its names holds no longer.

        What the former one began and did not end is given up: nobody will fill those arenas any more.
        """
        if who.nonce != self.who.nonce:
            self._shards.clear()
        self.who = who
        for publish in list(self._publishes.values()):
            if publish.request.nonce != who.nonce and not publish.copied and publish.trouble is None:
                message = f"the trainer ended in publish {publish.request.sequence}, before all was copied"
                await self._break(publish, "TrainerRestarted", message)
                self._background.spawn(self._tell_trouble(publish))

    # --- the Publisher's side ---

    async def begin(self, request: local.BeginRequest) -> local.BeginAnswer:
        """publish() was called: choose arenas, join the other ranks in the background."""
        while (again := self._begun(request)) is not None:  # the answer was lost, not the call
            await again.begun.wait()
            if self._publishes.get(again.id) is again:
                return local.BeginAnswer(id=again.id, replicas=self._replicas(again))
        publish = Publish(secrets.token_hex(8), request)
        self._keep(publish)
        try:
            for digest in sorted(self._wanted()):
                program = await self._programs.get(digest)
                publish.slots[digest] = await self._pool.take(program, publish.id)
                if publish.trouble is not None:
                    raise Refused(f"publish {request.sequence}: {publish.trouble[1]}", reason=publish.trouble[0])
        except BaseException:
            self._publishes.pop(publish.id, None)
            publish.begun.set()
            await self._pool.give_up(publish.slots.values(), publish.id)
            raise
        publish.begun.set()
        self._background.spawn(self._join(publish))
        return local.BeginAnswer(id=publish.id, replicas=self._replicas(publish))

    def _begun(self, request: local.BeginRequest) -> Publish | None:
        return next((publish for publish in self._publishes.values() if publish.request == request), None)

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
        extents = shard_of(slot.program, known.owned)
        self._pool.prefault(slot, extents)
        slot.buckets = tuple(cut(extents, bucket_size(slot.program.layout.nbytes, limit)))

    async def names(self, id_: str, report: local.NamesReport) -> local.NamesReply:
        """The first publish of a life told which names the stage has: the coordinator says which it owns."""
        publish = self._find(id_)
        names = frozenset(report.names)
        for digest, slot in publish.slots.items():
            if digest not in self._shards:
                self._shards[digest] = Shard(await self._tell_names(slot.program, names), names)
        return local.NamesReply(replicas=self._replicas(publish))

    async def _tell_names(self, program: CopyProgram, names: frozenset[str]) -> frozenset[str]:
        request = NamesRequest(
            term=self._term(),
            writer=self.writer,
            stage=self.who.stage,
            program=program.digest,
            names=tuple(sorted(names & {tensor.name for tensor in program.tensors})),
        )
        answer = await self._client.persist(
            self._coordinator(), "/v1/names", NamesAnswer, request, seconds=self._deadline()
        )
        return frozenset(answer.owned)

    async def _retell(self, life: str) -> None:
        """The coordinator began a new life: it knows no names, and a source that restarts needs everybody's."""
        try:
            for digest, shard in list(self._shards.items()):
                owned = await self._tell_names(await self._programs.get(digest), shard.names)
                if self._shards.get(digest) is shard:
                    self._shards[digest] = Shard(owned, shard.names)
        except BaseException:
            if self._told_life == life:
                self._told_life = ""  # the next publish tells them
            raise

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
        if slot.owner != publish.id:
            return  # sent again, of a publish that is over: the arena is filled with another by now
        if report.digests and len(report.digests) != len(report.offsets):
            raise InputError(f"publish {id_}: {len(report.digests)} digests for {len(report.offsets)} buckets")
        known, unread = [], []
        for offset, digest in zip(report.offsets, report.digests or ("",) * len(report.offsets), strict=True):
            bucket = wanted[offset]
            if offset in slot.told:
                continue  # requests may come twice, and a bucket is written once
            slot.told.add(offset)
            if digest:
                known.append(BucketDigest(offset=offset, nbytes=bucket.nbytes, digest=digest))
            else:
                unread.append(bucket)
        if not known and not unread:
            return
        task = asyncio.create_task(self._digest(publish, slot, known, unread))
        publish.digesting.add(task)
        task.add_done_callback(publish.digesting.discard)

    async def _digest(self, publish: Publish, slot: Slot, known: list[BucketDigest], unread: list[Bucket]) -> None:
        """Take the Publisher's digests; have the worker read what came in another order than the arena's."""
        found = list(known)
        if unread:
            try:
                worker = await self._ready(slot)
                found += await worker.digest(slot.arena.path, unread)
            except BaseException:
                if slot.owner == publish.id:  # told again, they are tried again
                    slot.told -= {bucket.offset for bucket in known} | {bucket.offset for bucket in unread}
                raise
        if slot.owner != publish.id:
            return
        slot.digests.update({bucket.offset: bucket for bucket in found})
        order = self._order
        if order is not None and order.slots.get(slot.program.digest) is slot:
            for runner in order.runners[slot.program.digest]:
                runner.feed(Filled(tuple(found)))
            await self._complete(order, slot)

    async def copied(self, id_: str) -> None:
        """Everything is full: the trainer may change its tensors. Bytes go on being written from the arenas."""
        publish = self._find(id_)
        if publish.digesting:
            await asyncio.gather(*publish.digesting)
        mine = {digest: slot for digest, slot in publish.slots.items() if slot.owner == publish.id}
        lacking = [digest for digest, slot in mine.items() if not slot.complete]
        if lacking:
            raise InputError(f"publish {id_}: program {lacking[0]} has buckets that were never filled")
        publish.copied = True
        for slot in mine.values():
            await self._pool.filled(slot, publish.id, awaited=not publish.outcome.done())

    async def failed(self, id_: str, failure: local.PublishFailure) -> None:
        """The trainer's part is wrong: that version will never be whole, for nobody."""
        publish = self._find(id_)
        await self._break(publish, failure.reason, failure.message)
        await self._tell_trouble(publish)

    async def _break(self, publish: Publish, reason: str, message: str) -> None:
        async with self._versioned:
            publish.trouble = (reason, message)
            self._versioned.notify_all()
        if publish.digesting:
            await asyncio.gather(*publish.digesting, return_exceptions=True)
        await self._pool.give_up(publish.slots.values(), publish.id)

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
        outcome = PublishOutcome(ended=True, reason="SourceFailed", message="the agent's own error; see its log")
        try:
            outcome = await self._follow(publish)
        except (WeightSyncError, TimeoutError) as error:
            reason = error.reason if isinstance(error, WeightSyncError) else "DeadlineExceeded"
            log.warning("publish without an outcome", rank=self.who.rank, why=str(error))
            outcome = PublishOutcome(ended=True, reason=reason, message=str(error))
        finally:  # whatever else was raised: the trainer and the next publish wait for an outcome
            publish.outcome.set_result(outcome)
            await self._pool.settle(publish.slots.values(), publish.id)

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
            nonce=request.nonce,  # the Publisher's that called, though another may have come by now
            sequence=request.sequence,
            label=request.label,
        )
        address, deadline = self._coordinator(), self._deadline()
        answer = await self._client.call(address, "/v1/publishes", PublishAnswer, body, seconds=deadline + GRACE)
        name = version_name(answer.lineage, answer.number)
        async with self._versioned:
            publish.version = answer
            for slot in publish.slots.values():
                if slot.owner == publish.id and publish.trouble is None:
                    slot.name = name
            self._versioned.notify_all()
        if answer.life != self._told_life:
            self._told_life = answer.life
            self._background.spawn(self._retell(answer.life))
        if publish.trouble is not None:
            await self._tell_trouble(publish)
        loop = asyncio.get_running_loop()
        # At most one earlier sync runs before this one's own deadline starts.
        until = loop.time() + 2 * (deadline + GRACE)
        while loop.time() < until:
            path = f"/v1/outcomes/{answer.lineage}/{answer.number}?wait={POLL}"
            try:
                outcome = await self._client.call(address, path, PublishOutcome, seconds=POLL + GRACE)
            except Unreachable as error:  # one connection was reset; the sync goes on meanwhile
                log.info("outcome not told, asking again", version=name, why=str(error))
                await asyncio.sleep(AGAIN)
                continue
            if outcome.ended:
                return outcome
        raise Unreachable(f"the coordinator at {address} did not tell the outcome of {name} by its deadline")

    # --- the coordinator's side ---

    async def order(self, order: SyncOrder) -> Accepted:
        """Take an order: write the routes from arenas that hold, or will hold, that version."""
        await failpoints.reach("source", "handshake")
        async with self._ordering:
            if self._order is not None:
                await self._end(self._order, "a newer order came")
            found = await self._slots_for(order)
            worker = await self._ready(*found.values())
            current = Order(order, slots=found, runners={digest: [] for digest in found})
            for planned in order.routes:
                if planned.program not in found:
                    raise InputError(
                        f"order {order.sync}: a route of program {planned.program}, which it does not name"
                    )
                current.runners[planned.program].append(self._runner(planned, current, worker))
            await self._hold(order, found)
            for digest, runners in current.runners.items():
                for runner in runners:
                    if found[digest].digests:
                        runner.feed(Filled(tuple(found[digest].digests.values())))
            self._order = current
            current.task = asyncio.create_task(self._carry_out(current))
            for slot in found.values():
                await self._complete(current, slot)
        return Accepted()

    def _runner(self, planned: PlannedRoute, order: Order, worker: TransferWorker) -> RouteRunner:
        return RouteRunner(
            planned,
            order.order,
            self.writer,
            arena=order.slots[planned.program].arena.path,
            worker=worker,
            client=self._client,
            report=self._report,
        )

    async def _hold(self, order: SyncOrder, found: dict[str, Slot]) -> None:
        """Keep the slots from being filled anew; one that was by now holds that version no more."""
        await self._pool.reading(list(found.values()), +1)
        lost = [digest for digest, slot in found.items() if slot.name != version_name(order.lineage, order.number)]
        if lost:
            await self._pool.reading(list(found.values()), -1)
            raise self._lacks(order, lost[0])

    def _lacks(self, order: SyncOrder, program: str, why: str = "") -> Refused:
        return Refused(
            f"rank {self.who.rank} of {self.writer.uid} does not hold {version_name(order.lineage, order.number)}"
            f" of program {program}{why}",
            reason="NotFilled",
        )

    async def _slots_for(self, order: SyncOrder) -> dict[str, Slot]:
        """The order may overtake the answer to our own publish: wait for the version's name to be known."""

        def found() -> dict[str, Slot]:
            pairs = {digest: self._pool.find(digest, order.lineage, order.number) for digest in order.programs}
            return {digest: slot for digest, slot in pairs.items() if slot is not None}

        def broken() -> str | None:
            for publish in self._publishes.values():
                told = publish.version
                if publish.trouble and told and (told.lineage, told.number) == (order.lineage, order.number):
                    return f", and never will: {publish.trouble[1]}"
            return None

        async with self._versioned:
            with suppress(TimeoutError):  # what is lacking is told below
                await asyncio.wait_for(
                    self._versioned.wait_for(lambda: broken() or len(found()) == len(order.programs)),
                    order.stall_seconds,
                )
            slots, why = found(), broken()
        lack = sorted(set(order.programs) - set(slots)) or sorted(order.programs)
        if why is not None or len(slots) < len(order.programs):
            raise self._lacks(order, lack[0] if lack else "(none)", why or "")
        return slots

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
        """To the end of all routes. However they ended: no worker still reads the arenas, which are then free."""
        runners = [runner for runners in order.runners.values() for runner in runners]
        seconds = order.order.deadline_seconds + GRACE
        late = asyncio.get_running_loop().call_later(
            seconds, self._cancel, order, "DeadlineExceeded", "not ended in time"
        )
        sure = False
        try:
            results = await asyncio.gather(*(runner.run() for runner in runners), return_exceptions=True)
            for result in results:
                if isinstance(result, PeerError):
                    log.warning("the coordinator did not take a route's end", why=str(result))
                elif isinstance(result, BaseException):
                    raise result
            sure = not any(runner.stalled for runner in runners)
        finally:
            late.cancel()
            try:
                if not sure:
                    # A write of ours may still read from the arena; the end of the worker's process ends that.
                    log.warning("a write stalled: replacing the source's worker", rank=self.who.rank)
                    await self._replace_worker()
            finally:
                await self._pool.reading(list(order.slots.values()), -1)

    def _cancel(self, order: Order, reason: str, why: str) -> None:
        for runners in order.runners.values():
            for runner in runners:
                runner.feed(Cancel(reason, f"rank {self.who.rank}, sync {order.order.sync}: {why}"))

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
        """Returns when its routes have ended. A failure is this order's alone: logged, and raised for nobody."""
        self._cancel(order, "Superseded", why)
        task = order.task
        if task is None:
            return
        await asyncio.wait({task})
        order.task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("an order failed", rank=self.who.rank, sync=order.order.sync, why=str(error), exc_info=error)

    # --- the worker ---

    async def _ready(self, *slots: Slot) -> TransferWorker:
        """The worker, with these arenas attached: one at a time, or two calls would each start their own."""
        async with self._working:
            worker = self._worker
            if worker is None or worker.dead.done():
                worker = self._worker = await self._start(f"source-{self.who.rank}")
            for slot in slots:
                await worker.attach(slot.arena.path)
            return worker

    async def _replace_worker(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.kill()  # before the lock: whoever holds it may wait for this very worker
            async with self._working:
                if self._worker is worker:
                    self._worker = None
            await asyncio.shield(worker.dead)

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
            await asyncio.wait({self._order.task})
        if self._worker is not None:
            await self._worker.close()
        self._pool.close()
