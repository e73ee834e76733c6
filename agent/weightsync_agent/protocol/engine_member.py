"""One pod of an engine of several, beside the leader's. Rules:

- it obeys the pod that its own environment calls the leader, and no other; what was held for an older leader is given
  free, and what was held for an older life of the leader's agent once the next one is not busy;
- what a leader asks counts for this pod and this life of its agent alone: an agent that restarted has forgotten what
  it was granted, and a pod that took another's place never knew it;
- the engine's processes here are told to apply only what is held: the very version, from the very grants, between the
  seal and the release, or an arena that is lent to certify the engine;
- nothing is granted meanwhile: bytes that are being applied do not change;
- what is held for nothing that runs is given free: the answer to a question asked since says so. What is lent stays
  until the engine is whole again, or waits for a sync: a leader whose agent died in a certificate goes on with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.members import Call, EngineOf
from weightsync_agent.journal.records import BASE
from weightsync_agent.protocol.table import Machine, Row


class MemberState(Enum):
    """What the pod's ranks are to their engine."""

    ALONE = "no leader has answered yet"
    FOLLOWING = "its ranks are its leader's engine's; their arenas may be granted"
    HELD = "its arenas stay as they were sealed: the leader commits"
    LENT = "its arenas are lent: the leader certifies the engine on its own checkpoint"


@dataclass(frozen=True)
class LeaderAnswered:
    """asked_at: when the question was sent to which this is the answer."""

    engine: EngineOf
    asked_at: float


@dataclass(frozen=True)
class HoldAsked:
    """The leader commits, or gives the engine back what it had. grants: by rank."""

    version: Version
    grants: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Released:
    """The leader's commit has ended. grants: that were held for it; None: whatever is held."""

    grants: tuple[tuple[int, str], ...] | None = None


@dataclass(frozen=True)
class LendAsked:
    """The leader certifies the engine. certificate: which try of it."""

    certificate: str


@dataclass(frozen=True)
class TakeBack:
    """Action: what lies in the lent arenas is nothing any more, and they may be granted again."""


@dataclass(frozen=True)
class LetGo:
    """Action: these grants' arenas may be granted again."""

    grants: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Tell:
    """Action: what we say of ourselves changed."""


class EngineMember(Machine[MemberState]):
    """See the module's rules. uid: of this pod; life: of this agent."""

    def __init__(self, uid: str, life: str) -> None:
        super().__init__(MemberState.ALONE)
        self.uid = uid
        self.life = life
        self.engine: EngineOf | None = None
        self.version: Version | None = None  # that is held
        self.grants: tuple[tuple[int, str], ...] = ()
        self.held_at = 0.0
        self.certificate = ""  # that the arenas are lent for
        self.filled = False  # its copy is being made, or was
        self.over: set[str] = set()  # certificates that were begun before

    # --- who may ask, and what ---

    def check_call(self, call: Call) -> None:
        """Raises Refused where another pod, another life of this agent, or another pod's leader is meant."""
        if call.target != self.uid:
            raise Refused(f"pod {call.target} is meant, and this is {self.uid}", reason="WrongPod")
        if call.life != self.life:
            raise Refused(
                f"life {call.life} of the agent of pod {self.uid} is meant, and this is {self.life}: "
                "it has restarted, and has forgotten what it was granted",
                reason="WrongLife",
            )
        if self.engine is None or self.engine.leader != call.leader:
            known = self.engine.leader if self.engine is not None else "nobody yet"
            raise Refused(
                f"pod {call.leader} does not lead the engine of pod {self.uid}: {known} does",
                reason="NotLeader",
                status=403,
            )

    def check_apply(self, root: str, grants: Mapping[int, str]) -> None:
        """Raises Refused unless this is what is held: that version, from those grants; or what is lent."""
        if self.state is MemberState.LENT and root == BASE.root:
            return
        if self.state is not MemberState.HELD or self.version is None or self.version.root != root:
            known = self.version.name if self.version is not None else "nothing"
            raise Refused(f"pod {self.uid} holds {known} to be applied, not root {root}", reason="NotHeld")
        held = dict(self.grants)
        wrong = next((rank for rank, grant in grants.items() if held.get(rank) != grant), None)
        if wrong is not None:
            raise Refused(f"rank {wrong}: grant {held.get(wrong)} is held, not {grants[wrong]}", reason="NotHeld")

    def check_certificate(self, certificate: str, step: str) -> None:
        """Raises Refused for a step that comes late, or again: it would destroy the copy of the checkpoint."""
        if step == "Lend":
            late = certificate in self.over
        else:
            late = self.state is not MemberState.LENT or certificate != self.certificate
        if late or (step == "Fill" and self.filled):
            raise Refused(f"step {step} of certificate {certificate} comes too late", reason="CertificateOver")
        self.filled = self.filled or step == "Fill"

    def check_grantable(self) -> None:
        """Raises Refused while no grant may be given."""
        if self.state in (MemberState.HELD, MemberState.LENT):
            raise Refused("the engine is being committed to, or certified", reason="Busy", status=503)
        if self.state is MemberState.ALONE or self.engine is None or not self.engine.ready:
            raise Refused(
                f"pod {self.uid}: the engine's leader does not say that it is there",
                reason="EngineSilent",
                status=503,
            )

    # --- rows ---

    def _runs(self, event: LeaderAnswered) -> bool:
        # In whatever life of its agent: a new one may have asked for this hold before it first answered us.
        same = self.engine is not None and self.engine.leader == event.engine.leader
        return same and (event.engine.busy or event.asked_at <= self.held_at)

    def _is_held(self, event: Released) -> bool:
        return event.grants is None or event.grants == self.grants

    def _is_lent(self, event: LeaderAnswered) -> bool:
        return event.engine.busy or not event.engine.ready or event.asked_at <= self.held_at

    def _learn(self, event: LeaderAnswered, now: float) -> list[object]:
        changed = self.engine != event.engine
        self.engine = event.engine
        return [Tell()] if changed else []

    def _free(self, event: LeaderAnswered, now: float) -> list[object]:
        return [*self._let_go(Released(), now), *self._learn(event, now)]

    def _lend(self, event: LendAsked, now: float) -> list[object]:
        before = [LetGo(self.grants)] if self.grants else []
        self.version, self.grants, self.held_at = None, (), now
        self.certificate, self.filled = event.certificate, False
        self.over.add(event.certificate)
        return list[object](before)

    def _take_back(self, event: Released, now: float) -> list[object]:
        return [TakeBack()]

    def _unlend(self, event: LeaderAnswered, now: float) -> list[object]:
        return [TakeBack(), *self._learn(event, now)]

    def _hold(self, event: HoldAsked, now: float) -> list[object]:
        before = [LetGo(self.grants)] if self.grants and self.grants != event.grants else []
        self.version, self.grants, self.held_at = event.version, event.grants, now
        return list[object](before)

    def _let_go(self, event: Released, now: float) -> list[object]:
        grants, self.grants, self.version = self.grants, (), None
        return [LetGo(grants)]


_S = MemberState
EngineMember.table = {
    (_S.ALONE, LeaderAnswered): (Row(_S.FOLLOWING, EngineMember._learn, name="a leader is known"),),
    (_S.FOLLOWING, LeaderAnswered): (Row(_S.FOLLOWING, EngineMember._learn, name="the engine as it is now"),),
    (_S.HELD, LeaderAnswered): (
        Row(_S.HELD, EngineMember._learn, EngineMember._runs, "the commit runs, or the answer is older than it"),
        Row(_S.FOLLOWING, EngineMember._free, name="no commit of this leader runs: give free"),
    ),
    (_S.FOLLOWING, HoldAsked): (Row(_S.HELD, EngineMember._hold, name="the leader commits"),),
    (_S.HELD, HoldAsked): (Row(_S.HELD, EngineMember._hold, name="it commits anew; the release was lost"),),
    (_S.HELD, Released): (
        Row(_S.FOLLOWING, EngineMember._let_go, EngineMember._is_held, "the commit has ended"),
        Row(_S.HELD, name="of a commit before this one: it came late"),
    ),
    (_S.FOLLOWING, LendAsked): (Row(_S.LENT, EngineMember._lend, name="the leader certifies the engine"),),
    (_S.HELD, LendAsked): (Row(_S.LENT, EngineMember._lend, name="its commit is over; the release was lost"),),
    (_S.LENT, LendAsked): (Row(_S.LENT, EngineMember._lend, name="it certifies the engine anew"),),
    (_S.LENT, Released): (Row(_S.FOLLOWING, EngineMember._take_back, name="certified, or given up"),),
    (_S.LENT, LeaderAnswered): (
        Row(_S.LENT, EngineMember._learn, EngineMember._is_lent, "it is not certified yet, or the answer is older"),
        Row(_S.FOLLOWING, EngineMember._unlend, name="it needs no certificate any more: take back"),
    ),
    (_S.FOLLOWING, Released): (Row(_S.FOLLOWING, name="released before"),),
}
