"""The chart takes the words of every helm command that README and pages show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.charts import Helm

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(?:console|sh)?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
VALUES = ("--set", "--set-json", "--set-string")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page, and the words of a command that installs or upgrades."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for _, text in BLOCK.findall(page.read_text()):
            for line in text.replace("\\\n", " ").splitlines():
                words = line.strip().removeprefix("$ ")
                if words.startswith(("helm install", "helm upgrade")):
                    yield page.name, shlex.split(words)


COMMANDS = list(commands())


def test_pages_show_commands() -> None:
    """Else nothing is looked at here."""
    assert {"README.md", "install.md", "quickstart.md"} <= {page for page, _ in COMMANDS}


@pytest.mark.parametrize(
    "words", [words for _, words in COMMANDS], ids=[f"{page} {words[1]}" for page, words in COMMANDS]
)
def test_its_values_are_taken(chart: Helm, words: list[str]) -> None:
    """The release's name and the chart's folder, and every value by name and kind."""
    assert words[2:4] == ["weightsync", "charts/weightsync"]
    places = [number for number, word in enumerate(words) if word in VALUES]
    chart.text(*(word for number in places for word in words[number : number + 2]))
