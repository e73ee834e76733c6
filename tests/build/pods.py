"""Pods, sources and engines for tests: a case names only what it is about."""

from collections.abc import Sequence
from dataclasses import replace

from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.plan import Plan
from weightsync.report import Report
from weightsync_operator.planning import membership, sources
from weightsync_operator.planning.compose import Wish, compose
from weightsync_operator.planning.grouping import group
from weightsync_operator.planning.membership import Membership
from weightsync_operator.planning.pods import Pod
from weightsync_operator.planning.sources import Sources

LAYOUT = "a" * 32
OTHER_LAYOUT = "b" * 32
NONCE = "1" * 16


def digest(text: str) -> str:
    """A digest-like word for a text."""
    return text.encode().hex().ljust(32, "0")[:32]


def source_rank(rank: int = 0, *, world: int = 1, stage: int = 0, stages: int = 1, nonce: str = NONCE) -> SourceRank:
    """A rank as its Publisher announced it."""
    return SourceRank(rank=rank, world_size=world, stage=stage, stages=stages, nonce=nonce)


def trainer(
    name: str = "trainer-0",
    *ranks: SourceRank,
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
    labels: dict[str, str] | None = None,
    ready: bool = True,
    announced: bool = True,
    gone: str = "",
    report: Report | None = None,
) -> Pod:
    """A trainer pod; one rank of a world of one unless given."""
    said = Announcement(address=f"{name}:8960", ready=ready, sources=ranks or (source_rank(),))
    return Pod(
        namespace="default", name=name, uid=uid or f"uid-{name}", created=created,
        labels=labels if labels is not None else {"app": "trainer"},
        gone=gone, announcement=said if announced else None, report=report,
    )  # fmt: skip


def engine(
    name: str = "rollout-a",
    *,
    ranks: int = 1,
    layout: str = LAYOUT,
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
    labels: dict[str, str] | None = None,
    ready: bool = True,
    announced: bool = True,
    incarnation: str = "life-1",
    described: bool = True,
    refused: str = "",
    problem: str = "",
    gone: str = "",
) -> Pod:
    """An engine pod that serves, with one rank unless told otherwise."""
    targets = [TargetRank(rank=r, layout=layout, program=digest(f"program {layout[0]} {r}")) for r in range(ranks)]
    said = Announcement(
        address=f"{name}:8960", ready=ready, incarnation=incarnation,
        targets=tuple(targets) if described else (), refused=refused,
    )  # fmt: skip
    return Pod(
        namespace="default", name=name, uid=uid or f"uid-{name}", created=created,
        labels=labels if labels is not None else {"app": "rollout"},
        gone=gone, announcement=said if announced and not problem else None, problem=problem,
    )  # fmt: skip


def shard(
    name: str, ranks: tuple[int, ...], *, total: int = 0, labels: dict[str, str] | None = None, size: int = 0,
    checkpoint: str = "",
) -> Pod:  # fmt: skip
    """A pod that holds these ranks of an engine of several pods. total: of ranks, as it announces."""
    targets = tuple(TargetRank(rank=r, layout=LAYOUT, program=digest(f"program a {r}")) for r in ranks)
    said = Announcement(
        address=f"{name}:8960", ready=True, incarnation="life-1", targets=targets, engine_ranks=total,
        checkpoint=checkpoint,
    )  # fmt: skip
    return Pod(
        namespace="default", name=name, uid=f"uid-{name}", labels=labels or {}, announcement=said, size=size,
    )  # fmt: skip


def told(pod: Pod, **more: object) -> Pod:
    """The pod, whose agent says more of itself."""
    if pod.announcement is None:
        raise ValueError(f"the agent of {pod.name} says nothing")
    return replace(pod, announcement=pod.announcement.model_copy(update=more))


def gathered(pods: Sequence[Pod]) -> Sources:
    """The trainer's side of those pods."""
    return sources.gather(pods, "app=trainer")


def judged(pods: Sequence[Pod]) -> Membership:
    """The engines of those pods."""
    return membership.judge(group(pods))


def planned(
    trainers: Sequence[Pod],
    engines: Sequence[Pod],
    previous: Plan | None = None,
    wish: Wish | None = None,
    now: int = 0,
) -> Plan | None:
    """The plan of those pods. now: milliseconds; 0 counts terms from 1."""
    wish = wish or Wish(name="default/policy")
    return compose(wish, gathered(trainers), judged(engines).members, previous, now)
