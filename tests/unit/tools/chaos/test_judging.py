"""What makes a case fail, and what the report bounds."""

from dataclasses import replace

import pytest

from tools.chaos.cases import Case, Setting
from tools.chaos.judging import details, measures, wrong
from tools.chaos.running import Trial
from tools.chaos.traffic import Judged

GOOD = Trial(Case("a fault"), healed=True, heal_seconds=3.0, outcomes={"engine-0": "Failed", "engine-1": "Current"})
ALL_FOUR = {Setting.BARRIER: [1.0, 1.2]}


@pytest.mark.parametrize(
    ("trial", "word"),
    [
        pytest.param(GOOD, "", id="a struck engine may fail"),
        pytest.param(replace(GOOD, problem="not healed"), "not healed", id="a problem is told"),
        pytest.param(
            replace(GOOD, judged=Judged(torn=1, sentences=["torn!"])), "torn!", id="one torn answer fails it"
        ),
        pytest.param(
            replace(GOOD, judged=Judged(stale=1, sentences=["old!"])), "old!", id="one stale answer fails it"
        ),
        pytest.param(replace(GOOD, heal_seconds=31.0), "31.0", id="a heal over the bound fails it"),
        pytest.param(
            replace(GOOD, outcomes={"engine-1": "Failed"}), "not served", id="another engine may not be hurt"
        ),
        pytest.param(
            replace(GOOD, outcomes={"engine-1": "Failed"}, case=Case("a fault", others_unhurt=False)),
            "",
            id="where the source had the fault all may be behind",
        ),
        pytest.param(
            replace(GOOD, heal_bytes=1, case=Case("a fault", wire_free=True)),
            "1 bytes",
            id="a local heal sends nothing",
        ),
    ],
)
def test_wrong(trial: Trial, word: str) -> None:
    """Every bound of a single case can break it."""
    assert word in wrong(trial) if word else wrong(trial) == ""


def test_measures_bound_the_other_engines_against_the_undisturbed_ones() -> None:
    """Median by ratio, maximum by one stall, each in its own setting."""
    slow = replace(GOOD, others=[2.0, 2.2, 3.5], clean=[1.0])
    found = {measure.name: measure for measure in measures([slow], ALL_FOUR, stall=2.0)}
    assert found["others' commit over undisturbed, median"].value == pytest.approx(2.2)
    assert not found["others' commit over undisturbed, median"].holds
    assert found["others' maximum less undisturbed maximum"].value == pytest.approx(2.3)
    assert not found["others' maximum less undisturbed maximum"].holds


def test_each_setting_has_a_baseline_of_its_own() -> None:
    """What is slow everywhere in one setting is no fault's doing."""
    pods = replace(GOOD, case=Case("another", setting=Setting.PODS), others=[5.0, 5.0, 5.0])
    usual = replace(GOOD, others=[1.0, 1.0, 1.2])
    found = measures([usual, pods], {Setting.BARRIER: [1.0], Setting.PODS: [5.0]}, stall=2.0)
    assert next(m.value for m in found if m.name == "others' commit over undisturbed, median") == pytest.approx(1.0)
    assert next(m.value for m in found if m.name.startswith("others' maximum")) == pytest.approx(0.2)


def test_measures_count_what_failed() -> None:
    """Torn and stale answers over all cases, and the cases."""
    torn = replace(GOOD, judged=Judged(torn=2, sentences=["torn!"]))
    found = {measure.name: measure for measure in measures([GOOD, torn], {}, stall=2.0)}
    assert (found["cases"].value, found["cases failed"].value, found["torn answers"].value) == (2, 1, 2)
    assert not found["cases failed"].holds
    assert not found["torn answers"].holds
    assert found["stale answers"].holds


def test_a_ratio_of_copied_is_bounded_and_other_figures_are_told() -> None:
    """copied() may take 1.1 times as long."""
    trial = replace(GOOD, figures={"copied, over undisturbed": 1.2, "bytes sent again over a replica": 0.1})
    bounds = {
        measure.name: measure.holds for measure in measures([trial], {}, stall=2.0) if "a fault" in measure.name
    }
    assert bounds == {
        "copied, over undisturbed: a fault": False,
        "bytes sent again over a replica: a fault": True,
    }


def test_details_say_what_was_expected() -> None:
    """One entry for each case, with its verdict."""
    (entry,) = details([replace(GOOD, case=Case("a fault", wire_free=True))])
    assert entry["wrong"] == ""
    assert "no byte sent" in str(entry["expected"])
