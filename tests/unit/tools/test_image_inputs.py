"""An image is built again when, and only when, something that goes into it has changed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools.images import archives, base, project

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one file for every input."""
    monkeypatch.setattr(base, "key", lambda: "base")
    for name in project.INPUTS:
        path = tmp_path / name if "." in name or name.isupper() or name == "Dockerfile" else tmp_path / name / "a.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_everything_that_the_dockerfile_copies_is_an_input() -> None:
    """No source of a COPY is missing from INPUTS, else a change of it would go unnoticed."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name.rstrip("/") for line in copied for name in line.split()}
    assert names
    assert names <= set(project.INPUTS)


@pytest.mark.parametrize("name", project.INPUTS)
def test_a_change_of_an_input_changes_the_image(clone: Path, name: str) -> None:
    """Different: the keys before and after a change of one input."""
    before = project.key(clone)
    path = clone / name if (clone / name).is_file() else clone / name / "a.py"
    path.write_text("changed")
    assert project.key(clone) != before


def test_a_change_of_the_base_changes_the_image(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different: the keys on two bases."""
    before = project.key(clone)
    monkeypatch.setattr(base, "key", lambda: "another base")
    assert project.key(clone) != before


def test_copies_differ_in_nothing_but_content(clone: Path, tmp_path: Path) -> None:
    """The same time and mode in every context, and the same key as the clone's."""
    (clone / "LICENSE").chmod(0o600)
    os.utime(clone / "LICENSE", (1, 1))
    context = tmp_path / "context"
    project.copy_inputs(clone, context)
    stats = [path.stat() for path in context.rglob("*") if path.is_file()]
    assert {(stat.st_mtime, stat.st_mode & 0o777) for stat in stats} == {(project.COPIED_AT, 0o644)}
    assert project.key(context) == project.key(clone)


def test_the_newest_archives_and_the_current_one_are_kept(tmp_path: Path) -> None:
    """Of five entries three stay: the current one, though it is the oldest, and the two newest."""
    for age, name in enumerate(["new", "newer", "old", "older", "current"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "x.lock").touch()
    gone = archives.forget_old(tmp_path, tmp_path / "current", kept=3)
    assert sorted(path.name for path in gone) == ["old", "older"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "new", "newer", "x.lock"]
