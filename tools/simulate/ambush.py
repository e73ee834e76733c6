"""Faults that wait for a rare moment: a machine in a state, and then what seldom meets it there.

Only the moment is chosen (moments.py); what happens in it (encounters.py) happens everywhere. So that the moment
comes, something is slowed down beside it (lures.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.simulate import encounters as met
from tools.simulate import engine_encounters as engines
from tools.simulate import handovers, lures
from tools.simulate import moments as at
from tools.simulate.encounters import Encounter
from tools.simulate.moments import AnyMachine, Moment
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.coordinator import CoordinatorState as C
from weightsync_agent.protocol.direct import DirectState as D
from weightsync_agent.protocol.engine_leader import LeaderState as L
from weightsync_agent.protocol.engine_member import MemberState as M
from weightsync_agent.protocol.joiner import JoinerState as J
from weightsync_agent.protocol.route import RouteState as R
from weightsync_agent.protocol.source import SourceState as S
from weightsync_agent.protocol.target import TargetState as T

if TYPE_CHECKING:
    from tools.simulate.world import World

MOST = 30  # times that one of them springs

Lure = Callable[["World", float], None]


@dataclass(frozen=True)
class Kind:
    """moment: of a machine, after each of its events; springs: one of them meets it.

    prepare, and the fault of that name that strikes beside it, make the moment likely. pair: only an engine of two
    pods knows it; relay: only where engines pass a version on; direct: only where some are written to themselves;
    apart: only where each data-parallel rank is in a pod of its own.
    """

    name: str
    moment: Moment
    springs: tuple[Encounter, ...]
    prepare: Lure | None = None
    beside: str = ""
    pair: bool = False
    relay: bool = False
    direct: bool = False
    apart: bool = False


class Ambush:
    """One that waits."""

    def __init__(self, world: World, kind: Kind) -> None:
        self.world = world
        self.kind = kind
        self.left = MOST

    def after(self, machine: AnyMachine) -> None:
        """The machine has taken an event."""
        if self.left and self.kind.moment(machine):
            self.left -= 1
            # At once, after what is under way, or a moment later.
            delay = (0.0, 0.0, 0.002, 0.03)[self.world.rng.randrange(4)]
            self.world.loop.at(delay, self._spring, machine)

    def _spring(self, machine: AnyMachine) -> bool:
        if not self.kind.moment(machine):
            self.left += 1
            return False
        meets = self.world.rng.choice(self.kind.springs)(self.world, machine, self.world.rng.random())
        if meets is False:  # there was nobody to meet: it waits on
            self.left += 1
            return False
        self.world.loop.note("ambush", self.kind.name)
        self.world.sprung.append(self.kind.name)
        return True


_HEARD = (
    met.heard_again(s.Ordered), met.heard_again(s.Ordered), met.first_again(s.Ordered), met.heard_again(s.Ended),
    met.first_again(s.Ended), met.heard_again(s.LaneDead), met.heard_again(s.Decided), met.lane_held, met.no_room,
    met.input_wrong, met.worker_dies, met.another_coordinates,
)  # fmt: skip
_ENDS = tuple(
    met.once_it_ends(spring)
    for spring in (*_HEARD, met.heard_again(s.Ordered), met.heard_again(s.Ordered), met.first_again(s.Ended))
)
_READS = (
    engines.holder_dies, engines.holder_stops, engines.holder_goes, engines.joiner_dies, engines.joiner_stops,
    engines.read_spoiled, engines.sync_begins, engines.process_replaced,
)  # fmt: skip
KINDS: tuple[Kind, ...] = (
    Kind("a source whose order waits", at.source_in(S.WAITING), _HEARD, lures.answers_late),
    Kind("a source that ends an order", at.source_in(S.ENDING, S.RUNNING), _ENDS, lures.writes_stall),
    Kind("a source that ends an order as the next one comes", at.source_in(S.ENDING, S.RUNNING),
         _ENDS, lures.quick_steps),
    Kind("a source whose order runs", at.source_in(S.RUNNING), _HEARD, lures.writes_stall),
    Kind("a source whose worker starts", at.source_in(S.RUNNING), (met.lane_held,), lures.workers_start_slowly),
    Kind("a source that has refused an order", at.refused_before(S.RUNNING, S.WAITING, S.ENDING),
         (met.refused_again, met.refused_again, met.given_up), lures.answers_late),
    Kind("an idle source", at.source_in(S.IDLE), _HEARD, lures.now_and_then_another_term),
    Kind("a source that fills", at.fills, (met.cut_again, met.targets_leave, met.input_wrong),
         lures.slow_trainer),
    Kind("a source that compares what it found", at.filled_once, (met.over_found_bytes,), lures.compares_slowly),
    Kind("a source that compares as an order runs", at.source_in(S.RUNNING), (met.compared_as_it_ends,),
         lures.sources_restart),
    Kind("a source with two sealed versions", at.two_sealed, (met.agent_dies,)),
    Kind("a route with writes and receipts under way",
         at.route_that(lambda m: m.state is R.OPEN and bool(m.writing and m.checking)),
         (met.order_ends, met.receipts_refused), lures.pieces_late),
    Kind("a route whose shard is filled",
         at.route_that(lambda m: m.state is R.OPEN and bool(m.writing) and not m.complete),
         (met.receipts_refused, met.order_ends), lures.slow_trainer),
    Kind("a route that is given up while its shard fills",
         at.route_that(lambda m: m.state is R.OPEN and bool(m.writing) and not m.complete),
         (met.grant_is_void,), lures.fills_slowly_and_pieces_late, direct=True),
    Kind("a route that is verified", at.route_that(lambda m: m.state is R.CLOSING), (met.lane_dies,),
         lures.words_late),
    Kind("a route that is given up", at.route_that(lambda m: m.state is R.BREAKING),
         (met.lane_dies, met.receipts_refused), lures.pieces_late),
    Kind("a target that replaces its worker", at.target_in(T.FENCING),
         (engines.process_replaced, engines.replaced_at_once, engines.no_worker_starts), lures.workers_start_slowly),
    Kind("an engine that is to get its version back", at.leader_in(L.REAPPLYING),
         (engines.falls_silent, engines.process_replaced, engines.welcome_again), lures.engines_restart),
    Kind("an engine that is committed to", at.leader_in(L.COMMITTING), (engines.welcome_again,)),
    Kind("an engine that is about to go on", at.goes_on, (engines.replaced_at_once,)),
    Kind("an engine that is refused", at.leader_in(L.REFUSED), (engines.welcome_again,), beside="engine repacks"),
    *(Kind(f"a leader of two pods: {state.value}", at.leads_pair(state), (engines.member_restarts,), prepare, beside,
           pair=True)
      for state, prepare, beside in (
          (L.CURRENT, None, ""),
          (L.REFUSED, None, "engine repacks"),
          (L.REAPPLYING, lures.engines_restart_and_pods_hold_late, ""),
          (L.COMMITTING, None, ""),
      )),
    Kind("a member that holds still for a commit", at.member_in(M.HELD),
         (engines.released_late, engines.commit_is_lost, engines.leader_is_another), pair=True),
    *(Kind(f"a coordinator: {state.value}", at.coordinator_in(state), (met.told_again,),
           lures.orders_unanswered, "engine call fails")
      for state in (C.GRANTING, C.STAGING, C.DECIDING, C.COMMITTING)),
    Kind("an engine that is written to", at.target_in(T.FILLING), (engines.trainers_go,), lures.engines_come),
    *(Kind(f"a joiner: {state.value}", at.joiner_in(state), _READS, prepare)
      for state, prepare in (
          (J.SEEKING, lures.engines_come),
          (J.LEASING, lures.engines_come_and_wait_for_leases),
          (J.PULLING, lures.engines_come),
          (J.PULLING, lures.engines_come),
          (J.APPLYING, lures.engines_come),
      )),
    *(Kind(f"an engine that reads from one that is written to, {how}", at.relays_from_another,
           (*_READS, met.another_coordinates), prepare, relay=True)
      for how, prepare in (("slowly", lures.slow_trainer), ("by late words", lures.words_late), ("as it is", None))),
    Kind("a coordinator whose engines commit", at.coordinator_in(C.COMMITTING), (met.coordinator_dies,)),
    Kind("a coordinator that dies with its decision", at.coordinator_in(C.DECIDING), (handovers.commits_lost,),
         lures.trainer_rests, apart=True),
    *(Kind(f"a coordinator that is replaced: {state.value}", at.coordinator_in(state), (handovers.deposed,),
           lures.orders_unanswered, apart=True)
      for state in (C.GRANTING, C.COMMITTING)),
    Kind("a coordinator that hands over as its engines commit", at.coordinator_in(C.COMMITTING),
         (met.another_coordinates,), apart=True),
    Kind("a coordinator whose orders are out", at.orders_are_out, (handovers.source_cut_off,),
         lures.one_rank_falls_behind, apart=True),
    Kind("an engine whose memory is written to", at.direct_in(D.OPEN),
         (met.another_coordinates, met.another_input_wrong), lures.ends_late, direct=True),
)  # fmt: skip


def kind_of(pick: float) -> Kind:
    """The one that a fault's ``pick`` chooses."""
    return KINDS[int(pick * len(KINDS))]
