"""The second pod of an engine, and the agent in it: a thin driver of EngineMember, as drivers/member.py.

What is a decision and still stands in that driver is copied here and marked: decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.simulate import invariants as i
from tools.simulate.clock import Life, Lock, Task, Work
from tools.simulate.rank_target import RankTarget
from tools.simulate.transfer import Worker
from tools.simulate.volume import Volume
from weightsync.announcement import Announcement, TargetRank
from weightsync.errors import PeerError, Refused
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire import v1
from weightsync_agent.journal.records import BASE, JournalRank
from weightsync_agent.protocol import engine_member as m
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.engine_leader import LeaderState
from weightsync_agent.protocol.fence import Fence

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
    from tools.simulate.world import World

HEARTBEAT = 0.5  # seconds between two words to the leader
ANSWER = 1.0  # seconds for one


class MemberPod:
    """It holds the engine's last rank. request and result: the hook's files in its volume, by the request's name."""

    def __init__(self, world: World, leader: EnginePod) -> None:
        self.world = world
        self.leader = leader
        self.name = f"{leader.name}.1"
        self.address = f"m{leader.name}:1"
        self.rank = leader.ranks - 1
        self.replaced = 0
        self.starts = 0
        self.removed = False
        self.agent: MemberAgent
        self._begin()

    def _begin(self) -> None:
        self.uid = f"{self.leader.uid}.1#{self.replaced}"
        self.volume = Volume()
        self.written = ""  # in the volume: the process that a version was let into
        self.request = ""
        self.result = ""
        self.start_agent()

    def start_agent(self) -> None:
        """An agent starts from what is in the volume."""
        if self.removed or (self.starts and self.agent.life.alive):
            return
        self.starts += 1
        self.agent = MemberAgent(self.world, self, Life(f"{self.name}.agent#{self.starts}"))
        self.world.network.hosts[self.address] = self.agent

    def crash_agent(self) -> None:
        """Kill -9: agent and its workers."""
        if self.agent.life.alive:
            self.world.loop.note(self.agent.life.name, "killed")
            self.agent.life.end()

    def replace(self) -> None:
        """Another pod takes its place: with another uid, an empty volume, and another process of the whole engine."""
        self.crash_agent()
        self.replaced += 1
        self.world.planner.member_gone(self.leader)
        if self.leader.engine.alive:
            self.leader.engine.end_life()
        self._begin()

    def remove(self) -> None:
        """With its engine."""
        self.removed = True
        self.crash_agent()


class MemberAgent:
    """One life of the agent in it."""

    def __init__(self, world: World, pod: MemberPod, life: Life) -> None:
        self.world = world
        self.loop = world.loop
        self.pod = pod
        self.volume = pod.volume
        self.life = life
        self.machine = m.EngineMember(pod.uid, world.nonce(16))
        self.fence = Fence(*self.volume.terms.get(-1, (0, "")))
        self.targets: dict[int, RankTarget] = {}
        self.workers: list[Worker] = []
        self.holding = Lock(self.loop)
        life.on_end.append(self._die)
        self.spawn(self.run())

    def _die(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.world.network.reset(self.life)

    def spawn(self, work: Work) -> Task:
        """Run it in this life."""
        return Task(self.loop, self.life, work)

    lends = False

    @property
    def served(self) -> Version | None:
        """What its leader says that the engine serves."""
        return self.machine.engine.version if self.machine.engine is not None else None

    # --- being there ---

    def run(self) -> Work:
        """Tell the leader that the pod is there, and learn what it is part of."""
        while True:
            yield from self._tell_leader()
            yield self.loop.sleep(HEARTBEAT)

    def _tell_leader(self) -> Work:
        asked_at = self.loop.now
        held = tuple(
            w.MemberRank(rank=rank, layout=target.layout, program=target.program,
                         arenas=tuple(each.arena.name for each in target.arenas))
            for rank, target in self.targets.items()
        )  # fmt: skip
        written = {self.pod.rank: self.pod.written} if self.pod.written else {}
        here = w.MemberHere(uid=self.pod.uid, life=self.machine.life, address=self.pod.address, node=1, ranks=held,
                            written=written)  # fmt: skip
        way = (self.life, self.pod.address, self.pod.leader.address)
        try:
            engine = yield self.world.network.call(way, "/v1/members", here, ANSWER)
        except PeerError:
            return
        yield from self._feed(m.LeaderAnswered(engine, asked_at))
        if engine.ranks and not self.targets:
            yield from self._open(engine.ranks[0])

    def _open(self, rank: int) -> Work:
        files = self.volume.arenas.get(rank)
        if files is None:
            names = [f"{self.pod.uid}-{rank}-{index}" for index in range(self.world.target_arenas)]
            first = self.pod.leader.first
            files = self.volume.arenas[rank] = [self.world.arena(name, first + rank) for name in names]
        target = RankTarget(self, rank, files)
        yield from target.register()
        self.targets[rank] = target
        self._announce()

    def _feed(self, event: object) -> Work:
        for action in self.world.handle(self.life.name, self.machine, event):
            match action:
                case m.LetGo(grants):
                    i.held_while_applied(self.pod.name, applied=self._applied(event, grants))
                    self.pod.request = ""  # decision: a call that the engine runs late must not find it
                    for rank, grant in grants:
                        yield from self._let_go(rank, grant)
                case m.TakeBack():
                    for target in self.targets.values():
                        if target.arenas[0].machine.state is t.TargetState.LENT:
                            yield from target.returned()
                case m.Tell():
                    if self.targets or not self.fence.term:
                        self._announce()

    def _applied(self, event: object, grants: tuple[tuple[int, str], ...]) -> bool:
        """Whether the leader, which has not released these arenas by this event, commits from them."""
        leader = self.pod.leader.agent
        released = isinstance(event, m.Released) and event.grants in (None, grants)
        commits = leader.life.alive and leader.machine.state is LeaderState.COMMITTING
        here = leader.crew.here
        mine = here is not None and here.life == self.machine.life
        return commits and mine and not released and set(grants) <= set(leader.machine.grants)

    def _let_go(self, rank: int, grant: str) -> Work:
        try:
            yield from self.targets[rank].release(grant)
        except Refused:
            return  # what was held by an agent before this one

    def _announce(self) -> None:
        engine = self.machine.engine
        said = Announcement(
            address=self.pod.address,
            incarnation=engine.incarnation if engine is not None else "",
            ready=engine is not None and engine.ready and bool(self.targets),
            targets=tuple(
                TargetRank(rank=rank, layout=each.layout, program=each.program) for rank, each in self.targets.items()
            ),
        )
        self.world.planner.member(self.pod, said)

    # --- requests ---

    def serve(self, path: str, body: Any) -> Any:
        """See network.Host."""
        match path:
            case "/v1/grants":
                if body.target not in ("", self.pod.uid):  # decision
                    raise Refused(f"pod {body.target} is meant, and this is {self.pod.uid}", reason="WrongPod")
                self._obey(body.term, body.coordinator)
                self.fence.hear(body.sync)
                self.world.ledger.heard(self.life.name, body.sync)
                self.machine.check_grantable()
                return self._target(body.rank).grant(body, self.fence)
            case "/v1/void":
                self.fence.check(body.term, body.coordinator)
                return self._target(body.rank).void(body)
            case "/v1/receipts":
                self.fence.check(body.term)
                return self._target(body.rank).receipts(body)
            case _:
                self.machine.check_call(body)
                return self._of_leader(path, body)

    def _of_leader(self, path: str, body: Any) -> Any:
        match path:
            case "/v1/member/holds":
                return self._hold(body)
            case "/v1/member/releases":
                return self._release(body)
            case "/v1/member/certificates":
                return self._certify(body)
            case "/v1/member/recoveries":
                return self._recover(body)
            case "/v1/member/asks":
                return self._ask(body)
            case "/v1/member/results":
                return w.HookResults(
                    records={} if self.pod.result != body.ids[self.pod.rank] else {self.pod.rank: {}}
                )
            case _:
                raise Refused(f"no such path: {path}")

    def _obey(self, term: int, coordinator: str) -> None:
        self.fence.raise_to(term, coordinator)
        self.volume.terms[-1] = (self.fence.term, self.fence.coordinator)

    def _target(self, rank: int) -> RankTarget:
        found = self.targets.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    def _hold(self, request: w.Hold) -> Work:
        commit = request.commit
        if commit is not None:
            self._obey(commit.term, commit.coordinator)
        ((rank, grant),) = request.grants.items()
        target = self._target(rank)
        yield self.holding.acquire()
        try:
            yield from self._feed(m.Released())
            kept = grant
            if commit is not None:
                kept = yield from target.seal(commit)
            else:
                yield from target.keep(grant)
            arena = target.granted(kept)
            if arena.machine.version != request.version or kept != grant:  # decision
                yield from target.release(kept)
                raise Refused(f"rank {rank} is not sealed as {request.version.name}", reason="WrongVersion")
            yield from self._feed(m.HoldAsked(request.version, ((rank, grant),)))
            fence = commit or self.fence
            known = arena.journal_rank()
            sealed = w.SealedRank(rank=rank, program=known.program, arena=known.arena, buckets=known.buckets)
            return w.Held(uid=self.pod.uid, life=self.machine.life, term=fence.term, coordinator=fence.coordinator,
                          version=request.version, ranks=(sealed,))  # fmt: skip
        finally:
            self.holding.release()

    def _release(self, request: w.Release) -> Work:
        yield self.holding.acquire()
        try:
            yield from self._feed(m.Released(tuple(sorted(request.grants.items()))))
        finally:
            self.holding.release()
        return v1.Accepted()

    def _certify(self, request: w.Certify) -> Work:
        yield self.holding.acquire()
        try:
            self.machine.check_certificate(request.certificate, request.step)
            if request.step == "Lend":
                yield from self._feed(m.LendAsked(request.certificate))
            elif request.step == "Return":
                yield from self._feed(m.Released())
            for rank, target in self.targets.items():
                first = target.arenas[0]
                if request.step in {"Fill", "Seal"} and first.machine.state is not t.TargetState.LENT:
                    raise Refused(f"rank {rank}: its arena is not lent", reason="NotHeld")
                match request.step:
                    case "Lend":
                        yield from target.lend()
                    case "Fill":
                        first.arena.fill(request.grants[rank])
                    case "Seal":
                        first.arena.seal(request.grants[rank], BASE)
        finally:
            self.holding.release()
        return v1.Accepted()

    def _recover(self, request: w.Recover) -> Work:
        grants = {}
        for sealed in request.ranks:
            rank = JournalRank.model_validate(sealed.model_dump())
            target = self._target(rank.rank)
            if not (yield from target.recover(rank, request.version)):
                return w.Recovered(equal=False)
            found = target.named(rank.arena)
            grants[rank.rank] = found.arena.header.grant if found is not None else ""
        return w.Recovered(equal=True, grants=grants)

    def _ask(self, request: w.HookAsk) -> Work:
        (asked,) = request.ranks
        self.machine.check_apply(asked.root, {asked.rank: asked.grant})
        if asked.root != BASE.root:
            yield self.loop.sleep(self.world.disk_seconds)
            self.pod.written = asked.incarnation
        self.pod.result, self.pod.request = "", self.world.nonce(16)
        return w.HookAsked(ids={asked.rank: self.pod.request})
