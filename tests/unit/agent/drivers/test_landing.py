"""Where what is written to an engine lands."""

import pytest

from weightsync.announcement import Mode
from weightsync.errors import InputError
from weightsync.layout import lay_out
from weightsync_agent.drivers.landing import Wish, choose
from weightsync_agent.drivers.seed_region import region_of
from weightsync_agent.engines.seed import SEED_FLAG, Seed, parse_seed

NO_ROOM = "2 arenas need 9Gi, and the memory limit is 1Gi: raise the limit"


@pytest.mark.parametrize(
    ("wish", "no_room", "offered", "mode"),
    [
        pytest.param("Auto", "", True, "Staged", id="by itself staged where there is room"),
        pytest.param("Auto", NO_ROOM, True, "Direct", id="by itself direct where there is none"),
        pytest.param("Direct", "", True, "Direct", id="direct where it is wished"),
        pytest.param("Staged", "", False, "Staged", id="staged where it is wished"),
    ],
)
def test_the_choice(wish: Wish, no_room: str, offered: bool, mode: Mode) -> None:
    """For all ranks alike."""
    assert choose(wish, no_room, offered=offered) == mode


@pytest.mark.parametrize(
    ("wish", "no_room", "offered", "words"),
    [
        pytest.param("Auto", NO_ROOM, False, (NO_ROOM, SEED_FLAG), id="no room, and nothing offered: both ways out"),
        pytest.param("Staged", NO_ROOM, True, (NO_ROOM,), id="staged was wished and does not fit"),
        pytest.param("Direct", "", False, (SEED_FLAG, "Staged"), id="direct was wished and is not offered"),
    ],
)
def test_neither_is_refused_with_what_to_do(wish: Wish, no_room: str, offered: bool, words: tuple[str, ...]) -> None:
    """By name."""
    with pytest.raises(InputError) as refused:
        choose(wish, no_room, offered=offered)
    assert all(word in str(refused.value) for word in words)


LAYOUT = lay_out([("a", "float32", (64,)), ("b", "float32", (3, 5)), ("c", "bfloat16", (7,))])
PLACES = {"a": (4096, 256), "b": (4352, 60), "c": (9000, 14), "buffer": (1, 5)}


def test_a_layouts_bytes_lie_where_the_engine_says() -> None:
    """Neighbours in both are one run; what the layout does not name is nobody's."""
    region = region_of(LAYOUT, Seed(rank=0, session="h:1", places=PLACES), [(0, 1 << 20)])
    assert [(run.offset, run.nbytes, run.address) for run in region.runs] == [(0, 316, 4096), (512, 14, 9000)]
    assert (region.session, region.nbytes) == ("h:1", LAYOUT.nbytes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"b": (4352, 30)}, "b float32 (3, 5) has 60 bytes, 30 of them", id="another size"),
        pytest.param({"c": (4400, 14)}, "b and c share memory", id="tied or overlapping"),
        pytest.param({"c": None}, "c bfloat16 (7,) is in the layout and not", id="not registered"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, tuple[int, int] | None], words: str) -> None:
    """Before anything is written."""
    places = {name: place for name, place in (PLACES | change).items() if place is not None}
    with pytest.raises(InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
        region_of(LAYOUT, Seed(rank=0, session="h:1", places=places), [(0, 1 << 20)])


def test_parameters_that_touch_are_apart_where_they_are_registered_apart() -> None:
    """As an engine's allocator gives them: Mooncake refuses a write that reaches from one region into another."""
    region = region_of(LAYOUT, Seed(rank=0, session="h:1", places=PLACES), [(4352, 64), (8192, 4096), (4096, 256)])
    assert [(run.offset, run.nbytes, run.address) for run in region.runs] == [
        (0, 256, 4096), (256, 60, 4352), (512, 14, 9000)
    ]  # fmt: skip


def test_parameters_that_are_not_registered_are_refused() -> None:
    """By their place, and how many more."""
    with pytest.raises(InputError, match=r"names 56 bytes at 0x1104 .* so 1 more parts"):
        region_of(LAYOUT, Seed(rank=0, session="h:1", places=PLACES), [(4096, 260)])


def test_the_engines_table_is_read() -> None:
    """Elements times bytes of one."""
    body = {"rank": 1, "remote_instance_transfer_engine_info": ["10.0.0.1:15001", {"w": [4096, 64, 2]}]}
    assert parse_seed(body, 1) == Seed(rank=1, session="10.0.0.1:15001", places={"w": (4096, 128)})


@pytest.mark.parametrize("body", [{}, {"remote_instance_transfer_engine_info": ["x", {"w": [1]}]}, {"x": 1}])
def test_what_is_no_table_is_an_error(body: dict[str, object]) -> None:
    """And says which rank's."""
    with pytest.raises(InputError, match="rank 3"):
        parse_seed(body, 3)
