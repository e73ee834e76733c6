"""The course of the trials: what the trainer says comes in, what is to be struck comes out. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.chaos.node.cases import How, NodeCase, Part
from tools.demo.errors import DemoError

CLEAN_STEPS = 2  # steps that reach every engine, before the next fault

Json = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """Find the part's processes now: in the middle of a sync there is no time for it."""

    case: NodeCase


@dataclass(frozen=True)
class Strike:
    """Do it, now: a sync has begun."""

    case: NodeCase


Action = Arm | Strike


@dataclass
class NodeTrial:
    """What one fault showed. Times in milliseconds since 1970; hurt: outcomes of the struck sync, by engine.

    freed_ms: when the part could act again: its continuing, or its container's start; the heal counts from there.
    """

    case: NodeCase
    victim: str = ""
    struck_ms: int = 0
    freed_ms: int = 0
    healed_ms: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    sync_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def heal_seconds(self) -> float:
        """From the part's return until a step reached every engine; 0 where none did."""
        return max(0, self.healed_ms - max(self.struck_ms, self.freed_ms)) / 1000 if self.healed_ms else 0.0

    @property
    def others_hurt(self) -> list[str]:
        """Engines that the struck sync should have reached, and did not."""
        if not (self.case.part.of_engine or self.case.part.beside_the_data):
            return []
        spared = {self.victim} if self.case.part.of_engine else set()
        return [
            f"{name}: {outcome}"
            for name, outcome in self.outcomes.items()
            if outcome != "Current" and name not in spared
        ]


class Course:
    """engines: how many there must be; patience_seconds: of one heal, then the case has failed."""

    def __init__(self, cases: Sequence[NodeCase], engines: int, patience_seconds: float) -> None:
        self._cases = list(cases)
        self._engines = engines
        self._patience_ms = round(1000 * patience_seconds)
        self._clean = 0
        self._armed: NodeCase | None = None
        self._open: NodeTrial | None = None
        self._held = False  # the last part that was struck is still stopped
        self.trials: list[NodeTrial] = []
        self.clean_seconds: list[float] = []  # of syncs that nothing disturbed
        self.lives: list[Json] = []  # of the trainer: the last tally of each

    @property
    def over(self) -> bool:
        """Every case has run, and what it left is healed."""
        done = len(self.trials) == len(self._cases) and self._open is None and not self._held
        return done and self._clean >= CLEAN_STEPS

    @property
    def doing(self) -> str:
        """For people."""
        if self._open is not None:
            return f"{self._open.case.id}: healing"
        return f"{len(self.trials)} of {len(self._cases)} cases; clean steps {self._clean}"

    def said(self, document: Json) -> list[Action]:
        """One event of the trainer's rank 0. Raises DemoError where something is wrong before any fault."""
        match document["event"]:
            case "started":
                self.lives.append({})
            case "publishing" if self._armed is not None and self._open is None:
                return [Strike(self._armed)]
            case "step":
                return self._step(document)
            case "torn" | "stale" | "failed":
                self._found(document)
        return []

    def struck(self, victim: str, now_ms: int) -> None:
        """The armed case has been carried out on that pod ("": no pod)."""
        if self._armed is None:
            raise DemoError("a part was struck though no case is armed")
        self._held = self._armed.how is How.STOP
        self._open = NodeTrial(self._armed, victim, struck_ms=now_ms)
        self.trials.append(self._open)
        self._armed, self._clean = None, 0

    def freed(self, now_ms: int) -> None:
        """The part can act again. Heard after its heal, it corrects that trial."""
        self._held = False
        if self.trials:
            self.trials[-1].freed_ms = max(self.trials[-1].freed_ms, now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        trial = self._open
        if trial is not None and now_ms - max(trial.struck_ms, trial.freed_ms) > self._patience_ms:
            trial.problem = f"not every engine was reached within {self._patience_ms / 1000:.0f} s"
            self._open = None

    def _found(self, document: Json) -> None:
        if document["event"] == "failed":
            # The other rank is gone: this one ends as well, by its collectives, and both start anew.
            if self._open is None or self._open.case.part is not Part.TRAINER:
                self._blame(f"the trainer failed: {document['error']}")
            return
        self._blame(f"{document['event']}: {document['what']}")

    def _blame(self, sentence: str) -> None:
        if self.trials:
            self.trials[-1].findings.append(sentence)
        else:
            raise DemoError(f"before any fault: {sentence}")

    def _step(self, document: Json) -> list[Action]:
        outcomes = {engine["engine"]: engine["outcome"] for engine in document["engines"]}
        whole = len(outcomes) == self._engines and set(outcomes.values()) == {"Current"}
        tally = {key: document[key] for key in ("checked", "torn", "stale")}
        self.lives[-1:] = [tally]
        trial = self._open
        if trial is not None and not trial.outcomes:
            trial.outcomes, trial.sync_seconds = outcomes, document["sync_seconds"]
        # The struck sync itself may have reached everyone: it ended after the fault, which is what counts.
        if trial is not None and whole and document["unix_ms"] > trial.freed_ms:
            trial.healed_ms, self._open = document["unix_ms"], None
            return []
        if not whole:
            self._clean = 0
            return []
        self._clean += 1
        if trial is None and self._clean > 1:
            self.clean_seconds.append(document["sync_seconds"])
        if trial is None and self._armed is None and not self._held and self._clean >= CLEAN_STEPS:
            return self._arm()
        return []

    def _arm(self) -> list[Action]:
        if len(self.trials) == len(self._cases):
            return []
        self._armed = self._cases[len(self.trials)]
        return [Arm(self._armed)]
