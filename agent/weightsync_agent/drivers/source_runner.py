"""Feeds one protocol.source.Source and does what it asks for: arenas, routes, workers, answers, timers."""

import asyncio
from collections import deque
from collections.abc import Callable, Container
from functools import partial

import structlog

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, Refused, TransferError
from weightsync.wire.v1 import Accepted, OrderEnd, ShardDigests, SyncOrder, WriterId
from weightsync_agent.arenas.files import SourceArenas
from weightsync_agent.arenas.record import SealedRecord
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.kept_term import KeptTerm
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.drivers.route_runner import RouteRunner, RouteTask
from weightsync_agent.drivers.route_writes import RouteWrites
from weightsync_agent.drivers.source_coordinator import SourceCoordinator
from weightsync_agent.drivers.source_publish import Publishes
from weightsync_agent.drivers.source_workers import SourceWorkers
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.source import Source
from weightsync_agent.transfer.settings import Carrier

log = structlog.get_logger(__name__)

TRIES = 3  # of a digest, each through another worker
VOID = "GrantVoid"
AGAIN = 2.0  # seconds until a found arena is compared again that could not be


class SourceRunner:
    """See the module. who: the rank's newest Publisher; void: grants under which nothing is written any more."""

    def __init__(
        self,
        writer: WriterId,
        who: Callable[[], SourceRankRecord],
        *,
        arenas: SourceArenas,
        count: int,
        publishes: Publishes,
        coordinator: SourceCoordinator,
        client: PeerClient,
        start: StartWorker,
        term: KeptTerm,
        void: Container[str] = frozenset(),
    ) -> None:
        self.machine = Source(f"rank {writer.rank} of {writer.uid}", count, term.fence())
        self.workers = SourceWorkers(f"source-{writer.rank}", start, lambda lane: self.feed(s.LaneDead(lane)))
        arenas.removed = self.workers.forget
        self._term = term
        self._writer = writer
        self._who = who
        self._arenas = arenas
        self._publishes = publishes
        self._coordinator = coordinator
        self._client = client
        self._events: deque[object] = deque()
        self._feeding = False
        self._routes: dict[s.RouteId, RouteRunner] = {}
        self._answers: dict[str, asyncio.Future[Accepted]] = {}
        self._refused_ends: dict[str, Refused] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._void = void
        self._closed = False
        self._background = Background(f"source {writer.rank}")

    def feed(self, event: object) -> None:
        """Hand the machine an event, and do what it asks for. What that leads to is handled after it, in order."""
        if self._closed:
            return
        self._events.append(event)
        if not self._feeding:
            self._drain()

    def _drain(self) -> None:
        self._feeding = True
        loop = asyncio.get_running_loop()
        try:
            while self._events:
                actions = self.machine.handle(self._events.popleft(), loop.time())
                self._term.keep(self.machine.admission.fence)
                for action in actions:
                    self._perform(action)
        finally:
            self._feeding = False
            if self._events:  # one that failed takes no other with it: routes and orders wait for them
                loop.call_soon(self._drain)

    # --- from outside ---

    def recover(self, records: list[SealedRecord]) -> None:
        """At start: offer what a former life of the agent sealed, once its bytes were compared."""
        opened = self._arenas.reopen(records)
        found = (
            s.FoundReplica(s.ReplicaId(each.program, each.index), each.version, each.turn, each.buckets)
            for each in opened
        )
        self.feed(s.Found(tuple(found)))

    async def order(self, order: SyncOrder) -> Accepted:
        """The answer may come only when an older order's routes have ended. Raises Refused."""
        answer = self._answers.get(order.sync)
        if answer is None:
            answer = self._answers[order.sync] = asyncio.get_running_loop().create_future()
        self.feed(s.Ordered(order, order.coordinator))
        return await asyncio.shield(answer)

    def end(self, end: OrderEnd) -> Accepted:
        """Raises Refused."""
        self.feed(s.Ended(end.sync, end.term, end.coordinator, end.version))
        refused = self._refused_ends.pop(end.sync, None)
        if refused is not None:
            raise refused
        return Accepted()

    def quiet(self, grant: str, session: str) -> bool:
        """End what is written under a void grant, or to that session; whether no worker is left that wrote there.

        Others that write through the same workers go on in a fresh one.
        """
        # A session is one rank's, and it asks only while nobody may write to it.
        routes = [each for each in self._routes.values() if grant == each.grant or session == each.session]
        for runner in routes:
            runner.feed(r.Cancel(VOID, "its target wants no more bytes of that grant"))
        lanes = self.workers.addressed(session)
        for lane in lanes:
            self.feed(s.LaneHeld(lane))
        return not routes and not lanes

    async def digest(self, replica: s.ReplicaId, buckets: list[Bucket]) -> list[BucketDigest]:
        """Have a worker read them. One that ends meanwhile is not this caller's affair: another does it.

        Raises TransferError, InputError where the arena is gone.
        """
        path = self._arenas.path(replica.key)
        for left in reversed(range(TRIES)):
            try:
                worker = await self.workers.ready(self.machine.lanes.shared, path)
                return await worker.digest(path, buckets)
            except TransferError as error:
                if not left:
                    raise
                log.info("digesting again", arena=path.name, why=str(error))
                await asyncio.sleep(0)  # the machine learns of the worker's end, and names another
        raise TransferError(f"{path}: was not digested", quiet=True)

    # --- actions ---

    def _perform(self, action: object) -> None:
        match action:
            case s.Fill() | s.Abandon() | s.Seal() | s.Empty() | s.Remove() | s.Compare():
                self._do_arena(action)
            case s.StartRoute() | s.FeedRoute() | s.MoveRoute() | s.ReportShard():
                self._do_route(action)
            case s.TakeOrder(sync):
                self._answer(sync, None)
            case s.RefuseOrder(sync, reason, message):
                self._answer(sync, Refused(message, reason=reason))
            case s.RefuseEnd(sync, reason, message):
                self._refused_ends[sync] = Refused(message, reason=reason)
            case s.KillLane(lane):
                self.workers.kill(lane)
            case s.Wake(at):
                self._wake(at)
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _do_arena(self, action: s.Fill | s.Abandon | s.Seal | s.Empty | s.Remove | s.Compare) -> None:
        match action:
            case s.Fill():
                self._fill(action)
            case s.Abandon(publish, reason, message):
                self._abandon(publish, reason, message)
            case s.Seal():
                self._seal(action)
            case s.Empty(replica):
                self._arenas.empty(replica.key)
            case s.Remove(replica):
                log.info("an arena that nobody wants is removed", program=replica.program, arena=replica.index)
                self._arenas.remove(replica.key)
            case s.Compare():
                self._background.spawn(self._compare(action))

    def _do_route(self, action: s.StartRoute | s.FeedRoute | s.MoveRoute | s.ReportShard) -> None:
        match action:
            case s.StartRoute():
                self._start_route(action)
            case s.FeedRoute(route, event):
                if (runner := self._routes.get(route)) is not None:
                    runner.feed(event)
            case s.MoveRoute(route, lane):
                if (runner := self._routes.get(route)) is not None:
                    runner.move(lane)
            case s.ReportShard():
                self._background.spawn(self._report(action))

    def _fill(self, action: s.Fill) -> None:
        publish, replica = self._publishes.get(action.publish), action.replica
        try:
            if publish is None:
                raise InputError(f"publish {action.publish} is not known any more")
            if not self._arenas.has(replica.key):
                self._arenas.make(publish.part(replica.program).program, replica.index)
        except InputError as error:
            self.feed(s.NoRoom(action.publish, replica, str(error)))
            return
        self._arenas.fill(replica.key)
        publish.got(replica)

    def _abandon(self, id_: str, reason: str, message: str) -> None:
        publish = self._publishes.get(id_)
        if publish is not None:
            publish.trouble = publish.trouble or (reason, message)
            publish.ready()

    def _seal(self, action: s.Seal) -> None:
        replica = action.replica
        try:
            self._arenas.seal(replica.key, self._who(), action.version, action.turn, action.buckets)
        except InputError as error:
            log.warning("a sealed replica will not outlive the agent", version=action.version.name, why=str(error))

    async def _compare(self, action: s.Compare) -> None:
        """In the background from the start on, since an order must be answered within a stall timeout."""
        replica, runs = action.replica, [Bucket(offset=b.offset, nbytes=b.nbytes) for b in action.buckets]
        arena = self._arenas.path(replica.key).name
        equal, why = False, "its bytes are not what its record says"
        while True:
            try:
                equal = tuple(await self.digest(replica, runs)) == action.buckets
            except InputError as error:  # it was removed meanwhile
                why = str(error)
            except TransferError as error:  # no worker, for now: that says nothing of the bytes
                log.warning("a sealed arena was not compared; trying again", arena=arena, why=str(error))
                await asyncio.sleep(AGAIN)
                continue
            break
        if equal:
            log.info("a sealed arena outlived the agent", arena=arena, version=action.version.name)
        else:
            log.warning("a sealed arena is emptied", arena=arena, version=action.version.name, why=why)
        self.feed(s.Compared(replica, equal))

    def _answer(self, sync: str, refused: Refused | None) -> None:
        answer = self._answers.pop(sync, None)
        if answer is None or answer.done():
            return
        if refused is None:
            answer.set_result(Accepted())
        else:
            answer.set_exception(refused)
            answer.exception()  # whoever ordered may have gone: that is no fault

    # --- routes ---

    def _start_route(self, action: s.StartRoute) -> None:
        writes = RouteWrites(
            action.route,
            action.planned,
            arena=self._arenas.path(action.replica.key),
            lane=action.lane,
            stall_seconds=action.order.stall_seconds,
            ready=partial(self.workers.ready, carrier=Carrier.of(action.planned.transport, action.order.rdma)),
            tell=self.feed,
        )
        task = RouteTask(action.route, action.planned, action.order, self._writer, self._coordinator.route)
        runner = self._routes[action.route] = RouteRunner(task, writes, self._client, self._over)
        if action.planned.grant in self._void:  # an order that was on its way: nothing of it may be written
            runner.feed(r.Cancel(VOID, "its target wants no more bytes of that grant"))
        self._background.spawn(runner.run())

    def _over(self, event: s.RouteOver) -> None:
        self._routes.pop(event.route, None)
        self.feed(event)

    async def _report(self, action: s.ReportShard) -> None:
        digests = ShardDigests(
            term=action.term,
            sync=action.sync,
            writer=self._writer,
            stage=self._who().stage,
            program=action.program,
            buckets=action.buckets,
        )
        await self._coordinator.shard(digests)

    # --- time ---

    def _wake(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers = {timer for timer in self._timers if timer.when() > loop.time()}
        self._timers.add(loop.call_at(at, self.feed, s.Tick()))

    async def close(self) -> None:
        """End the routes and the workers; arenas stay in the volume."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        await self._background.close()
        await self.workers.close()
        self._arenas.close()
