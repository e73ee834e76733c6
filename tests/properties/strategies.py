"""Random clusters for property tests: trainer pods of some shape, engines of some parallelism."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.build.pods import engine, source_rank, trainer
from weightsync_operator.planning.pods import Pod


@dataclass(frozen=True)
class Cluster:
    """Trainer pods of one world, and engine pods of one layout."""

    trainers: tuple[Pod, ...]
    engines: tuple[Pod, ...]
    stages: int


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
