"""A cache entry is found again when, and only when, what went into it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.setup import cache, examples_env, requirements

PROJECT = """
[project]
requires-python = ">=3.11"
dependencies = ["pydantic>=2"]
[project.optional-dependencies]
dev = ["pytest"]
[tool.ruff]
line-length = {length}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the files that decide about packages."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / requirements.PROJECT).write_text(PROJECT.format(length=100))
    (tmp_path / requirements.CONSTRAINTS).write_text("pydantic==2.1\npytest==9\n")
    return tmp_path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("ab", "c"), ("a", "bc"), id="the border between two parts counts"),
        pytest.param(("a",), ("a", ""), id="an empty part counts"),
        pytest.param(("a", "b"), ("b", "a"), id="the order counts"),
    ],
)
def test_keys_differ(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Different: the keys of different lists of parts."""
    assert cache.key(*one) != cache.key(*other)


def test_text_and_its_bytes_are_the_same_part() -> None:
    """Equal: the keys of a text and of its UTF-8 bytes."""
    assert cache.key("ä") == cache.key("ä".encode())


def test_a_change_of_the_linter_s_table_keeps_the_environment(clone: Path) -> None:
    """Equal: the key parts before and after a change of pyproject.toml outside the dependency tables."""
    before = requirements.key_parts(clone)
    (clone / requirements.PROJECT).write_text(PROJECT.format(length=110))
    assert requirements.key_parts(clone) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(requirements.CONSTRAINTS, "pydantic==2.2\npytest==9\n", id="another locked version"),
        pytest.param(requirements.PROJECT, PROJECT.format(length=100).replace("pytest", "tox"), id="another extra"),
        pytest.param(requirements.PROJECT, PROJECT.format(length=100).replace(">=2", ">=3"), id="another bound"),
    ],
)
def test_a_change_of_the_dependencies_changes_the_key(clone: Path, name: str, text: str) -> None:
    """Different: the key parts before and after."""
    before = requirements.key_parts(clone)
    (clone / name).write_text(text)
    assert requirements.key_parts(clone) != before


def test_compiled_python_is_no_input(tmp_path: Path) -> None:
    """Equal: the parts of a folder before and after its modules were imported."""
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "module.py").write_text("x = 1\n")
    before = cache.tree(tmp_path, ["sdk"])
    (tmp_path / "sdk" / "__pycache__").mkdir()
    (tmp_path / "sdk" / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"\0")
    assert cache.tree(tmp_path, ["sdk"]) == before


def test_a_renamed_file_is_another_input(tmp_path: Path) -> None:
    """Different: the parts of a folder before and after one of its files changed its name."""
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "one.py").write_text("x = 1\n")
    before = cache.tree(tmp_path, ["sdk"])
    (tmp_path / "sdk" / "one.py").rename(tmp_path / "sdk" / "two.py")
    assert cache.tree(tmp_path, ["sdk"]) != before


def test_the_examples_packages_are_all_locked() -> None:
    """Every package of the example pods has one version in this repository's constraints file."""
    locked = examples_env.locked(Path(__file__).parents[3])
    assert [requirement.partition("==")[0] for requirement in locked] == list(examples_env.PACKAGES)
