"""The engine under the machines."""

from enum import Enum, auto

import pytest

from weightsync.errors import ProtocolError
from weightsync_agent.protocol.coordinator import Coordinator, CoordinatorState
from weightsync_agent.protocol.engine_leader import EngineLeader, LeaderState
from weightsync_agent.protocol.route import Route, RouteState
from weightsync_agent.protocol.table import Machine, Row
from weightsync_agent.protocol.target import Target, TargetState

MACHINES = [(Coordinator, CoordinatorState), (Route, RouteState), (Target, TargetState), (EngineLeader, LeaderState)]


class Light(Enum):
    RED = auto()
    GREEN = auto()


class Go:
    pass


class Stop:
    pass


class Lamp(Machine[Light]):
    def __init__(self) -> None:
        super().__init__(Light.RED)
        self.open = True


Lamp.table = {
    (Light.RED, Go): (Row(Light.GREEN, lambda m, e, now: ["go"], lambda m, e: m.open, "go"),),
    (Light.GREEN, Stop): (Row(None, lambda m, e, now: setattr(m, "state", Light.RED), name="wrong", may=()),),
}


def test_a_row_gives_its_actions_and_its_state() -> None:
    """An event in the table: the row's actions, then the row's state."""
    lamp = Lamp()
    assert lamp.handle(Go(), 0.0) == ["go"]
    assert lamp.state is Light.GREEN


@pytest.mark.parametrize(("open_", "event"), [(True, Stop()), (False, Go())], ids=["no row", "no guard holds"])
def test_what_is_not_in_the_table_raises_and_changes_nothing(open_: bool, event: object) -> None:
    """ProtocolError names state and event; the state is as it was."""
    lamp = Lamp()
    lamp.open = open_
    with pytest.raises(ProtocolError, match=rf"Lamp in state RED cannot take {type(event).__name__}"):
        lamp.handle(event, 0.0)
    assert lamp.state is Light.RED
    assert not lamp.takes(event)


def test_an_effect_may_not_lead_to_a_state_that_its_row_does_not_name() -> None:
    """A row without a fixed state lists where it may lead."""
    lamp = Lamp()
    lamp.handle(Go(), 0.0)
    with pytest.raises(ProtocolError, match="row 'wrong' led to"):
        lamp.handle(Stop(), 0.0)


@pytest.mark.parametrize(("machine", "states"), MACHINES, ids=lambda x: x.__name__)
def test_every_state_is_left_and_reached(machine: type[Machine[Enum]], states: type[Enum]) -> None:
    """No state of a table is a dead end without rows, and each but the first can be entered."""
    left = {state for state, _ in machine.table}
    entered = {row.to for rows in machine.table.values() for row in rows if row.to}
    entered |= {state for rows in machine.table.values() for row in rows for state in row.may}
    assert left == set(states)
    assert entered == set(states)
