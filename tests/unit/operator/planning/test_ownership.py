"""A pod belongs to one WeightSync."""

from tests.build.pods import engine, trainer
from weightsync.api.v1alpha1.weightsync import Selector
from weightsync_operator.planning.ownership import Claim, Contest, own
from weightsync_operator.planning.pods import Pod


def claim(name: str, created: str, *, trains: str = "trainer", serves: str = "rollout") -> Claim:
    return Claim(
        created, name, f"uid-{name}", Selector(match_labels={"app": trains}), Selector(match_labels={"app": serves})
    )


OLD = claim("old", "2026-01-01T00:00:00Z")
YOUNG = claim("young", "2026-01-02T00:00:00Z", trains="other")


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.name for pod in pods]


def test_the_older_owns_and_both_say_so() -> None:
    """A pod that two match belongs to the older; each names the other."""
    pods = [trainer(), engine()]
    older, younger = own(OLD, [YOUNG], pods), own(YOUNG, [OLD], pods)
    assert (names(older.trainers), names(older.rollouts)) == (["trainer-0"], ["rollout-a"])
    assert younger.rollouts == ()
    assert older.contests == (Contest("rollout-a", "young", ours=True),)
    assert younger.contests == (Contest("rollout-a", "old", ours=False),)


def test_among_those_of_one_second_the_name_decides() -> None:
    """Two WeightSyncs made in the same second do not both own a pod."""
    twin = claim("twin", OLD.created)
    owners = [c.name for c, other in ((OLD, twin), (twin, OLD)) if own(c, [other], [engine()]).rollouts]
    assert owners == ["old"]


def test_a_pod_that_both_selectors_match_is_a_trainer() -> None:
    """It is counted once, and named."""
    both = claim("both", "2026-01-01T00:00:00Z", trains="same", serves="same")
    owned = own(both, [], [engine("pod", labels={"app": "same"})])
    assert (names(owned.trainers), owned.rollouts, owned.both) == (["pod"], (), ("pod",))


def test_pods_come_oldest_first_without_those_that_are_gone() -> None:
    """Age orders; a terminating or failed pod is no member."""
    pods = [
        engine("c", created="2026-01-03T00:00:00Z"),
        engine("b", created="2026-01-01T00:00:00Z"),
        engine("a", created="2026-01-01T00:00:00Z"),
        engine("d", gone="Terminating"),
        engine("stranger", labels={"app": "else"}),
    ]
    assert names(own(OLD, [], pods).rollouts) == ["a", "b", "c"]


def test_who_cannot_take_part_is_kept_with_why() -> None:
    """For those who would else be told that no pod matches."""
    pods = [
        trainer("t", gone="Failed"),
        engine("b", gone="Terminating", created="2026-01-02T00:00:00Z"),
        engine("a"),
        engine("stranger", labels={"app": "else"}, gone="Terminating"),
    ]
    owned = own(claim("mine", "2026-01-03T00:00:00Z"), [YOUNG], pods)
    assert owned.absent_trainers == ("t is Failed",)
    assert owned.absent_rollouts == ("a belongs to WeightSync young", "b is Terminating")
