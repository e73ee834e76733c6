"""A writer: the newest value, one write at a time, none too many. All in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weightsync.errors import InputError, PeerError, WeightSyncError
from weightsync_agent.own_pod.writer import Writer

Run = Callable[[Coroutine[Any, Any, None]], None]


class Api:
    """Records writes with their times; fails as told."""

    def __init__(self, *failures: WeightSyncError | None, seconds: float = 0.0) -> None:
        self.failures = list(failures)
        self.seconds = seconds
        self.writes: list[tuple[float, str]] = []

    async def write(self, value: str) -> None:
        await asyncio.sleep(self.seconds)
        self.writes.append((asyncio.get_running_loop().time(), value))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    @property
    def values(self) -> list[str]:
        return [value for _, value in self.writes]


async def running(writer: Writer[str], main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` while the writer runs."""
    task = asyncio.create_task(writer.run())
    try:
        await main
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_same_value_is_written_once(in_virtual_time: Run) -> None:
    """Nothing changed: nothing written."""
    api = Api()
    writer = Writer[str]("x", api.write)

    async def main() -> None:
        for value in ("a", "a", "b", "b", "a"):
            writer.want(value)
            await writer.settled()

    in_virtual_time(running(writer, main()))
    assert api.values == ["a", "b", "a"]


def test_quick_changes_become_one_write_an_interval(in_virtual_time: Run) -> None:
    """Ten values a second for five seconds, an interval of 2 s: the newest of each, and the last is written."""
    api = Api()
    writer = Writer[str]("x", api.write, interval=2.0)

    async def main() -> None:
        for n in range(50):
            writer.want(str(n))
            await asyncio.sleep(0.1)
        await writer.settled()

    in_virtual_time(running(writer, main()))
    times = [round(at, 1) for at, _ in api.writes]
    assert times == [0.0, 2.0, 4.0, 6.0]
    assert api.values[-1] == "49"


def test_a_failed_write_is_tried_again_until_it_succeeds(in_virtual_time: Run) -> None:
    """An outage of any length ends with the value written; the problem is said meanwhile."""
    api = Api(*[PeerError("down")] * 20)
    writer = Writer[str]("x", api.write)
    problems: list[str] = []

    async def main() -> None:
        writer.want("a")
        await asyncio.sleep(1)
        problems.append(writer.problem)
        await writer.settled()
        problems.append(writer.problem)

    in_virtual_time(running(writer, main()))
    assert api.values == ["a"] * 21
    assert problems == ["down", ""]
    waits = [b[0] - a[0] for a, b in zip(api.writes, api.writes[1:], strict=False)]
    assert max(waits) <= 10.001
    assert sum(waits[:3]) < 6.0  # the first tries follow quickly
    assert min(waits[10:]) >= 9.9  # the later ones spare the server


def test_a_newer_value_takes_the_place_of_one_that_cannot_be_written(in_virtual_time: Run) -> None:
    """Values that came and went during an outage are never written."""
    api = Api(*[PeerError("down")] * 5)
    writer = Writer[str]("x", api.write)

    async def main() -> None:
        for value in ("a", "b", "c"):
            writer.want(value)
            await asyncio.sleep(0.5)
        await writer.settled()

    in_virtual_time(running(writer, main()))
    assert api.values[-1] == "c"
    assert len(api.writes) == 6


def test_a_lost_answer_is_not_taken_for_nothing_written(in_virtual_time: Run) -> None:
    """b may have come through though its answer was lost: going back to a writes a again."""
    api = Api(None, PeerError("timed out"))
    writer = Writer[str]("x", api.write)

    async def main() -> None:
        writer.want("a")
        await writer.settled()
        writer.want("b")
        await asyncio.sleep(0.01)
        writer.want("a")
        await writer.settled()

    in_virtual_time(running(writer, main()))
    assert api.values == ["a", "b", "a"]


def test_a_refused_value_is_given_up_until_the_next(in_virtual_time: Run) -> None:
    """What cannot succeed is tried once and said; the next value, or the same one wanted anew, is tried again."""
    api = Api(InputError("never"), InputError("never"))
    writer = Writer[str]("x", api.write)
    problems: list[str] = []

    async def main() -> None:
        for value in ("a", "a", "b"):
            writer.want(value)
            await writer.settled()
            problems.append(writer.problem)
            await asyncio.sleep(100)

    in_virtual_time(running(writer, main()))
    assert api.values == ["a", "a", "b"]
    assert problems == ["never", "never", ""]


def test_a_change_during_a_write_is_written_next(in_virtual_time: Run) -> None:
    """settled() means the newest value, not the one that was under way."""
    api = Api(seconds=1.0)
    writer = Writer[str]("x", api.write)

    async def main() -> None:
        writer.want("a")
        await asyncio.sleep(0.5)
        writer.want("b")
        await writer.settled()

    in_virtual_time(running(writer, main()))
    assert api.writes == [(1.0, "a"), (2.0, "b")]


def test_nobody_waits_for_a_writer_that_has_ended(in_virtual_time: Run) -> None:
    """A stop, or a fault of ours, releases who waits for it."""
    api = Api(*[PeerError("down")] * 100)
    writer = Writer[str]("x", api.write)

    async def main() -> None:
        task = asyncio.create_task(writer.run())
        writer.want("a")
        await asyncio.sleep(1)
        task.cancel()
        await writer.settled()

    in_virtual_time(main())
