"""The pump against an engine that does as it is told: what is submitted, polled and reported, and in which order."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync_agent.transfer.window import Window
from weightsync_agent.transfer.write import Pump, Write


class FakeEngine:
    """Records submits; each id has the code that the test sets. Polling an id after its end fails the test."""

    def __init__(self) -> None:
        self.submits: list[tuple[str, int, int, int]] = []
        self.codes: dict[int, int] = {}
        self.refuse: set[str] = set()
        self.hang: dict[str, threading.Event] = {}
        self.over: set[int] = set()
        self.first_code = 0

    def transfer_submit_write(self, session: str, source: int, target: int, nbytes: int, /) -> int:
        if session in self.hang:
            self.hang[session].wait(10)
        if session in self.refuse:
            return 0
        self.submits.append((session, source, target, nbytes))
        self.codes[len(self.submits)] = self.first_code
        return len(self.submits)

    def transfer_check_status(self, submit: int, /) -> int:
        assert submit not in self.over, f"id {submit} polled after its end"
        code = self.codes[submit]
        if code in {1, -1}:
            self.over.add(submit)
        return code

    def end(self, code: int, *ids: int) -> None:
        """Give these submits (all pending ones if none is named) a terminal code."""
        for number in ids or [n for n, code in self.codes.items() if code == 0]:
            self.codes[number] = code


class Bench:
    """A pump, its engine and its messages; turn() by hand instead of the thread."""

    def __init__(self, max_pieces: int = 4) -> None:
        self.engine = FakeEngine()
        self.messages: list[dict[str, Any]] = []
        self.now = 0.0
        self._told = threading.Condition()
        self.pump = Pump(
            self.engine, Window(max_pieces, 10**9, 10), self._take, poll_seconds=0.0001, clock=self.clock
        )

    def clock(self) -> float:
        """Virtual: whoever wants to be told of progress again lets time pass."""
        return self.now

    def _take(self, message: dict[str, Any]) -> None:
        with self._told:
            self.messages.append(message)
            self._told.notify_all()

    def add(self, number: int, session: str, *buckets: tuple[int, int], arena: str = "arena") -> None:
        self.pump.add(Write(number, session, arena, 1000, 2000, list(buckets)))

    def meet(self, *sessions: str) -> None:
        """Make first contacts, with a write each that ends at once."""
        for number, session in enumerate(sessions):
            self.add(900 + number, session, (0, 1))
            self.pump.turn()
            self.until(lambda: self.messages[-1]["event"] == "contacted")
            self.engine.end(1)
            self.pump.turn()
        self.now += 1
        self.messages.clear()
        self.engine.submits.clear()
        self.engine.codes.clear()
        self.engine.over.clear()

    def until(self, holds: Callable[[], bool]) -> None:
        with self._told:
            assert self._told.wait_for(lambda: bool(self.messages) and holds(), 10), self.messages

    def told(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["event"] == event]


@pytest.fixture
def bench() -> Bench:
    """A bench that knows sessions a and b."""
    made = Bench()
    made.meet("a", "b")
    return made


def test_piece_goes_to_the_same_offset_at_both_ends(bench: Bench) -> None:
    """A bucket is cut, and each piece keeps its offset in source and target."""
    bench.add(1, "a", (40, 15))
    bench.pump.turn()
    assert bench.engine.submits == [("a", 1040, 2040, 10), ("a", 1050, 2050, 5)]


def test_bucket_is_reported_when_its_last_piece_is_done(bench: Bench) -> None:
    """One done piece is progress without a bucket; the write ends with the last piece."""
    bench.add(1, "a", (0, 20))
    bench.pump.turn()
    bench.engine.end(1, 2)
    bench.pump.turn()
    assert bench.messages == [{"event": "progress", "writes": [1]}]
    bench.engine.end(1, 1)
    bench.pump.turn()
    assert bench.messages[1:] == [
        {"event": "landed", "write": 1, "done": [0]},
        {"event": "end", "write": 1, "failed": "", "lost": 0},
    ]


def test_progress_is_said_now_and_then(bench: Bench) -> None:
    """Not with every piece; but also when nothing ends any more, what was not said before is said later."""
    bench.add(1, "a", (0, 200))
    for _ in range(3):
        bench.pump.turn()
        bench.engine.end(1)
    assert bench.messages == [{"event": "progress", "writes": [1]}]
    bench.now += 1
    bench.pump.turn()
    bench.now += 1
    bench.pump.turn()
    assert bench.messages[1:] == [{"event": "progress", "writes": [1]}]


def test_a_write_that_waits_behind_another_makes_its_progress(bench: Bench) -> None:
    """While pieces to the same session land; not where they fail, and not where those to another session do."""
    for number, session in enumerate(("a", "a", "b"), start=1):
        bench.add(number, session, (0, 100))
    bench.pump.turn()
    assert len(bench.engine.submits) == 8
    bench.engine.end(1, next(n for n, s in enumerate(bench.engine.submits, 1) if s[0] == "a"))
    bench.pump.turn()
    assert bench.told("progress") == [{"event": "progress", "writes": [1, 2]}]
    bench.now += 1
    bench.engine.end(-1, next(n for n, s in enumerate(bench.engine.submits, 1) if s[0] == "b"))
    bench.pump.turn()
    assert bench.told("progress")[1:] == [{"event": "progress", "writes": [3]}]


def test_failed_write_ends_only_when_all_its_pieces_are_terminal(bench: Bench) -> None:
    """After one failure nothing more is submitted, and the end waits for the pieces that are still read from."""
    bench.add(1, "a", (0, 60))
    bench.pump.turn()
    bench.engine.end(-1, 1)
    bench.pump.turn()
    bench.pump.turn()
    assert len(bench.engine.submits) == 4
    assert bench.told("end") == []
    assert bench.pump.busy("arena") == 1
    bench.engine.end(1)
    bench.pump.turn()
    (end,) = bench.told("end")
    assert end["lost"] == 1
    assert "10 bytes at 0" in end["failed"]
    assert bench.pump.busy("arena") == 0


def test_timeout_code_is_not_terminal(bench: Bench) -> None:
    """-2 ends nothing: the piece is polled on and may still be done."""
    bench.add(1, "a", (0, 10))
    bench.pump.turn()
    bench.engine.end(-2, 1)
    bench.pump.turn()
    assert bench.messages == []
    bench.engine.codes[1] = 1
    bench.pump.turn()
    assert bench.told("end")[0]["failed"] == ""


def test_refused_submit_is_never_polled(bench: Bench) -> None:
    """A submit of 0 fails the write, loses nothing, and its id is not asked for."""
    bench.engine.refuse.add("a")
    bench.add(1, "a", (0, 30))
    bench.pump.turn()
    (end,) = bench.told("end")
    assert (end["lost"], bench.engine.submits) == (0, [])
    assert "took no write" in end["failed"]


def test_stopped_peer_does_not_hold_another(bench: Bench) -> None:
    """With a's window full of pieces that never end, b's write goes through."""
    bench.add(1, "a", (0, 100))
    bench.add(2, "b", (0, 100))
    for _ in range(12):
        bench.pump.turn()
        bench.engine.end(1, *[n for n, s in enumerate(bench.engine.submits, 1) if s[0] == "b"])
    assert [message["write"] for message in bench.told("end")] == [2]
    assert sum(submit[0] == "a" for submit in bench.engine.submits) == 4


def test_dropped_write_is_polled_to_its_end(bench: Bench) -> None:
    """drop() submits no more, and reports the end when what was submitted is terminal."""
    bench.add(1, "a", (0, 100))
    bench.pump.turn()
    bench.pump.drop(1)
    bench.pump.turn()
    assert bench.told("end") == []
    bench.engine.end(1)
    bench.pump.turn()
    assert len(bench.engine.submits) == 4
    assert bench.told("end")[0]["failed"] == "dropped"


def test_hanging_first_contact_leaves_submitted_pieces_polled(bench: Bench) -> None:
    """While a first contact hangs nothing is submitted, but pieces in flight to others are still seen to end."""
    release = bench.engine.hang["new"] = threading.Event()
    bench.add(1, "a", (0, 40))
    bench.pump.turn()
    bench.add(2, "new", (0, 10))
    bench.add(3, "b", (0, 10))
    bench.pump.turn()
    bench.until(lambda: bool(bench.told("contact")))
    bench.engine.end(1)
    bench.pump.turn()
    assert [message["write"] for message in bench.told("end")] == [1]
    assert all(submit[0] == "a" for submit in bench.engine.submits)
    bench.pump.halt()
    bench.pump.turn()
    assert [(m["write"], m["failed"]) for m in bench.told("end")[1:]] == [(3, "halted")]
    release.set()
    bench.until(lambda: bool(bench.told("contacted")))
    bench.engine.end(1)
    bench.pump.turn()
    assert bench.told("end")[2]["write"] == 2


def test_idle_thread_waits_and_wakes(bench: Bench) -> None:
    """The started thread does a write that is added later."""
    bench.engine.first_code = 1
    bench.pump.start()
    bench.add(1, "a", (0, 10))
    bench.until(lambda: bool(bench.told("end")))


def test_a_fence_waits_for_what_goes_to_others(bench: Bench) -> None:
    """Pieces to the stalled peer do not count; those to another do, until they are terminal or the time is over."""
    bench.add(1, "a", (0, 20))
    bench.add(2, "b", (0, 10))
    bench.pump.turn()
    bench.pump.halt()
    assert not bench.pump.wait_for_others("a", 0.01)
    bench.engine.end(1, *[n for n, s in enumerate(bench.engine.submits, 1) if s[0] == "b"])
    waiting = threading.Thread(target=bench.pump.turn)
    waiting.start()
    assert bench.pump.wait_for_others("a", 10)
    waiting.join()
    assert [(m["write"], m["failed"]) for m in bench.told("end")] == [(2, "halted")]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 60), min_size=1, max_size=4)), min_size=1),
    st.sampled_from([0.0, 0.05]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30)
def test_every_bucket_lands_once_and_every_write_ends_once(
    writes: list[tuple[str, list[int]]], failing: float, random: Random
) -> None:
    """Whatever the order of ends, the failures, and the drops: and a write that ended well has landed all of its."""
    bench = Bench()
    bench.meet("a", "b")
    for number, (session, sizes) in enumerate(writes):
        bench.add(number, session, *((1000 * at, size) for at, size in enumerate(sizes)))
    while bench.pump.busy("arena"):
        bench.pump.turn()
        bench.now += random.choice([0.001, 0.05, 0.5])
        flying = [number for number, code in bench.engine.codes.items() if code == 0]
        for number in random.sample(flying, random.randint(min(1, len(flying)), len(flying))):
            bench.engine.end(-1 if random.random() < failing else 1, number)
        if random.random() < failing:
            bench.pump.drop(random.randrange(len(writes)))
    bench.pump.turn()
    ends = {end["write"]: end["failed"] for end in bench.told("end")}
    assert len(bench.told("end")) == len(writes)
    landed = [(m["write"], bucket) for m in bench.told("landed") for bucket in m["done"]]
    assert len(landed) == len(set(landed))
    for number, (_, sizes) in enumerate(writes):
        if not ends[number]:
            assert {bucket for write, bucket in landed if write == number} == set(range(len(sizes)))
    assert failing or not any(ends.values())
