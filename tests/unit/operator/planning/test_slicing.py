"""Slices move little."""

from tests.build.pods import engine, planned, trainer
from weightsync.api.v1alpha1.slice import MAX_ENGINES
from weightsync.plan import Plan
from weightsync_operator.planning import slicing
from weightsync_operator.planning.slicing import Slice, cut

OWNER = ("policy", "uid")


def plan_of(*names: str, previous: Plan | None = None) -> Plan:
    made = planned([trainer()], [engine(name) for name in names], previous)
    assert made is not None
    return made


def many(first: int, last: int) -> list[str]:
    return [f"e{number:03d}" for number in range(first, last)]


def changed(before: tuple[Slice, ...], after: tuple[Slice, ...]) -> int:
    return len({part.name for part in after} - {part.name for part in before})


def test_an_engine_that_joins_rewrites_one_slice() -> None:
    """Of 250 engines in three slices, one more changes the one with room, and no source's."""
    before = cut(plan_of(*many(0, 250)), OWNER, ())
    assert [len(part.spec.engines) for part in before] == [0, 100, 100, 50]
    after = cut(plan_of(*many(0, 251)), OWNER, before)
    assert changed(before, after) == 1


def test_an_engine_that_leaves_rewrites_one_slice() -> None:
    """The others keep their names, which are their content's."""
    before = cut(plan_of(*many(0, 250)), OWNER, ())
    assert changed(before, cut(plan_of(*many(1, 250)), OWNER, before)) == 1


def test_crumbs_are_gathered() -> None:
    """After a scale-down to few engines they share a slice again."""
    before = cut(plan_of(*many(0, 250)), OWNER, ())
    left = ["e000", "e100", "e200"]
    after = cut(plan_of(*left), OWNER, before)
    assert [[e.name for e in part.spec.engines] for part in after if part.spec.engines] == [left]


def test_a_slice_is_bounded_in_bytes() -> None:
    """Engines of many ranks and routes fill a slice before there are MAX_ENGINES of them."""
    plan = plan_of(*many(0, 10))
    one = slicing.size(plan.engines[0])
    packs = slicing.MAX_BYTES // one
    assert packs > MAX_ENGINES, "small engines are bounded by number"
    heavy = planned([trainer()], [engine(name, ranks=64) for name in many(0, 100)])
    assert heavy is not None
    slices = [part for part in cut(heavy, OWNER, ()) if part.spec.engines]
    assert len(slices) > 1
    assert all(slicing.size(part.spec) < slicing.MAX_BYTES * 1.1 for part in slices)


def test_names_are_content() -> None:
    """Equal content of the same owner has one name; another owner's, or other content, another."""
    spec = cut(plan_of("a"), OWNER, ())[1].spec
    other = cut(plan_of("b"), OWNER, ())[1].spec
    assert slicing.name(OWNER, spec) == slicing.name(OWNER, spec)
    assert len({slicing.name(OWNER, spec), slicing.name(OWNER, other), slicing.name(("policy", "new"), spec)}) == 3
    assert len(slicing.name(("n" * 63, "uid"), spec)) <= 63
