"""The invariants, one function each: they raise Violation, and are called where the thing that they speak of changes.

Each looks only at what the event touched. Number 0 is for a machine that raises. Those of what a source does with its
arenas, orders and workers stand in source_invariants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tools.simulate.memory import Content
from weightsync.arena import ArenaState
from weightsync_agent.journal.records import JournalState

if TYPE_CHECKING:
    from tools.simulate.serving import Serving
    from tools.simulate.transfer import Piece
    from weightsync.wire.v1 import Decided
    from weightsync_agent.journal.records import Journal

SENTENCES = {
    0: "no machine meets an event that it cannot take",
    1: "an engine that can answer holds on all ranks the bytes of exactly one version, and its label says which",
    2: "before the first byte into engine memory it is paused and journalled",
    3: "quiet before verified",
    4: "no late byte lands in a region between verified and the next grant",
    5: "no address range is granted twice while a grant is open",
    6: "no byte of a bucket changes between filled and all its submits terminal",
    7: "applied only if every bucket of every rank is verified against the root, in this grant",
    8: "after term t nothing of an earlier one has effect; one coordinator per term",
    9: "one root per lineage and number; an engine's number never falls within a lineage",
    10: "once one engine committed, nobody aborts; under Barrier nobody commits before all are staged or excluded",
    11: "an outcome Current is true; each engine of the snapshot, which all its ranks fill, gets one in time",
    12: "with two arenas copied() does not depend on targets, but for the decision before",
    13: "an engine's commit time does not depend on another's faults (under Barrier: beyond the deadline)",
    14: "each byte has one owning stage",
    15: "when faults cease every live engine becomes current, none stays paused, lag is at most one version",
}


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(f"invariant {number} ({SENTENCES[number]}): {detail}")
        self.number = number
        self.detail = detail


def whole(engine: Serving, steps: Mapping[str, int]) -> None:
    """1."""
    if not engine.answers:
        return
    first = engine.memory[0][0]
    step = first[0]
    for rank, row in enumerate(engine.memory):
        for content in row:
            if content != first or content[-1] != step:
                raise Violation(1, f"{engine.name} answers, and rank {rank} holds {row} beside {first}")
    if steps.get(engine.name_shown) != step:
        raise Violation(1, f"{engine.name} answers from step {step} and calls it {engine.name_shown}")
    if engine.cached not in {None, step} and not engine.in_place:
        raise Violation(1, f"{engine.name} answers from step {step} with a cache of step {engine.cached}")


def torn_first(engine: Serving, journal: Journal | None, version: str | None, *, unreadable: bool = False) -> None:
    """2. journal: the record on disk, None where it is missing or torn; an unreadable one means torn.

    version: what is written, None where nobody has decided it.
    """
    if not engine.paused:
        raise Violation(2, f"{engine.name} is written to and not paused")
    if unreadable:
        return
    if journal is None or journal.state is not JournalState.TORN or version not in {None, journal.version.name}:
        found = f"{journal.state.value} {journal.version.name}" if journal else "nothing"
        raise Violation(2, f"{engine.name} is written to with {version}, and its journal says {found}")


def quiet_before_verified(where: str, bucket: int, flying: Iterable[Piece]) -> None:
    """3."""
    for piece in flying:
        if piece.bucket == bucket:
            raise Violation(3, f"{where}: bucket {bucket} is verified while a piece of {piece.writer} is on its way")


def no_late_byte(where: str, state: ArenaState, verified: bool, bucket: int, writer: str) -> None:
    """4. state: the arena's, as its header says."""
    if state is not ArenaState.FILLING:
        raise Violation(4, f"{where}: a byte of {writer} lands in bucket {bucket} of an arena that is {state.name}")
    if verified:
        raise Violation(4, f"{where}: a byte of {writer} lands in bucket {bucket}, which is verified")


def granted_once(where: str, grant: str, flying: Sequence[Piece]) -> None:
    """5, at a grant."""
    for piece in flying:
        raise Violation(
            5, f"{where}: granted as {grant[-6:]} while {piece.writer} writes under {piece.call.grant[-6:]}"
        )


def landed_in_grant(where: str, current: str, grant: str, writer: str) -> None:
    """5, when a piece lands."""
    if current != grant:
        raise Violation(5, f"{where}: a byte of {writer} under {grant[-6:]} lands in grant {current[-6:]}")


def nothing_follows(where: str, writer: str, flying: int) -> None:
    """5. Whoever closes a writer's part of a grant says that no byte of it will land any more."""
    if flying:
        raise Violation(5, f"{where}: the part of {writer} is closed while {flying} pieces of it are on their way")


def verified_before_applied(where: str, content: Sequence[Content], step: int | None, lacking: int) -> None:
    """7. step: the version's; lacking: buckets that this side has not verified in the grant."""
    for bucket, found in enumerate(content):
        if any(piece != step for piece in found):
            raise Violation(7, f"{where}: bucket {bucket} holds {found} and is applied as step {step}")
    if lacking:
        raise Violation(7, f"{where}: {lacking} buckets are applied that were not verified in this grant")


def term_holds(where: str, what: str, term: int, highest: int) -> None:
    """8."""
    if term < highest:
        raise Violation(8, f"{where}: {what} of term {term} after term {highest}")


def not_over(where: str, term: int, newest: int) -> None:
    """8. newest: the term that holds now."""
    if term >= newest:
        raise Violation(8, f"{where}: refused as of a term that is over, in term {term} of {newest}")


def not_ended(where: str, what: str, sync: str, newest: int) -> None:
    """8. newest: the number of the last sync that was heard of here, of those of the same coordinator."""
    if int(sync.rpartition("/")[2]) < newest:
        raise Violation(8, f"{where}: {what} of sync {sync}, after its coordinator's sync {newest}")


def no_second(where: str, term: int, coordinator: str, known: str) -> None:
    """8. known: who uses that term."""
    if coordinator == known:
        raise Violation(8, f"{where}: {coordinator} is refused as a second coordinator in its own term {term}")


def one_coordinator(term: int, coordinator: str, known: str) -> None:
    """8."""
    if coordinator != known:
        raise Violation(8, f"term {term} is used by {coordinator} and by {known}")


def one_root(name: str, root: str, known: str) -> None:
    """9."""
    if root != known:
        raise Violation(9, f"{name} is decided as {root[:8]} and was {known[:8]}")


def decided_as_it_is(name: str, wrong: Sequence[str]) -> None:
    """9. wrong: programs whose decided root is not that of the bytes which were published under the name."""
    if wrong:
        raise Violation(9, f"{name} is decided with a root of {wrong[0]} that is not that of its bytes")


def never_falls(where: str, name: str, number: int, highest: int) -> None:
    """9."""
    if number < highest:
        raise Violation(9, f"{where} serves {name} after number {highest} of that lineage")


def decided_first(name: str, durable: str) -> None:
    """10. durable: the version in the decision's file of the coordinator that sends the commit."""
    if name != durable:
        raise Violation(10, f"{name} is committed while the decision on disk is {durable or 'none'}")


def decided_before(where: str, name: str, root: str, decided: str) -> None:
    """10. decided: the root of that version in some decision on disk, "" where there is none."""
    if root != decided:
        raise Violation(10, f"{where} takes {name} of root {root[:8]} over, and decided is {decided[:8] or 'none'}")


def takes_no_older(where: str, own: Decided, decided: Decided) -> None:
    """9, and 8 for a decision of an earlier term than the engine's last one. What an engine takes over by itself."""
    before, after = own.version, decided.version
    if before.lineage == after.lineage and after.number < before.number:
        raise Violation(9, f"{where} takes {after.name} over, and was told to serve {before.name}")
    if before.lineage != after.lineage and decided.term < own.term:
        raise Violation(8, f"{where} takes {after.name} of term {decided.term} over after one of term {own.term}")


def not_ended_before(name: str, *, ended: bool) -> None:
    """10. ended: its coordinator has told its publishers that it was given up."""
    if ended:
        raise Violation(10, f"the decision on {name} goes to disk, and its publishers were told that it was given up")


def all_staged(name: str, unready: Sequence[str]) -> None:
    """10. unready: members that are neither staged nor excluded."""
    if unready:
        raise Violation(10, f"{name} is committed while {', '.join(unready)} are not staged")


def not_aborted(name: str, committed: bool, reason: str) -> None:
    """10."""
    if committed:
        raise Violation(10, f"{name} was committed by an engine and is aborted: {reason}")


def honest(engine: str, name: str, served: bool) -> None:
    """11."""
    if not served:
        raise Violation(11, f"{engine} is said to be current with {name}, and never answered from it in that life")


def told_of(engine: str, name: str, outcome: str) -> None:
    """11. An engine whose commit was answered with the version, in the life that was meant."""
    if outcome != "Current":
        raise Violation(11, f"{engine} answered that it serves {name}, and is said to be {outcome}")


def true_reason(engine: str, reason: str, told: str) -> None:
    """11. told: what the coordinator was told of the engine in that sync, "" nothing."""
    if told:
        raise Violation(11, f"{engine} is said to have failed by {reason}, and {told} was told of it before")


def really_differ(name: str, step: int) -> None:
    """11. step: of all ranks' publishes of that name; negative where they differ."""
    if step >= 0:
        raise Violation(11, f"{name} is given up because its ranks differ, and all of them published step {step}")


def somebody_said_so(engine: str, reason: str, *, told: bool) -> None:
    """11. told: of a failure of that engine, in that sync and before its end."""
    if not told:
        raise Violation(11, f"{engine} is said to have failed by {reason}, and nobody said so in that sync")


def late_for_a_reason(engine: str, lacking: int) -> None:
    """11. An engine that is out by the deadline. lacking: its routes whose end was not told as verified before."""
    if not lacking:
        raise Violation(11, f"{engine} is out by the deadline, and all its routes were verified before")


def another_process(where: str, reason: str, *, same: bool) -> None:
    """11. same: the process whose step failed is the one that was looked at."""
    if same:
        raise Violation(11, f"{where} is said to be another process after {reason}, and is the same")


def refused_by_name(where: str, *, refused: bool) -> None:
    """7. An engine that does not give back what was applied is refused."""
    if not refused:
        raise Violation(7, f"{where} cannot be certified and is not refused")


def one_outcome_each(name: str, snapshot: Sequence[str], told: Sequence[str]) -> None:
    """11."""
    if sorted(snapshot) != sorted(told):
        raise Violation(11, f"{name}: outcomes of {sorted(told)} for engines {sorted(snapshot)}")


def filled_for(name: str, engine: str, unfilled: Sequence[str]) -> None:
    """11."""
    if unfilled:
        raise Violation(11, f"{name}: {engine} is in the snapshot, and {', '.join(unfilled)} fill nothing for it")


def in_time(name: str, seconds: float, limit: float) -> None:
    """11."""
    if seconds > limit:
        raise Violation(11, f"{name}: its outcome came after {seconds:.1f} s, {limit:.1f} s allowed")


def copied_alone(what: str, waited: float, limit: float) -> None:
    """12."""
    if waited > limit:
        raise Violation(12, f"{what} waited {waited:.2f} s for an arena, {limit:.2f} s allowed")


def fenced_for_a_reason(where: str, open_: int, flying: int) -> None:
    """13. A fence ends the worker that all of a rank's writers reach."""
    if not open_ and not flying:
        raise Violation(13, f"{where}: its worker is replaced though nobody may write")


def another_parent(engine: str, above: str) -> None:
    """13. above: why the engine that it was to read from was taken out before it was late, "" where it was not."""
    if above not in ("", "DeadlineExceeded"):
        raise Violation(13, f"{engine} waited to the deadline for one that was out with {above}")


def commits_by(name: str, seconds: float, limit: float) -> None:
    """13."""
    if seconds > limit:
        raise Violation(13, f"{name}: the first commit was sent after {seconds:.1f} s, {limit:.1f} s allowed")


def one_stage(where: str, bucket: int, stage: int, owner: int) -> None:
    """14."""
    if stage != owner:
        raise Violation(14, f"{where}: stage {stage} writes bucket {bucket}, which stage {owner} owns")


def healed(lacks: Sequence[str], seconds: float) -> None:
    """15."""
    if lacks:
        raise Violation(15, f"{seconds:.0f} s after the last fault: {'; '.join(lacks)}")


def kept_since_sealed(where: str, step: str, reason: str) -> None:
    """7: what was sealed for a commit stands in its arena until the engine has it, whoever else wants the arena."""
    if reason == "GrantClosed":
        raise Violation(7, f"{where}: {step} finds the sealed grant closed: the arena was given to somebody else")


def held_while_applied(where: str, *, applied: bool) -> None:
    """7. applied: a commit from those very arenas runs, or something else needs them, and has not let go of them."""
    if applied:
        raise Violation(7, f"{where} gives arenas free that a commit still needs")


def gets_it_back(where: str, state: str, *, takes: bool) -> None:
    """15. An engine whose version stands sealed beside it needs neither trainers nor a coordinator to get it back."""
    if not takes:
        raise Violation(15, f"{where}, {state}, refuses its own version, which stands sealed beside it")


def planned(able: set[str], there: set[str]) -> None:
    """15. Who may take part stands in the plan, and nobody else, be trainers there or away."""
    if able != there:
        raise Violation(15, f"the plan lacks {sorted(able - there)} and holds {sorted(there - able)}, which are gone")


def may_be_read_into(where: str, state: str, *, free: bool) -> None:
    """15. An engine that could read a version from another does. free: nobody writes into the arena, or needs it."""
    if free:
        raise Violation(15, f"{where}: no version is read into the arena, which is {state} and free")
