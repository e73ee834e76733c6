"""What happens when in the demo of coming and going engines, how it is judged, and what is drawn."""

from typing import Any
from xml.etree import ElementTree

import pytest

from tools.demo.elastic import figures, picture
from tools.demo.elastic.picture import Arrow
from tools.demo.elastic.plot import KillTrainer, Look, Plot, Stage
from tools.demo.figures import Readback
from tools.demo.story import PodSeen, Scale, TrainerSaid
from weightsync.api.v1alpha1.slice import SliceSpec

LIFE, NEXT = "a" * 16, "b" * 16


def pods(plot: Plot, count: int, of: int = 0) -> None:
    """So many engines live; those up to ``of`` are gone."""
    for number in range(max(count, of)):
        plot.take(PodSeen(f"e{number}", "rollout", 0, 0, gone=number >= count))


def step(number: int, engines: int, *, lineage: str = LIFE, behind: int = 0) -> TrainerSaid:
    outcomes = [
        {"engine": f"e{i}", "outcome": "Behind" if i < behind else "Current", "reason": ""} for i in range(engines)
    ]
    document: dict[str, Any] = {
        "event": "step", "step": number, "unix_ms": number, "engines": outcomes, "version": f"{lineage}.{number}",
        "checked": 5, "torn": 0, "stale": 0,
    }  # fmt: skip
    return TrainerSaid(document)


def started() -> TrainerSaid:
    return TrainerSaid({"event": "started"})


def played() -> Plot:
    """The whole plot."""
    plot = Plot()
    plot.take(started())
    pods(plot, 2)
    plot.take(step(1, 2))
    pods(plot, 8)
    plot.take(step(2, 8))
    plot.take(PodSeen("trainer-0", "trainer", 0, 0, gone=True))
    plot.take(started())
    plot.take(step(1, 8, lineage=NEXT))
    pods(plot, 3, of=8)
    plot.take(step(2, 3, lineage=NEXT))
    return plot


def test_the_plot_goes_from_two_over_eight_and_a_killed_trainer_to_three() -> None:
    """Each stage's end is looked at before the next begins."""
    plot = Plot()
    pods(plot, 2)
    assert plot.take(step(1, 2)) == [Look(Stage.FEW, f"{LIFE}.1"), Scale(8)]
    pods(plot, 8)
    assert plot.take(step(2, 8)) == [Look(Stage.MANY, f"{LIFE}.2"), KillTrainer()]
    gone = PodSeen("trainer-0", "trainer", 0, 0, gone=True)
    assert plot.take(gone) == [Look(Stage.GONE, f"{LIFE}.2")]
    assert plot.take(step(1, 8, lineage=NEXT)) == [Look(Stage.BACK, f"{NEXT}.1"), Scale(3)]
    pods(plot, 3, of=8)
    assert plot.take(step(2, 3, lineage=NEXT)) == [Look(Stage.END, f"{NEXT}.2")]
    assert plot.stage is Stage.OVER


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        pytest.param(2, step(1, 2, behind=1), id="an engine is behind"),
        pytest.param(2, step(1, 1), id="the sync knew one only"),
        pytest.param(3, step(1, 2), id="another pod is there"),
    ],
)
def test_a_stage_is_not_over_before_all_serve(engines: int, said: TrainerSaid) -> None:
    """Exactly the engines that there should be, and all of them current."""
    plot = Plot()
    pods(plot, engines)
    assert plot.take(said) == []


def test_a_late_line_of_the_former_life_is_not_the_trainer_s_return() -> None:
    """The version's lineage tells."""
    plot = Plot()
    pods(plot, 2)
    plot.take(step(1, 2))
    pods(plot, 8)
    plot.take(step(2, 8))
    plot.take(PodSeen("trainer-0", "trainer", 0, 0, gone=True))
    assert plot.take(step(3, 8)) == []
    assert plot.stage is Stage.BACK


def test_a_trainer_that_fails_before_it_is_killed_ends_the_demo() -> None:
    """Afterwards its other rank may say so: its collectives have ended."""
    failed = TrainerSaid({"event": "failed", "rank": 1, "error": "no room"})
    plot = Plot()
    plot.take(failed)
    assert plot.failure == "rank 1 of the trainer failed: no room"


def held(plot: Plot) -> dict[Stage, list[Readback]]:
    """What engines hold that are all right."""
    return {p.stage: [Readback(name, p.version, digest_ok=True) for name in p.engines] for p in plot.passed}


def broken(plot: Plot, read: dict[Stage, list[Readback]], *, moves: bool = False) -> list[str]:
    arrow = Arrow("trainer-0", 0, 0, "e0", 0)
    drawn = {Stage.FEW: [arrow], Stage.MANY: [arrow._replace(source="trainer-1") if moves else arrow]}
    return [verdict.name for verdict in figures.judge(plot, read, drawn) if not verdict.kept]


def test_what_went_well_keeps_every_bound() -> None:
    """Also where the killed trainer had published one more than it said."""
    plot = played()
    read = held(plot)
    assert broken(plot, read) == []
    read[Stage.GONE][0] = Readback("e0", f"{LIFE}.3", digest_ok=True)
    assert broken(plot, read) == []


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(Readback("e0", f"{LIFE}.2", digest_ok=False), id="other bytes"),
        pytest.param(Readback("e0", f"{LIFE}.9", digest_ok=True), id="a version that nobody published"),
    ],
)
def test_an_engine_that_holds_what_it_should_not_breaks_its_stage(wrong: Readback) -> None:
    """By name of the stage."""
    plot = played()
    read = held(plot)
    read[Stage.MANY][0] = wrong
    assert broken(plot, read) == [Stage.MANY.value]


def test_a_route_that_moves_though_its_engine_stayed_breaks_a_bound() -> None:
    """Engines that come move nobody."""
    plot = played()
    assert broken(plot, held(plot), moves=True) == ["engines that came moved nobody"]


def test_a_torn_answer_breaks_a_bound_in_whichever_life() -> None:
    """The tallies of both are added."""
    plot = played()
    plot.lives[0]["torn"] = 1
    assert broken(plot, held(plot)) == ["answers"]


SLICES = [
    {"sources": [{"uid": "u0", "pod": "trainer-0", "address": "a:1", "ranks": []}]},
    {
        "engines": [
            {
                "name": "rollout-x", "leader": "e", "address": "a:2", "incarnation": "1",
                "targets": [
                    {
                        "uid": "e", "pod": "rollout-x<1>", "address": "a:2",
                        "rank": {"rank": 0, "layout": "0" * 32, "program": "0" * 32},
                        "routes": [{"stage": 0, "source": "u0", "rank": 0}, {"stage": 1, "source": "u9", "rank": 1}],
                    }
                ],
            }
        ]
    },
]  # fmt: skip


def arrows() -> list[Arrow]:
    return picture.arrows([SliceSpec.model_validate(part) for part in SLICES])


def test_arrows_are_the_slices_routes_by_names_of_pods() -> None:
    """A source that no slice has is named by its uid."""
    assert arrows() == [Arrow("trainer-0", 0, 0, "rollout-x<1>", 0), Arrow("u9", 1, 1, "rollout-x<1>", 0)]


def test_the_text_has_a_line_for_each_source() -> None:
    """With the stage that it feeds."""
    assert picture.text(arrows()) == [
        "trainer-0 rank 0 (stage 0) -> rollout-x<1> rank 0",
        "u9 rank 1 (stage 1) -> rollout-x<1> rank 0",
    ]


def test_the_drawing_is_well_formed_and_has_every_rank_and_route() -> None:
    """Names are escaped; each route has a curve and a tip."""
    root = ElementTree.fromstring(picture.svg("two & more", arrows()))  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    words = {element.text for element in root.iter(f"{space}text")}
    assert {"two & more", "trainer-0 rank 0", "u9 rank 1", "rollout-x<1> rank 0"} <= words
    assert len(list(root.iter(f"{space}path"))) == 2 * len(arrows())


def test_moved_counts_routes_of_those_that_stayed() -> None:
    """Engines that came or went do not count."""
    one, other = arrows()
    assert picture.moved([one, other], [one._replace(source="u9"), other]) == 1
    assert picture.moved([one], [other]) == 0
