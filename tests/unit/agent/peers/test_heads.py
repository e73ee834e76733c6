"""Which coordinator an engine obeys: the one it knows, or the one that the head names."""

import asyncio

import pytest

from weightsync.errors import PeerError, Refused
from weightsync_agent.peers import heads
from weightsync_agent.peers.heads import Head, Heads


class Server:
    """The head, how often it was read, and whether it can be."""

    def __init__(self, head: Head) -> None:
        self.head, self.asked, self.down = head, 0, False

    async def read(self) -> Head:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise PeerError("the API server cannot be reached")
        return self.head


def obeyed() -> tuple[int, str]:
    """Whom the engine obeys."""
    return 4, "t0"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks may follow one another at once."""
    monkeypatch.setattr(heads, "PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("term", "coordinator", "looks", "refused"),
    [
        pytest.param(4, "t0", 0, "", id="whom it obeys already"),
        pytest.param(3, "t9", 0, "", id="an older term, which the fence refuses"),
        pytest.param(5, "t1", 1, "", id="whom the head names"),
        pytest.param(5, "t9", 1, "the head names t1 for term 5", id="another in the head's term"),
        pytest.param(6, "t1", 1, "the head names t1 for term 5", id="the head's with a term of its own"),
        pytest.param(4, "t9", 1, "the head names t1 for term 5", id="another in the term that is obeyed"),
        pytest.param(2**62, "x" * 5000, 1, "does not coordinate", id="a huge claim"),
    ],
)
async def test_a_coordinator_is_obeyed_only_if_known_or_named(
    term: int, coordinator: str, looks: int, refused: str
) -> None:
    """403 with what the head says; the head is read only for whom the engine does not know."""
    server = Server((5, "t1"))
    found = Heads(server.read, obeyed)
    if not refused:
        await found.check(term, coordinator)
    else:
        with pytest.raises(Refused, match=refused) as caught:
            await found.check(term, coordinator)
        assert (caught.value.status, caught.value.reason) == (403, "NotCoordinator")
        assert len(str(caught.value)) < 500
    assert server.asked == looks


async def test_without_a_head_nobody_coordinates() -> None:
    """A pod that no WeightSync selects, or one whose WeightSync has no head yet, obeys nobody new."""
    with pytest.raises(Refused, match="no head names this pod"):
        await Heads(Server(None).read, lambda: (0, "")).check(1, "t0")


async def test_a_plan_file_has_no_head_to_ask() -> None:
    """The secret alone decides."""
    await Heads(None, obeyed).check(9, "anybody")


async def test_an_outage_stops_no_known_coordinator_and_lets_no_new_one_in() -> None:
    """503 for the new one, until the head can be read again."""
    server = Server((5, "t1"))
    server.down = True
    found = Heads(server.read, obeyed)
    await found.check(4, "t0")
    with pytest.raises(Refused) as caught:
        await found.check(5, "t1")
    assert (caught.value.status, caught.value.reason) == (503, "HeadUnknown")
    server.down = False
    await found.check(5, "t1")


async def test_a_hanging_api_server_refuses_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks hears why before it gives up by itself."""
    monkeypatch.setattr(heads, "READ_SECONDS", 0.01)

    async def hanging() -> Head:
        await asyncio.Event().wait()
        return None

    async with asyncio.timeout(10):
        with pytest.raises(Refused) as caught:
            await Heads(hanging, obeyed).check(5, "t1")
    assert caught.value.reason == "HeadUnknown"


async def test_many_at_once_are_one_look() -> None:
    """Strangers too: a hundred claims at once, whatever they claim, are one request to the API server."""
    server = Server((5, "t1"))
    found = Heads(server.read, obeyed)
    claims = [found.check(5, "t1") for _ in range(50)] + [found.check(7, f"x{n}") for n in range(50)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    assert [result for result in results[:50] if result is not None] == []
    assert all(isinstance(result, Refused) for result in results[50:])
    assert server.asked == 1


async def test_looks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims one after the other wait for their turn: at most one look in each pause."""
    monkeypatch.setattr(heads, "PAUSE_SECONDS", 0.05)
    server = Server((5, "t1"))
    found = Heads(server.read, obeyed)
    began = asyncio.get_running_loop().time()
    for number in range(3):
        with pytest.raises(Refused):
            await found.check(7 + number, "x")
    assert asyncio.get_running_loop().time() - began >= 0.1
    assert server.asked == 3


async def test_a_head_that_moved_on_is_read_again() -> None:
    """What was read for one claim does not refuse the next coordinator."""
    server = Server((5, "t1"))
    found = Heads(server.read, obeyed)
    await found.check(5, "t1")
    server.head = (6, "t2")
    await found.check(6, "t2")
    with pytest.raises(Refused):
        await found.check(5, "t1")
