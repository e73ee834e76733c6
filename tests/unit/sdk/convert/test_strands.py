"""Strands keep their order, others run at once; an error ends all; no thread outlives drain() or stop()."""

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from weightsync.convert import strands
from weightsync.convert.strands import FillThreads

SOON = 10.0  # seconds until a test gives up


def ours() -> list[str]:
    """Threads that fill, in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weightsync-fill")]


class Thing:
    """What a job holds."""

    def use(self) -> None:
        """The job."""


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert ours() == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_jobs_of_a_strand_run_in_order(count: int) -> None:
    """Also those that come while the strand runs, or after it ran out of jobs."""
    threads, told = FillThreads(count), dict[int, list[int]]()
    for number in range(200):
        threads.submit(number % 5, partial(told.setdefault(number % 5, []).append, number))
    threads.drain()
    assert told == {strand: list(range(strand, 200, 5)) for strand in range(5)}


def test_a_strand_waits_for_its_job_while_others_pass() -> None:
    """A thread that is free takes another strand, never the next job of one that runs."""
    threads, go, ran = FillThreads(2), threading.Event(), list[str]()
    threads.submit("a", partial(go.wait, SOON))
    threads.submit("a", partial(ran.append, "behind it"))
    threads.run([("b", partial(ran.append, "beside it"))])
    assert ran == ["beside it"]
    go.set()
    threads.drain()
    assert ran == ["beside it", "behind it"]


def test_different_strands_and_jobs_of_none_run_at_once() -> None:
    """Each waits for the others: one after another they would never end."""
    threads, barrier = FillThreads(3), threading.Barrier(3, timeout=SOON)
    for strand in ("a", None, None):
        threads.submit(strand, barrier.wait)
    threads.drain()
    assert not barrier.broken


def test_run_waits_for_its_own_jobs_alone() -> None:
    """A job given before may still run."""
    threads, go, ran = FillThreads(2), threading.Event(), list[str]()
    threads.submit("held", partial(go.wait, SOON))
    threads.run([(None, partial(ran.append, "a")), ("b", partial(ran.append, "b"))])
    assert sorted(ran) == ["a", "b"]
    assert not go.is_set()
    go.set()
    threads.drain()


def test_what_a_job_held_is_gone_when_run_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while a thread has not come out of it: a generator may need that memory for the next tensor."""
    threads, go, alive = FillThreads(2), threading.Event(), weakref.WeakSet[Thing]()

    def lingering(job: Callable[..., object], *arguments: object) -> Callable[[], object]:
        return lambda: (job(*arguments), go.wait(SOON))

    monkeypatch.setattr(strands, "partial", lingering)
    things = [Thing(), Thing()]
    alive.update(things)
    threads.run([(None, thing.use) for thing in things])
    del things[:]
    assert not alive
    go.set()
    threads.drain()


def test_who_gives_jobs_waits_while_enough_are_ready() -> None:
    """So that a long loop of them does not keep the interpreter from those that copy."""
    threads, go = FillThreads(2), threading.Event()
    given: list[int] = []

    def give() -> None:
        for number in range(20):
            threads.submit(number, partial(go.wait, SOON))
            given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    while len(ours()) < 2 or len(given) < 4:
        giver.join(0.005)
        assert giver.is_alive()
    giver.join(0.1)
    assert len(given) <= 2 * threads.count + threads.count
    go.set()
    giver.join(SOON)
    threads.drain()
    assert len(given) == 20


@pytest.mark.parametrize("where", ["submit", "run", "drain"])
def test_what_a_job_raises_is_raised_after_all_threads_ended(where: str) -> None:
    """What runs comes to its end first; what has not begun never runs."""
    threads, began, go, failed = FillThreads(2), threading.Event(), threading.Event(), threading.Event()
    ran: list[str] = []

    def late() -> None:
        began.set()
        with threads._progress:
            assert threads._progress.wait_for(lambda: threads._error, SOON)
        ran.append("late")

    def fail() -> None:
        assert go.wait(SOON)
        failed.set()
        raise ValueError("it does not fit")

    def never() -> None:
        ran.append("never")

    threads.submit("late", late)
    threads.submit("failing", fail)
    for strand in ("failing", "another"):
        threads.submit(strand, never)
    assert began.wait(SOON)
    go.set()
    with pytest.raises(ValueError, match="it does not fit"):  # noqa: PT012 - any of them may be the first to see it
        while where == "submit":
            threads.submit(None, failed.wait)
        if where == "run":
            threads.run([(None, failed.wait)])
        threads.drain()
    assert ran == ["late"]
    assert ours() == []
    threads.run([(None, partial(ran.append, "the next publish"))])
    threads.drain()
    assert ran == ["late", "the next publish"]


def test_what_prepare_raises_is_raised_too() -> None:
    """Else the jobs would wait for ever."""
    threads = FillThreads(1, prepare=partial(int, "x"))
    threads.submit(None, ours)
    with pytest.raises(ValueError, match="invalid literal"):
        threads.drain()


def test_stop_lets_running_jobs_end_and_runs_no_other() -> None:
    """When it returns nothing is written any more."""
    threads, began, go, ran = FillThreads(1), threading.Event(), threading.Event(), list[str]()

    def slow() -> None:
        began.set()
        assert go.wait(SOON)
        ran.append("slow")

    threads.submit("a", slow)
    threads.submit("a", partial(ran.append, "queued behind it"))
    threads.submit("b", partial(ran.append, "ready"))
    assert began.wait(SOON)
    stopper = threading.Thread(target=threads.stop)
    stopper.start()
    stopper.join(0.05)
    assert stopper.is_alive(), "it waits for what runs"
    go.set()
    stopper.join(SOON)
    assert ran == ["slow"]


def test_a_drain_that_became_useless_leaves_the_rest_out() -> None:
    """Asked when a strand is through."""
    threads, ran = FillThreads(1), list[int]()
    for number in range(3):
        threads.submit(number, partial(ran.append, number))
    threads.drain(lambda: True)
    assert ran == list(range(len(ran)))
    threads.drain()
    assert len(ran) <= 3


def test_fewer_threads_do_where_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may allow a number of processes only."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def once(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", once)
    threads, ran = FillThreads(4), list[int]()
    for number in range(8):
        threads.submit(None, partial(ran.append, number))
    threads.drain()
    assert sorted(ran) == list(range(8))
