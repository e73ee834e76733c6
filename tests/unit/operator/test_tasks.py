"""Passes: one at a time for each WeightSync, many changes in one, retried with growing delays."""

import asyncio

import pytest

from weightsync.errors import InputError, WeightSyncError
from weightsync_operator.tasks import Tasks, retry_delay


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, None), (1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (100, 30.0)],
)
def test_retry_delays_grow_to_a_bound(failures: int, seconds: float | None) -> None:
    """Doubling from half a second to half a minute; none after a success."""
    assert retry_delay(failures) == seconds


class Recorder:
    """Counts passes; holds each open until let go; fails as often as told."""

    def __init__(self, failures: int = 0, *, plans: bool = False) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Semaphore(0)
        self.failures = failures
        self.plans = plans
        self.errors: asyncio.Queue[WeightSyncError] = asyncio.Queue()
        self.running = 0
        self.most = 0

    async def run(self, uid: str) -> bool:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.put_nowait(uid)
        await self.go.acquire()
        self.running -= 1
        if self.failures:
            self.failures -= 1
            raise InputError("wrong")
        return self.plans

    def failed(self, _: str, error: WeightSyncError) -> None:
        self.errors.put_nowait(error)


async def test_many_wakes_are_one_pass() -> None:
    """What comes in during the debounce joins; what comes in during a pass makes one more, after it."""
    seen = Recorder()
    tasks = Tasks(seen.run, seen.failed, debounce=0.0)
    for _ in range(5):
        tasks.wake("a")
    assert await seen.started.get() == "a"
    for _ in range(5):
        tasks.wake("a")
    assert seen.started.empty()
    seen.go.release()
    await seen.started.get()
    seen.go.release()
    for _ in range(20):  # turns of the loop, of which a pass needs three to start
        await asyncio.sleep(0)
    assert seen.started.empty()
    assert seen.most == 1
    await tasks.close()


@pytest.mark.parametrize(
    ("plans", "waits"),
    [pytest.param(True, [0.1, 1.0, 0.1], id="plans"), pytest.param(False, [0.1, 0.1, 0.1], id="words alone")],
)
async def test_plans_are_not_written_one_upon_another(
    monkeypatch: pytest.MonkeyPatch, plans: bool, waits: list[float]
) -> None:
    """Changes that come meanwhile join; the first after a quiet time waits for nobody."""
    slept: list[float] = []
    time, sleep = 0.0, asyncio.sleep

    async def pass_by(seconds: float) -> None:
        nonlocal time
        slept.append(round(seconds, 3))
        time += seconds
        await sleep(0)

    class Loop:
        create_future = asyncio.get_running_loop().create_future

        @staticmethod
        def time() -> float:
            return time

    seen = Recorder(plans=plans)
    for _ in range(3):
        seen.go.release()
    monkeypatch.setattr("weightsync_operator.tasks.asyncio.sleep", pass_by)
    monkeypatch.setattr("weightsync_operator.tasks.asyncio.get_running_loop", Loop)
    tasks = Tasks(seen.run, seen.failed, debounce=0.1)
    for quiet in (0.0, 0.0, 5.0):
        time += quiet
        tasks.wake("a")
        await seen.started.get()
        await sleep(0)
    monkeypatch.undo()
    assert slept == waits
    await tasks.close()


async def test_others_do_not_wait() -> None:
    """A pass that hangs holds back its own WeightSync only."""
    seen = Recorder()
    tasks = Tasks(seen.run, seen.failed, debounce=0.0)
    tasks.wake("a")
    tasks.wake("b")
    assert {await seen.started.get(), await seen.started.get()} == {"a", "b"}
    await tasks.close()


async def test_a_failed_pass_is_retried_at_once_when_something_changed() -> None:
    """The delay of a retry is cut short by news."""
    seen = Recorder(failures=1)
    tasks = Tasks(seen.run, seen.failed, debounce=0.0)
    tasks.wake("a")
    await seen.started.get()
    seen.go.release()
    assert isinstance(await seen.errors.get(), InputError)
    tasks.wake("a")
    async with asyncio.timeout(0.4):  # less than the first delay
        await seen.started.get()
    await tasks.close()


async def test_a_bug_is_not_survived_in_silence() -> None:
    """An error that is none of ours reaches whoever waits for the tasks."""

    async def run(_: str) -> bool:
        raise ZeroDivisionError

    tasks = Tasks(run, lambda *_: None, debounce=0.0)
    tasks.wake("a")
    with pytest.raises(ZeroDivisionError):
        await tasks.broken()
    await tasks.close()


async def test_a_forgotten_one_stops() -> None:
    """After forget() no pass of it runs."""
    seen = Recorder()
    tasks = Tasks(seen.run, seen.failed, debounce=0.0)
    tasks.wake("a")
    await seen.started.get()
    tasks.forget("a")
    await tasks.close()
    assert seen.started.empty()
