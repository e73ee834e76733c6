"""What the user sees: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools.demo.figures import Verdict
from tools.demo.story import Story

SHOWN_STEPS, SHOWN_NEWS = 12, 6

Json = dict[str, Any]


def pause_p50(step: Json) -> float | None:
    """Median pause of the engines that the step's version reached, in seconds."""
    pauses = [engine["pause_seconds"] for engine in step["engines"] if engine["outcome"] == "Current"]
    return median(pauses) if pauses else None


def short(version: str) -> str:
    """The version's number, and the first digits of its lineage."""
    lineage, _, number = version.partition(".")
    return f"{number} ({lineage[:4]})" if number else version or "-"


def cells(step: Json) -> list[str]:
    """One row: step, reward, version, engines current, sync, pause, checks."""
    current = sum(engine["outcome"] == "Current" for engine in step["engines"])
    pause = pause_p50(step)
    return [
        str(step["step"]),
        f"{step['reward']:.3f}",
        short(step["version"]),
        f"{current}/{len(step['engines'])}",
        f"{step['sync_seconds']:.2f} s",
        "-" if pause is None else f"{1000 * pause:.0f} ms",
        f"{step['checked']} checked, {step['torn']} torn, {step['stale']} stale",
    ]


class Display:
    """Use as a context manager around the run; ``show`` after every change."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._console = console or Console()
        self._steps = steps
        self._began = time.monotonic()
        self._lines = self._news = 0
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)

    @property
    def _plain(self) -> bool:
        return not self._console.is_terminal

    def __enter__(self) -> Display:
        if not self._plain:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._plain:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(
            f"[{time.monotonic() - self._began:7.1f} s] {text}", markup=False, highlight=False, soft_wrap=True
        )

    def show(self, story: Story, doing: str) -> None:
        """The state as it is now; ``doing``: what is being waited for."""
        if self._plain:
            self._plain_lines(story)
        else:
            self._live.update(self._picture(story, doing))

    def _plain_lines(self, story: Story) -> None:
        for news in story.news[self._news :]:
            self.say(news)
        for step in story.steps[self._lines :]:
            number, reward, version, engines, sync, pause, checks = cells(step)
            self.say(
                f"step {number}/{self._steps}  reward {reward}  version {version}  engines {engines}  sync {sync}  "
                f"pause {pause}  {checks}"
            )
        self._news, self._lines = len(story.news), len(story.steps)

    def _picture(self, story: Story, doing: str) -> Group:
        table = Table(expand=False)
        for name in ("step", "reward", "version", "engines", "sync", "pause", "answers"):
            table.add_column(name, justify="left" if name == "answers" else "right")
        for step in story.steps[-SHOWN_STEPS:]:
            table.add_row(*cells(step))
        engines = ", ".join(
            f"{pod.name} {'current' if pod.gate else pod.note or 'starting'}" for pod in story.engines
        )
        head = f"step {len(story.steps)} of {self._steps}, {time.monotonic() - self._began:.0f} s"
        tail = [Text(line, style="dim") for line in story.news[-SHOWN_NEWS:]]
        return Group(Text(head), table, Text(f"engines: {engines or 'none yet'}"), Text(doing), *tail)

    def verdicts(self, verdicts: list[Verdict]) -> None:
        """The end: each bound, kept or broken."""
        table = Table(title="the demo's bounds", title_justify="left", expand=False)
        for name in ("", "bound", "figures"):
            table.add_column(name, overflow="fold")
        for verdict in verdicts:
            table.add_row("ok" if verdict.kept else "BROKEN", verdict.name, verdict.text)
        self._console.print(table)
