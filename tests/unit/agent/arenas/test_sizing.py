"""What an agent says of its room: as much as it will let be made, no more and no less."""

import pytest

from weightsync.errors import InputError
from weightsync_agent.arenas.sizing import HEADROOM, Room, room_for_replicas

REPLICA = 6000


@pytest.mark.parametrize(
    ("limit", "arenas", "stages", "room"),
    [
        pytest.param(None, 2, 1, 0, id="without a limit nothing bounds it"),
        pytest.param(HEADROOM + 6000, 1, 1, 6000, id="one arena of each replica"),
        pytest.param(HEADROOM + 6000, 2, 1, 3000, id="two arenas of each replica"),
        pytest.param(HEADROOM + 6000, 2, 3, 1000, id="of three stages each fills a part of a whole arena"),
        pytest.param(HEADROOM, 1, 1, 1, id="a limit that leaves nothing is not without a limit"),
        pytest.param(1, 2, 1, 1, id="a limit below what the agent itself needs"),
    ],
)
def test_room_for_replicas(limit: int | None, arenas: int, stages: int, room: int) -> None:
    """The limit less the agent's own, by the arenas that a replica takes."""
    assert room_for_replicas(limit, arenas, stages) == room


@pytest.mark.parametrize("arenas", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_what_is_planned_can_be_made(arenas: int, stages: int) -> None:
    """Of replicas that whoever plans counts by a stage's part, as many as fit the said room fit the real one."""
    limit = HEADROOM + 7 * REPLICA
    planned = room_for_replicas(limit, arenas, stages) // -(-REPLICA // stages)
    room = Room(limit)
    for _ in range(planned * arenas):
        room.take(REPLICA, "an arena")
    with pytest.raises(InputError, match="raise the agent container's limit"):
        room.take(arenas * REPLICA, "one more replica's arenas")
