"""The agent beside trainer ranks: the host of a Coordination and of its ranks; what of them travels as requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Future, Life, Loop, Task, Work
from tools.simulate.coordination import Coordination
from tools.simulate.source_rank import POLL, SourceRank
from tools.simulate.transfer import Worker
from weightsync.announcement import SourceRank as Who
from weightsync.errors import Refused
from weightsync.plan import Plan
from weightsync.wire import v1
from weightsync_agent.protocol import events as e

if TYPE_CHECKING:
    from tools.simulate.pods import SourcePod
    from tools.simulate.trainer import Rank
    from tools.simulate.world import World


class SourceAgent:
    """One life of the agent of one trainer pod."""

    def __init__(self, world: World, pod: SourcePod, life: Life) -> None:
        self.world = world
        self.loop: Loop = world.loop
        self.pod = pod
        self.life = life
        self.plan: Plan | None = None
        self.first_plan = Future(world.loop)
        self.ranks: dict[int, SourceRank] = {}
        self.workers: list[Worker] = []
        self.void: set[str] = set()
        self.coordination = Coordination(self)
        life.on_end.append(self._die)

    def _die(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.world.network.reset(self.life)

    def spawn(self, work: Work) -> Task:
        """Run it in this life."""
        return Task(self.loop, self.life, work)

    def call(self, address: str, path: str, body: Any, seconds: float) -> Future:
        """Ask a peer once."""
        return self.world.network.call((self.life, self.pod.address, address), path, body, seconds)

    def persist(self, address: str, path: str, body: Any, seconds: float) -> Work:
        """Ask a peer until it answers."""
        return self.world.network.persist((self.life, self.pod.address, address), path, body, seconds)

    def coordinator(self) -> str:
        """Its address, by the newest plan."""
        source = self.plan.source(self.plan.coordinator) if self.plan is not None else None
        if source is None:
            raise Refused("the plan has no coordinator", reason="NoCoordinator", status=503)
        return source.address

    def planned(self, plan: Plan) -> bool:
        """A plan arrives."""
        if plan == self.plan:
            return False
        self.plan = plan
        self.coordination.plan(plan)
        self.first_plan.set()
        return True

    def kill_worker(self, pick: float) -> None:
        """A fault: one of its workers dies."""
        alive = [worker for worker in self.workers if worker.alive]
        if alive:
            alive[int(pick * len(alive))].kill()

    # --- from the trainer ---

    def connect(self, who: Who) -> None:
        """A Publisher's rank says who it is."""
        known = self.ranks.get(who.rank)
        if known is None:
            self.ranks[who.rank] = SourceRank(self, who)
        elif known.who != who:
            known.renew(who)
        else:
            return
        self.world.planner.connected(self.pod, who)

    def begin(self, rank: int, nonce: str, sequence: int, label: str) -> Work:
        """See SourceRank.begin."""
        return self.ranks[rank].begin(nonce, sequence, label)

    def filled(self, rank: Rank, publish: str, program: str, bucket: int) -> None:
        """See SourceRank.filled."""
        self.ranks[rank.number].filled(publish, program, bucket)

    def copied(self, rank: Rank, publish: str) -> None:
        """See SourceRank.copied."""
        self.ranks[rank.number].copied(publish)

    def broken(self, rank: Rank, publish: str, reason: str, message: str) -> None:
        """See SourceRank.broken."""
        self.ranks[rank.number].broken(publish, reason, message)

    # --- requests ---

    def serve(self, path: str, body: Any) -> Any:  # noqa: PLR0911 - one case for each path
        """See network.Host."""
        coordination = self.coordination
        match path:
            case "/v1/publishes":
                return coordination.publishes(body)
            case "/v1/shards":
                coordination.feed(e.ShardFilled(body))
            case "/v1/routes":
                coordination.feed(e.RouteEnded(body))
            case "/v1/trouble":
                coordination.feed(e.PublishBroken(body.lineage, body.number, body.reason, body.message))
            case "/v1/outcomes":
                return coordination.outcome(body, POLL)
            case "/v1/held":
                return coordination.held(body)
            case "/v1/orders":
                return self._rank(body.writer).order(body.order)
            case "/v1/orders/end":
                return self._rank(body.writer).end(body)
            case "/v1/quiet":
                self.void.add(body.grant)
                said = [rank.quiet(body.grant, body.session) for rank in self.ranks.values()]
                return v1.QuietAnswer(quiet=all(said))
            case _:
                raise Refused(f"no such path: {path}")
        return v1.Accepted()

    def _rank(self, writer: v1.WriterId) -> SourceRank:
        found = self.ranks.get(writer.rank)
        if found is None or writer.uid != self.pod.uid:
            raise Refused(f"{writer.key} is not here", reason="UnknownRank", status=404)
        return found
