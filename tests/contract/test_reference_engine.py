"""The reference engine answers as the real one did, in every case but the few that are named with their reasons."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.api import Json
from tests.contract.cases import CASES, FATAL
from tests.contract.differences import DELIBERATE, NEWER, differences
from tests.contract.reference import Engine, running

RECORDED = Path(__file__).with_name("sglang-0.5.17.json")
OLD, NEW = "0.5.17", "0.5.23"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Answers = tuple[dict[str, Json], dict[str, str]]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Json]:
    """What SGLang 0.5.17 answered on an H200."""
    answers: dict[str, Json] = json.loads(RECORDED.read_text())
    return answers


@pytest.fixture(scope="module", params=[OLD, NEW])
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Answers]:
    """Release and the reference engine's answers to all cases."""
    with running(tmp_path_factory.mktemp("engine"), request.param) as engine:
        return request.param, asyncio.run(engine.answers(CASES))


@pytest.mark.parametrize("case", CASES)
def test_it_answers_as_the_real_one(answered: tuple[str, Answers], recorded: dict[str, Json], case: str) -> None:
    """Equal to the record; as a newer release, equal but for what that release is known to do otherwise."""
    release, (answers, failures) = answered
    assert case not in failures, failures[case]
    known = DELIBERATE if release == OLD else DELIBERATE | NEWER
    assert not differences(case, recorded[case], answers[case], known)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine to lose."""
    with running(tmp_path, OLD) as engine:
        yield engine


@pytest.mark.parametrize("case", FATAL)
async def test_what_ends_it(engine: Engine, recorded: dict[str, Json], case: str) -> None:
    """Each on an engine of its own."""
    answers, failures = await engine.answers({case: FATAL[case]})
    assert not failures
    assert not differences(case, recorded[case], answers[case], DELIBERATE)


def test_the_record_is_of_these_cases(recorded: dict[str, Json]) -> None:
    """Whoever adds a case puts it to the real engine, too; nothing of a machine stands in the record."""
    assert recorded.keys() == CASES.keys() | FATAL.keys()
    assert not [word for word in ("127.0.0.1", "/dev", "/tmp", '-key"') if word in RECORDED.read_text()]


def test_every_named_difference_is_one(recorded: dict[str, Json]) -> None:
    """A reason is given for what differs, not kept for what was once different."""
    for known in (DELIBERATE, NEWER):
        for (case, field), (ours, reason) in known.items():
            assert field in recorded[case]
            assert ours != recorded[case][field]
            assert reason
