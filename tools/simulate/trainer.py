"""The trainer: ranks that train in lockstep and publish after each step, whatever their agents say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Life, Task, TimedOut, Work
from weightsync.announcement import SourceRank
from weightsync.errors import WeightSyncError

if TYPE_CHECKING:
    from tools.simulate.pods import SourcePod
    from tools.simulate.source_agent import SourceAgent
    from tools.simulate.source_rank import Replicas
    from tools.simulate.world import World

PATIENCE = 60.0  # that a rank waits for its agent's answer to begin: as the Publisher's timeout


class Rank:
    """One rank: which pod, which stage."""

    __slots__ = ("number", "pod", "stage", "steps")

    def __init__(self, number: int, pod: SourcePod, stage: int) -> None:
        self.number = number
        self.pod = pod
        self.stage = stage
        self.steps: dict[tuple[str, int], int] = {}  # (nonce, sequence) -> training step


class Trainer:
    """One life of all ranks after another."""

    def __init__(self, world: World, ranks: list[Rank]) -> None:
        self.world = world
        self.loop = world.loop
        self.ranks = ranks
        self.life = Life("trainer")
        self.number = 0
        self.step = 0
        self.copied_step = 0  # the last that all ranks have copied
        self.nonces: dict[int, str] = {}
        self.interval = world.interval
        self.rests_until = 0.0

    def start(self) -> None:
        """A life begins: new nonces, sequence from 1."""
        if self.number and self.life.alive:
            return
        self.number += 1
        life = self.life = Life(f"trainer#{self.number}")
        self.nonces = {rank.number: self.world.nonce(16) for rank in self.ranks}
        Task(self.loop, life, self._train(life))

    def crash(self) -> None:
        """All ranks die."""
        self.life.end()
        self.loop.note("trainer", "dies")

    def restart_rank(self, rank: Rank) -> None:
        """One rank's process is replaced; it goes on in step with the others, and counts its publishes anew."""
        self.nonces[rank.number] = self.world.nonce(16)
        self.loop.note("trainer", "rank restarts", rank.number)

    def _train(self, life: Life) -> Work:
        sequences: dict[str, int] = {}
        while True:
            self.step += 1
            step = self.step
            tasks = []
            for rank in self.ranks:
                nonce = self.nonces[rank.number]
                sequences[nonce] = sequences.get(nonce, 0) + 1
                rank.steps[nonce, sequences[nonce]] = step
                tasks.append(Task(self.loop, life, self._publish(life, rank, nonce, sequences[nonce], step)))
            yield from tasks  # the step's collectives: no rank goes on alone
            self.copied_step = step
            yield self.loop.sleep(self.interval * (0.5 + self.world.rng.random()))
            while self.loop.now < self.rests_until:
                yield self.loop.sleep(self.rests_until - self.loop.now)

    def rest(self, seconds: float) -> None:
        """Publish nothing for so long, once what is under way is published."""
        self.rests_until = self.loop.now + seconds

    def _publish(self, life: Life, rank: Rank, nonce: str, sequence: int, step: int) -> Work:
        """As the Publisher: the input is always exhausted, and nothing is raised."""
        yield self.loop.sleep(self.world.rng.random() * 0.01)
        agent: SourceAgent = rank.pod.agent
        began = self.loop.now
        try:
            publish, replicas = yield from self._begin(life, agent, rank, nonce, sequence)
        except (WeightSyncError, TimedOut) as error:
            self.loop.note("trainer", "publish has no arenas", (rank.number, sequence, str(error)))
            return
        self.world.begun(rank, sequence, self.loop.now - began)
        try:
            for program, arena, buckets in replicas:
                for bucket in buckets:
                    yield self.loop.sleep(self.world.rng.random() * self.world.fill_seconds + self._dawdles(rank))
                    self._fill(arena, bucket, step)
                    yield from self._alive(agent)
                    if self.world.fault_chance("bad input"):
                        yield self.loop.sleep(self.world.rng.random() * 0.05)
                        raise _Raised("the trainer's input raised")
                    agent.filled(rank, publish, program, bucket)
            yield self.loop.sleep(0.001 + self._dawdles(rank))
            yield from self._alive(agent)
            agent.copied(rank, publish)
            if self.world.fault_chance("echo"):  # the answer was lost: told once more
                yield self.loop.sleep(self.world.rng.random())
                yield from self._alive(agent)
                agent.copied(rank, publish)
        except WeightSyncError as error:
            self.loop.note("trainer", "publish failed", (rank.number, sequence, str(error)))
            if agent.life.alive:
                agent.broken(rank, publish, error.reason, str(error))

    def _begin(self, life: Life, agent: SourceAgent, rank: Rank, nonce: str, sequence: int) -> Work:
        yield from self._alive(agent)
        who = SourceRank(rank=rank.number, world_size=len(self.ranks), stage=rank.stage, stages=self.world.stages,
                         nonce=nonce)  # fmt: skip
        agent.connect(who)
        label = f"step {rank.steps[nonce, sequence]}"  # a rank that restarted alone is known by it
        asked = Task(self.loop, agent.life, agent.begin(rank.number, nonce, sequence, label))
        agent.life.on_end.append(lambda: asked.fail(_Gone("the agent ended")))
        answer: tuple[str, Replicas] = yield self.loop.within(asked, PATIENCE)
        return answer

    def _dawdles(self, rank: Rank) -> float:
        return self.world.dawdles[1] if self.world.dawdles and self.world.dawdles[0] == rank.number else 0.0

    def _fill(self, arena: Any, bucket: int, step: int) -> None:
        self.world.ledger.refilled(arena, bucket)
        self.loop.note("trainer", "fills", (arena.name, bucket, step))
        arena.content[bucket] = (step,) * self.world.pieces

    def _alive(self, agent: SourceAgent) -> Work:
        """A stopped agent answers when it goes on; a dead one never."""
        while agent.life.alive and agent.life.frozen_until > self.loop.now:
            yield self.loop.sleep(agent.life.frozen_until - self.loop.now)
        if not agent.life.alive:
            raise _Gone("no agent listens")


class _Raised(WeightSyncError):
    """The input is wrong."""

    reason = "InputRaised"


class _Gone(WeightSyncError):
    """AgentUnavailable."""

    reason = "AgentUnavailable"
