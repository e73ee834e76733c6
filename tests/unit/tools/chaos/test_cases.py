"""The table of faults."""

from collections import Counter

from tools.chaos.cases import PLACES, Kind, Scenario, Setting, Victim, table
from tools.chaos.scenarios import SCENARIOS


def test_ids_are_unique() -> None:
    """--only and the report name a case by its id alone."""
    assert [name for name, count in Counter(case.id for case in table()).items() if count > 1] == []


def test_every_process_is_killed_and_stopped_at_every_place_that_it_has() -> None:
    """No cell of victim x phase is forgotten; operator and API server have a scenario of their own."""
    found = {(case.victim, case.phase, case.kind) for case in table() if case.scenario is Scenario.PROCESS}
    wanted = {
        (victim, phase, kind)
        for victim, places in PLACES.items()
        for phase in places
        for kind in (Kind.KILL, Kind.STOP)
    }
    assert set(PLACES) == set(Victim) - {Victim.OPERATOR, Victim.API_SERVER}
    assert wanted <= found


def test_every_scenario_is_used_and_can_run() -> None:
    """A scenario without a case, or without a function, is a mistake."""
    assert {case.scenario for case in table()} == set(Scenario) == set(SCENARIOS)


def test_every_setting_has_cases() -> None:
    """Both strategies and the pods with networks."""
    assert {case.setting for case in table()} == set(Setting)
