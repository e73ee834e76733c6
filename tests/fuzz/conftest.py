"""Agents for fuzz tests, one of each role for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.fuzz.running import Running
from weightsync_agent.peers import members


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The agent beside an engine that serves its base checkpoint."""
    one = Running(tmp_path_factory.mktemp("engine"), "engine")
    yield one
    one.close()


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The agent beside a pod of an engine that another leads."""
    one = Running(tmp_path_factory.mktemp("member"), "member")
    yield one
    one.close()


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The agent beside a trainer, which coordinates."""
    patch = pytest.MonkeyPatch()
    patch.setattr(members, "WAIT_SECONDS", 0.01)
    one = Running(tmp_path_factory.mktemp("trainer"), "trainer")
    yield one
    one.close()
    patch.undo()
