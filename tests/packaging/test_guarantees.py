"""The page of promises names every invariant, and commands that run something."""

import re
from pathlib import Path

import pytest

from tools.simulate.invariants import SENTENCES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROMISED = PAGE.split("## Not promised")[0]


def test_every_invariant_is_promised() -> None:
    """In brackets, each once. Number 0 is the simulator's own."""
    said = [int(number) for numbers in re.findall(r"\*\* \(([0-9, ]+)\)", PROMISED) for number in numbers.split(", ")]
    assert sorted(said) == sorted(set(SENTENCES) - {0})


@pytest.mark.parametrize("path", sorted(set(re.findall(r"tests/[\w./-]*\w", PAGE))))
def test_its_commands_name_tests_that_exist(path: str) -> None:
    """A promise whose test was moved would be untested without a word."""
    assert (ROOT / path).exists()


def test_every_promise_says_how_it_is_tested() -> None:
    """Each row of the tables has a command of the Makefile in its last column."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    rows = [line.strip("| ").split(" | ") for line in PROMISED.splitlines() if line.startswith("| **")]
    assert len(rows) > 15
    for promise, how in rows:
        found = re.findall(r"make ([a-z-]+)", how)
        assert found, promise
        assert set(found) <= targets
