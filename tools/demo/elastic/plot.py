"""What happens when: few engines, many, no trainer, the trainer again, fewer. Pure: events in, actions out.

A stage is over when the trainer was told that exactly the engines that there should be serve the version of a step;
that of the missing trainer when both of its pods are gone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tools.demo.story import Event, PodSeen, Scale, TrainerSaid

FEW, MANY, END = 2, 8, 3  # engines; how many are many can be chosen

Json = dict[str, Any]


class Stage(Enum):
    """What is waited for."""

    FEW = "few engines serve"
    MANY = "many engines serve"
    GONE = "the trainer is gone"
    BACK = "the trainer is back, and all engines serve what it publishes"
    END = "fewer engines serve"
    OVER = "all is done"


@dataclass(frozen=True)
class Look:
    """Draw the mapping, and read every engine back."""

    stage: Stage
    version: str


@dataclass(frozen=True)
class KillTrainer:
    """Delete the trainer's pods, without warning."""


Action = Scale | Look | KillTrainer


@dataclass
class Passed:
    """A stage that is over. version: what the engines served then; step: of the trainer's life."""

    stage: Stage
    at_ms: int
    step: int
    version: str
    engines: tuple[str, ...]


@dataclass
class Plot:
    """Feed it with take(). many: engines after scaling up."""

    many: int = MANY
    stage: Stage = Stage.FEW
    passed: list[Passed] = field(default_factory=list)
    lives: list[Json] = field(default_factory=list)  # of the trainer: the last tally of each
    published: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    failure: str = ""

    @property
    def engines(self) -> list[str]:
        """Names of those that are to stay."""
        return sorted(p.name for p in self.pods.values() if p.role == "rollout" and not p.leaving and not p.gone)

    @property
    def wanted(self) -> dict[Stage, int]:
        """How many engines there are at the end of each stage."""
        return {
            Stage.FEW: FEW, Stage.MANY: self.many, Stage.GONE: self.many, Stage.BACK: self.many, Stage.END: END,
        }  # fmt: skip

    @property
    def lineage(self) -> str:
        """Of the last version that was published."""
        return self.steps[-1]["version"].partition(".")[0] if self.steps else ""

    def take(self, event: Event) -> list[Action]:
        """What is to be done at once."""
        match event:
            case PodSeen():
                self.pods[event.name] = event
                return self._gone(event)
            case TrainerSaid(document):
                return self._said(document)
        return []

    def _gone(self, event: PodSeen) -> list[Action]:
        if self.stage is not Stage.GONE or event.role != "trainer" or not event.gone:
            return []
        # One is enough: the ranks live and die together, and the first may be back before the second has gone.
        served = self.passed[-1]
        return self._pass(event.at_ms, served.step, served.version)

    def _said(self, document: Json) -> list[Action]:
        match document["event"]:
            case "started":
                self.lives.append({})
            case "torn" | "stale":
                self.findings.append(f"{document['event']}: {document['what']}")
            case "failed" if self.stage not in (Stage.GONE, Stage.BACK):
                self.failure = f"rank {document['rank']} of the trainer failed: {document['error']}"
            case "step":
                return self._step(document)
        return []

    def _step(self, document: Json) -> list[Action]:
        self.steps.append(document)
        self.published.add(document["version"])
        self.lives[-1:] = [{key: document[key] for key in ("checked", "torn", "stale")}]
        served = {engine["engine"] for engine in document["engines"] if engine["outcome"] == "Current"}
        wanted = self.wanted.get(self.stage)
        if (
            wanted is None
            or self.stage is Stage.GONE
            or len(self.engines) != wanted
            or not len(served) == wanted == len(document["engines"])
        ):
            return []
        if self.stage is Stage.BACK and self.lineage == self.passed[-1].version.partition(".")[0]:
            return []  # a line of the former life that came late
        return self._pass(document["unix_ms"], document["step"], document["version"])

    def _pass(self, at_ms: int, step: int, version: str) -> list[Action]:
        self.passed.append(Passed(self.stage, at_ms, step, version, tuple(self.engines)))
        look = Look(self.stage, version)
        following: dict[Stage, tuple[Stage, Callable[[], list[Action]]]] = {
            Stage.FEW: (Stage.MANY, lambda: [Scale(self.many)]),
            Stage.MANY: (Stage.GONE, lambda: [KillTrainer()]),
            Stage.GONE: (Stage.BACK, list),
            Stage.BACK: (Stage.END, lambda: [Scale(END)]),
            Stage.END: (Stage.OVER, list),
        }
        self.stage, actions = following[self.stage]
        return [look, *actions()]
