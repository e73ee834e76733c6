"""A few of the cases of `make chaos`, in one world: each phase of a sync once, each kind of process once."""

from collections.abc import Iterator

import pytest
import torch

from tools.chaos import cases, judging
from tools.chaos.command import baseline, run
from tools.chaos.site import Site

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]

CHOSEN = (
    "the engine's transfer worker is killed while buckets are written",
    "the engine's agent is killed when the engine is to apply",
    "a bucket is corrupted after it landed",
    "the coordinator's agent is killed when the version is decided",
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with Site() as site:
        baseline(site)
        yield site
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_world_heals_and_no_answer_is_wrong(site: Site, name: str) -> None:
    """No torn and no stale answer; the other engines are served; everyone becomes current in time."""
    (case,) = [case for case in cases.table() if case.id == name]
    trial = run(site, case)
    assert judging.wrong(trial) == "", trial
    assert trial.judged.answers > 0
