"""Random clusters for property tests: trainer pods of some shape, engines of some parallelism."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.build.pods import engine, shard, source_rank, trainer
from weightsync_operator.planning.pods import Pod

LWS = "leaderworkerset.sigs.k8s.io"


@dataclass(frozen=True)
class Cluster:
    """Trainer pods of one world, and engine pods of one layout."""

    trainers: tuple[Pod, ...]
    engines: tuple[Pod, ...]
    stages: int

    def __repr__(self) -> str:
        """Short: pods as they print fill pages."""
        ranks = [[(r.rank, r.stage) for r in pod.announcement.sources] for pod in self.trainers if pod.announcement]
        held = [len(pod.announcement.targets) for pod in self.engines if pod.announcement]
        return f"Cluster(ranks and stages {ranks}, engines of so many ranks: {held})"


def stamp(index: int) -> str:
    """A creation time that sorts like the index."""
    return f"2026-01-01T{index // 3600:02d}:{index // 60 % 60:02d}:{index % 60:02d}Z"


@st.composite
def clusters(draw: st.DrawFn, max_engines: int = 12) -> Cluster:
    """Every stage has at least one rank, every rank stands in one pod."""
    stages = draw(st.integers(1, 4))
    copies = draw(st.integers(1, 4))
    per_pod = draw(st.integers(1, 4))
    world = stages * copies
    ranks = [source_rank(r, world=world, stage=r % stages, stages=stages) for r in range(world)]
    pods = [ranks[i : i + per_pod] for i in range(0, world, per_pod)]
    trainers = tuple(trainer(f"trainer-{i}", *part, created=stamp(i)) for i, part in enumerate(pods))
    parallel = draw(st.integers(1, 4))
    count = draw(st.integers(0, max_engines))
    engines = tuple(engine(f"rollout-{i}", ranks=parallel, created=stamp(i)) for i in range(count))
    return Cluster(trainers, engines, stages)


@dataclass(frozen=True)
class Fleet:
    """Engines of several pods in LeaderWorkerSets. engines: name -> uids of pods; ranks: of each engine."""

    trainers: tuple[Pod, ...]
    pods: tuple[Pod, ...]
    engines: dict[str, frozenset[str]]
    ranks: int

    def __repr__(self) -> str:
        """Short."""
        return f"Fleet({len(self.engines)} engines of {self.ranks} ranks in {len(self.pods)} pods)"


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Up to five engines, each of one to four pods of one or two ranks."""
    count, size, per_pod = draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    pods: list[Pod] = []
    for number in range(count):
        for worker in range(size):
            labels = {
                f"{LWS}/name": "rollout", f"{LWS}/group-index": str(number), f"{LWS}/worker-index": str(worker),
            }  # fmt: skip
            ranks = tuple(range(worker * per_pod, (worker + 1) * per_pod))
            pods.append(shard(f"rollout-{number}-{worker}", ranks, labels=labels, size=size))
    order = draw(st.permutations(pods))
    names = {f"rollout-{n}": frozenset(p.uid for p in pods[n * size : (n + 1) * size]) for n in range(count)}
    return Fleet((trainer(),), tuple(order), names, size * per_pod)
