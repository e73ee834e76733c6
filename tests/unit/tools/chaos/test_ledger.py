"""Which publish a version's name means, and what its weights compute."""

import pytest
import torch

from tools.chaos.ledger import Ledger

FIRST, SECOND = "a" * 16, "b" * 16


@pytest.fixture
def ledger() -> Ledger:
    torch.set_num_threads(1)
    ledger = Ledger()
    ledger.new_life()
    return ledger


def test_a_life_counts_its_publishes_from_one(ledger: Ledger) -> None:
    """After a restart of the trainer another lineage means the publishes of the new life."""
    assert [ledger.publish() for _ in range(2)] == [1, 2]
    assert ledger.number(f"{FIRST}.2") == 2
    ledger.new_life()
    assert ledger.publish() == 3
    assert ledger.number(f"{SECOND}.1") == 3
    assert ledger.number(f"{FIRST}.1") == 1


def test_nobody_says_the_outcome_of_a_former_lifes_publish(ledger: Ledger) -> None:
    """Whoever waited for it is gone: a trial that waited too would count its own patience as time to heal."""
    former = ledger.publish()
    assert ledger.lives(former)
    ledger.new_life()
    assert not ledger.lives(former)
    assert ledger.lives(ledger.publish())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{FIRST}.3", id="more publishes than there were"),
        pytest.param(f"{FIRST}.0", id="numbers begin with one"),
        pytest.param(f"torn:{FIRST}.1", id="a torn engine's name"),
        pytest.param("weights", id="another name altogether"),
    ],
)
def test_a_name_that_nobody_published_is_none(ledger: Ledger, name: str) -> None:
    """An answer that carries it is torn."""
    ledger.publish()
    assert ledger.number(name) is None


def test_the_base_checkpoint_is_number_zero(ledger: Ledger) -> None:
    """As engines name it before the first version."""
    assert ledger.number("default") == 0


def test_two_versions_answer_differently(ledger: Ledger) -> None:
    """Or a torn answer could not be seen."""
    one, two = ledger.publish(), ledger.publish()
    found = ledger.answer(one, (3, 1, 4), 8)
    assert found is not None
    assert ledger.differs(two, (3, 1, 4), found.tokens)
    assert not ledger.differs(one, (3, 1, 4), found.tokens)
