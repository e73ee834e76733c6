"""Which version one engine serves. Rules:

- torn first: the journal says Torn and the engine is paused before a byte may reach engine memory, and both stay
  so until every step of a commit is done; a failed step leaves it paused, and a commit starts from the pause;
- a new life of the engine's process is paused at once unless it never held a version, and gets its version back
  from the sealed arena where there is one;
- a commit for the version that it serves already is answered at once: commits are idempotent;
- within a lineage the number never falls, whatever became of a commit, and a number has one root;
- no life of the engine is trusted before it is certified: its first commit applies and reads back, twice, and one
  whose parameters cannot be given is refused by name and stays paused;
- the gate is True only while the engine is whole, and does not flip in a routine commit;
- an engine in Direct mode is let through the same steps before its first writer: only then it is OPEN to them, Torn
  as after a failed commit, until the commit of that sync; its gate stays as it is, but not for long;
- a welcome is for the life that it finds, and ends with its silence: a version may have been decided meanwhile;
- an engine of several pods lives as all of them do: where another pod took a member's place it is another life, which
  closes the gate; where only a member's agent restarted, the engine is looked at again, and serves on meanwhile;
- a torn engine that shows a name which the last commit cannot have left is another process, and runs unpaused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weightsync.version import Version, torn_name, version_name
from weightsync_agent.journal.records import Fresh, Keep, PauseAndReseed, Reapply, Recovery
from weightsync_agent.protocol.crew import Pod, replaced
from weightsync_agent.protocol.table import Machine, Row


class LeaderState(Enum):
    """What the engine is."""

    ABSENT = "it does not answer"
    LOOKING = "it answers; its parameters are compared with its layout, its arenas are pinned"
    REFUSED = "its parameters are not what its layout says: it is never written to"
    FRESH = "it serves the checkpoint that it started with"
    CURRENT = "it serves one whole version"
    OPENING = "it is being journalled as torn and paused, before writers are let into its memory"
    COMMITTING = "it is paused, or about to be; its memory may be torn"
    REAPPLYING = "it is paused, and gets its version back from the arenas that are here"
    TORN = "it is paused and waits for a commit"


@dataclass(frozen=True)
class Answers:
    """The engine answers."""


@dataclass(frozen=True)
class Silent:
    """The engine does not answer."""


@dataclass(frozen=True)
class Seen:
    """It was described.

    problem: why it cannot be fed, "" where it can; paused: it was left so, since its memory cannot be trusted; name:
    its version's, "" where unknown; floor: the journal's version, below which no commit is taken; certified: one that
    is whole has given back, in this life, what was applied to it; pods: the others of the engine, as they were then.
    """

    incarnation: str
    recovery: Recovery
    problem: str = ""
    name: str = ""
    paused: bool = False
    floor: Version | None = None
    certified: bool = True
    pods: frozenset[Pod] = frozenset()


@dataclass(frozen=True)
class LookFailed:
    """It could not be described."""

    message: str


@dataclass(frozen=True)
class LifeChanged:
    """It names another version than the one that it was left with: another process."""

    found: str


@dataclass(frozen=True)
class CrewChanged:
    """The engine's other pods are not those that were looked at. replaced: another pod, not another agent in one."""

    replaced: bool
    message: str


@dataclass(frozen=True)
class CommitAsked:
    """The arenas are sealed as this version. steps: engines/sequence.py for this engine."""

    version: Version
    grants: tuple[tuple[int, str], ...]
    steps: Sequence[Enum]


@dataclass(frozen=True)
class OpenAsked:
    """Writers of this sync are to be let into the engine's memory.

    version: what they write, its root not known yet; steps: engines/sequence.py, the first of which names the writers
    on disk and is run for each rank of the sync.
    """

    sync: str
    version: Version
    steps: Sequence[Enum]


@dataclass(frozen=True)
class ReapplyFailed:
    """The version could not be given back before a step of it ran."""

    message: str


@dataclass(frozen=True)
class StepDone:
    """The running step succeeded."""


@dataclass(frozen=True)
class StepFailed:
    """The running step failed; whether it had an effect is unknown."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True)
class Welcomed:
    """The coordinator knows no version; open: the initial gate."""

    open: bool


@dataclass(frozen=True)
class Look:
    """Action: describe the engine, compare, pin; then Seen or LookFailed."""


@dataclass(frozen=True)
class RunStep:
    """Action: run one step of a commit; then StepDone or StepFailed."""

    step: Enum
    version: Version
    grants: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class KeepPaused:
    """Action: pause the engine until it is, in the background."""

    reason: str


@dataclass(frozen=True)
class AnswerOpen:
    """Action: writers may be let in."""


@dataclass(frozen=True)
class AnswerCommit:
    """Action: every step is done."""


@dataclass(frozen=True)
class AnswerFailure:
    """Action: the commit failed."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True)
class SetGate:
    """Action: the pod's readiness gate."""

    open: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Announce:
    """Action: what we say of ourselves changed."""


class EngineLeader(Machine[LeaderState]):
    """See the module's rules."""

    def __init__(self) -> None:
        super().__init__(LeaderState.ABSENT)
        self.incarnation = ""
        self.version: Version | None = None
        self.floor: Version | None = None  # the newest that a commit was begun for
        self.pods: frozenset[Pod] = frozenset()  # the engine's others, as they were looked at
        self.certified = False  # this life gave back, twice, what was applied
        self.problem = ""
        self.held = False  # refused, and paused: its memory cannot be trusted
        self.steps: tuple[Enum, ...] = ()
        self.at = 0
        self.target: Version | None = None
        self.grants: tuple[tuple[int, str], ...] = ()
        self.names: frozenset[str] = frozenset()  # that a torn engine of the same life may show; empty: any
        self.welcomed: bool | None = None  # the initial gate of the last welcome

        self.opened = ""  # the sync whose writers were let into its memory; "" none
        self.opened_at = 0.0

    def expects(self, weight_version: str, base: str) -> bool:
        """The engine's name of its version is the one that it was left with. base: what a fresh one said."""
        if self.state is LeaderState.CURRENT and self.version is not None:
            return weight_version == self.version.name
        if self.state is LeaderState.FRESH:
            return weight_version == base
        if self.state in (LeaderState.TORN, LeaderState.REAPPLYING) and self.names:
            return weight_version in self.names
        return True

    def _gone(self, event: Silent, now: float) -> list[object]:
        self.incarnation, self.welcomed = "", None
        return [SetGate(False, "EngineGone", "the engine does not answer"), Announce()]

    def _seen(self, event: Seen, now: float) -> list[object]:
        self.incarnation, self.problem, self.pods = event.incarnation, event.problem, event.pods
        self.names = frozenset({event.name} - {""})
        self.floor, self.held = event.floor, event.paused
        # What serves a version in the life that the journal speaks of was certified before it did.
        self.certified = isinstance(event.recovery, Keep | Fresh) and not event.problem and event.certified
        self.opened = ""
        if event.problem:
            self.state = LeaderState.REFUSED
            held: list[object] = [KeepPaused(event.problem)] if event.paused else []
            return [SetGate(False, "EngineRefused", event.problem), *held, Announce()]
        match event.recovery:
            case Keep(version):
                self.state, self.version = LeaderState.CURRENT, version
                return [SetGate(True, "Current", version.name), Announce()]
            case Fresh():
                self.state, self.version = LeaderState.FRESH, None
                return [*self._initial_gate(), Announce()]
            case PauseAndReseed(reason):
                self.state, self.version = LeaderState.TORN, None
                return [SetGate(False, "Torn", reason), KeepPaused(reason), Announce()]
            case Reapply(version, _, grants, reason):
                self.state, self.target = LeaderState.REAPPLYING, version
                self.version = None
                self.grants = tuple(sorted(grants.items()))
                return [SetGate(False, "Reapplying", reason), KeepPaused(reason), Announce()]

    def _again(self, event: LookFailed, now: float) -> list[object]:
        return []

    def _changed(self, event: LifeChanged, now: float) -> list[object]:
        reason = f"the engine's process was replaced: it names version {event.found!r}"
        return [SetGate(False, "EngineRestarted", reason), Look()]

    def _crew_changed(self, event: CrewChanged, now: float) -> list[object]:
        # What a replaced pod held, nobody holds: the engine is not whole, whatever it answers.
        closed = [SetGate(False, "EngineRestarted", event.message)] if event.replaced else []
        return [*closed, Look()]

    def crew_changed(self, pods: frozenset[Pod]) -> CrewChanged | None:
        """What to tell where these are not the pods that were looked at."""
        if pods == self.pods or self.state in (LeaderState.ABSENT, LeaderState.LOOKING):
            return None
        listed = ", ".join(f"pod {p.node} is {p.uid} (agent {p.life})" for p in sorted(pods - self.pods, key=_place))
        return CrewChanged(
            replaced(self.pods, pods), f"another pod is part of the engine: {listed or 'one has left'}"
        )

    def _commit(self, event: CommitAsked, now: float) -> list[object]:
        if self.state is LeaderState.CURRENT and self.version is not None:
            self.names = frozenset({self.version.name})
        elif self.state is LeaderState.FRESH:
            self.names = frozenset()  # the base checkpoint's: a restart shows it again, and tells nothing
        self.welcomed, self.opened = None, ""
        self.target, self.floor, self.grants = event.version, event.version, event.grants
        self.steps, self.at = tuple(event.steps), 0
        return [self._run()]

    def _let_in(self, event: OpenAsked, now: float) -> list[object]:
        if self.state is LeaderState.CURRENT and self.version is not None:
            self.names = frozenset({self.version.name})
        elif self.state is LeaderState.FRESH:
            self.names = frozenset()  # as in a commit
        again = self.opened == event.sync
        closed: list[object] = []
        if self.opened and not again:
            closed = [SetGate(False, "Torn", f"the sync that wrote into it has ended; {event.version.name} is next")]
        self.welcomed, self.target, self.grants = None, event.version, ()
        self.opened = event.sync
        self.steps, self.at = tuple(event.steps[:1] if again else event.steps), 0
        return [*closed, self._run()]

    def _opened(self, event: StepDone, now: float) -> list[object]:
        self.version, self.opened_at = None, now
        if self.target is not None:
            self.names = frozenset({torn_name(self.target.name)})
        return [AnswerOpen()]

    def _waits(self, event: Answers, now: float) -> list[object]:
        if not self.opened or now < self.opened_at + OPEN_SECONDS:
            return []
        self.opened = ""
        return [SetGate(False, "Torn", f"writers were let in {OPEN_SECONDS:g} s ago, and no commit has come")]

    def _run(self) -> RunStep:
        if self.target is None:
            raise ValueError("a commit without a version")
        return RunStep(self.steps[self.at], self.target, self.grants)

    def _step(self, event: StepDone, now: float) -> list[object]:
        self.at += 1
        return [self._run()]

    def _done(self, event: StepDone, now: float) -> list[object]:
        self.version, self.certified = self.target, True
        return [AnswerCommit()]

    def _failed(self, event: StepFailed, now: float) -> list[object]:
        step = self.steps[self.at].name
        self.names, self.opened = self._left_with(), ""
        message = f"step {step} of {self.target.name if self.target else '?'}: {event.message}"
        self.version = None
        return [
            SetGate(False, "Torn", message),
            KeepPaused(message),
            AnswerFailure(event.reason, message, event.retryable),
        ]

    def _uncertified(self, event: StepFailed, now: float) -> list[object]:
        self.version, self.problem, self.held = None, event.message, True
        return [
            SetGate(False, "EngineRefused", event.message),
            KeepPaused(event.message),
            AnswerFailure(event.reason, event.message, False),
            Announce(),
        ]

    def _another_life(self, event: StepFailed, now: float) -> list[object]:
        self.version, self.opened = None, ""
        return [
            SetGate(False, "EngineRestarted", event.message),
            AnswerFailure(event.reason, event.message, True),
            Look(),
        ]

    def _refuse_older(self, event: CommitAsked, now: float) -> list[object]:
        return [AnswerFailure("StaleVersion", self.older(event.version), False)]

    def older(self, version: Version) -> str:
        """Why this version may not follow the newest that a commit was begun for; "" where it may."""
        floor = self.floor
        if outdated := self.outdated(version.lineage, version.number):
            return outdated
        if floor is not None and version.name == floor.name and version.root != floor.root:
            return f"version {version.name} has root {version.root}, here it had {floor.root}: one number, one root"
        return ""

    def _not_reapplied(self, event: ReapplyFailed, now: float) -> list[object]:
        return [SetGate(False, "Torn", event.message)]

    def outdated(self, lineage: str, number: int) -> str:
        """Why no bytes of that version are wanted any more: it could never be committed; "" where they may be."""
        floor = self.floor
        if floor is None or floor.lineage != lineage or number >= floor.number:
            return ""
        return f"version {version_name(lineage, number)} is older than the engine's {floor.name}"

    def _left_with(self) -> frozenset[str]:
        """The names that the engine may show after the running step failed: a failed call may have had its effect."""
        if self.target is None:
            return frozenset()
        torn, whole = torn_name(self.target.name), self.target.name
        done, running = [step.name for step in self.steps[: self.at]], self.steps[self.at].name
        if "MARK_CURRENT" in done:
            return frozenset({whole})
        if running == "MARK_CURRENT":
            return frozenset({torn, whole})
        if "MARK_TORN" in done:
            return frozenset({torn})
        return self.names | {torn} if self.names and running == "MARK_TORN" else self.names

    def _welcome(self, event: Welcomed, now: float) -> list[object]:
        self.welcomed = event.open
        return self._initial_gate()

    def _initial_gate(self) -> list[object]:
        match self.welcomed:
            case None:
                return []
            case True:
                return [SetGate(True, "BaseCheckpoint", "nothing has been published yet")]
            case False:
                return [SetGate(False, "InitialGateClosed", "nothing has been published yet")]

    @property
    def stays_paused(self) -> bool:
        """It may not answer before a commit has succeeded, or another life of it was seen."""
        torn = (LeaderState.TORN, LeaderState.REAPPLYING)
        return self.state in torn or (self.state is LeaderState.REFUSED and self.held)

    def serves(self, version: Version) -> bool:
        """The engine holds that version whole."""
        return self.state is LeaderState.CURRENT and self.version == version


def _place(pod: Pod) -> int:
    return pod.node


_S = LeaderState
OPEN_SECONDS = 30.0  # that an open engine keeps its gate: a routine sync costs the API server no call
NOT_CERTIFIED = "NotCertified"
ANOTHER_LIFE = "EngineRestarted"  # the hook's word: the process that answers is not the one that was looked at
_LOOKED = (_S.REFUSED, _S.CURRENT, _S.FRESH, _S.TORN, _S.REAPPLYING)
_OLDER = Row(None, EngineLeader._refuse_older, lambda m, e: bool(m.older(e.version)), "older: refused", _LOOKED)
EngineLeader.table = {
    (_S.ABSENT, Answers): (Row(_S.LOOKING, lambda m, e, now: [Look()], name="look at it"),),
    (_S.ABSENT, Silent): (Row(_S.ABSENT, name="still silent"),),
    (_S.ABSENT, LookFailed): (Row(_S.ABSENT, name="of a look that its silence ended"),),
    (_S.LOOKING, Silent): (Row(_S.ABSENT, EngineLeader._gone, name="gone"),),
    (_S.LOOKING, Answers): (Row(_S.LOOKING, name="being looked at"),),
    (_S.LOOKING, Seen): (Row(None, EngineLeader._seen, name="what its journal and arenas allow", may=_LOOKED),),
    (_S.LOOKING, LookFailed): (Row(_S.ABSENT, EngineLeader._again, name="look again when it answers"),),
    **{
        (state, event): row
        for state in _LOOKED
        for event, row in (
            (Answers, (Row(state, EngineLeader._waits, name="as before; a gate that was left open is closed"),))
            if state is _S.TORN
            else (Answers, (Row(state, name="as before"),)),
            (Silent, (Row(_S.ABSENT, EngineLeader._gone, name="gone"),)),
            (LifeChanged, (Row(_S.LOOKING, EngineLeader._changed, name="another life: look at it"),)),
            (CrewChanged, (Row(_S.LOOKING, EngineLeader._crew_changed, name="other pods, or agents: look at them"),)),
        )
    },
    **{
        (state, CommitAsked): (_OLDER, Row(_S.COMMITTING, EngineLeader._commit, name="torn first, then apply"))
        for state in (_S.FRESH, _S.TORN, _S.REAPPLYING)
    },
    (_S.CURRENT, CommitAsked): (
        Row(_S.CURRENT, lambda m, e, now: [AnswerCommit()], lambda m, e: m.serves(e.version), "served already"),
        _OLDER,
        Row(_S.COMMITTING, EngineLeader._commit, name="torn first, then apply"),
    ),
    **{
        (state, OpenAsked): (Row(_S.OPENING, EngineLeader._let_in, name="torn first, then let writers in"),)
        for state in (_S.FRESH, _S.CURRENT, _S.TORN)
    },
    (_S.OPENING, StepDone): (
        Row(_S.OPENING, EngineLeader._step, lambda m, e: m.at + 1 < len(m.steps), "the next step"),
        Row(_S.TORN, EngineLeader._opened, name="paused and journalled: writers may be let in"),
    ),
    (_S.OPENING, StepFailed): (
        Row(
            _S.LOOKING, EngineLeader._another_life, lambda m, e: e.reason == ANOTHER_LIFE, "another life: look at it"
        ),
        Row(_S.TORN, EngineLeader._failed, name="nobody is let in; paused until a commit succeeds"),
    ),
    (_S.OPENING, Answers): (Row(_S.OPENING, name="as before"),),
    (_S.OPENING, Silent): (Row(_S.OPENING, name="the running step will fail"),),
    (_S.OPENING, LifeChanged): (Row(_S.OPENING, name="the running step will fail, or the next look will tell"),),
    (_S.COMMITTING, StepDone): (
        Row(_S.COMMITTING, EngineLeader._step, lambda m, e: m.at + 1 < len(m.steps), "the next step"),
        Row(_S.CURRENT, EngineLeader._done, name="the version is served"),
    ),
    (_S.COMMITTING, StepFailed): (
        Row(_S.REFUSED, EngineLeader._uncertified, lambda m, e: e.reason == NOT_CERTIFIED, "it cannot be certified"),
        Row(
            _S.LOOKING, EngineLeader._another_life, lambda m, e: e.reason == ANOTHER_LIFE, "another life: look at it"
        ),
        Row(_S.TORN, EngineLeader._failed, name="paused until a commit succeeds"),
    ),
    (_S.REAPPLYING, ReapplyFailed): (Row(_S.TORN, EngineLeader._not_reapplied, name="it waits for a sync"),),
    (_S.COMMITTING, Answers): (Row(_S.COMMITTING, name="as before"),),
    (_S.COMMITTING, Silent): (Row(_S.COMMITTING, name="the running step will fail"),),
    (_S.COMMITTING, LifeChanged): (
        Row(_S.COMMITTING, name="the running step will fail, or the next look will tell"),
    ),
    (_S.COMMITTING, CrewChanged): (
        Row(_S.COMMITTING, name="the running step will fail, or the next look will tell"),
    ),
    (_S.FRESH, Welcomed): (Row(_S.FRESH, EngineLeader._welcome, name="the initial gate"),),
    **{
        (state, Welcomed): (Row(state, name="not fresh: it comes again to one that is"),)
        for state in _S
        if state is not _S.FRESH
    },
}
