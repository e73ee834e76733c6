"""Plans from a file: read when it changes, kept when it breaks."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog
import yaml

from weightsync.announcement import SourceRank, TargetRank
from weightsync.errors import InputError
from weightsync.plan import Engine, Plan, PlanFile, Route, Source, Target
from weightsync_agent.plan_feed import from_file
from weightsync_agent.plan_feed.from_file import FileFeed, read_plan_file

SECRET = "/run/secret"  # noqa: S105 - a path
DIGITS = "12345678901234567890123456789012"
SOURCE = Source(uid="t", pod="t", address="h:1", ranks=(SourceRank(rank=0, world_size=1, nonce="0" * 16),))
TARGET = Target(
    uid="e", pod="e", address="h:2", rank=TargetRank(rank=0, layout=DIGITS, program="1e" + DIGITS[2:]),
    routes=(Route(stage=0, source="t", rank=0),),
)  # fmt: skip
ENGINE = Engine(name="e", leader="e", address="h:2", incarnation="", targets=(TARGET,))
PLAN = Plan(name="bench", term=0, generation=1, coordinator="t", suspend=True, sources=(SOURCE,), engines=(ENGINE,))


def write(path: Path, plan: Plan, *, as_yaml: bool = False) -> None:
    """Put a plan file there as writers should: whole, by a rename."""
    document = json.loads(PlanFile(plan=plan, secret_file=SECRET).canonical())
    text = yaml.safe_dump(document) if as_yaml else json.dumps(document)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def generation(number: int) -> Plan:
    """The plan's next generation."""
    return PLAN.model_copy(update={"generation": number})


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[FileFeed]:
    """A feed that looks often; the file is not there yet."""
    found = FileFeed(tmp_path / "plan", poll_seconds=0.01)
    await found.start()
    yield found
    await found.stop()


async def soon(feed: FileFeed) -> Plan:
    """The next plan, within a deadline."""
    return await asyncio.wait_for(feed.next(), 10)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("as_yaml", [False, True], ids=["JSON", "YAML"])
async def test_either_form_is_the_same_plan(tmp_path: Path, as_yaml: bool) -> None:
    """Digests of digits only stay text, numbers and switches become what they are."""
    write(tmp_path / "plan", PLAN, as_yaml=as_yaml)
    assert read_plan_file(tmp_path / "plan") == PlanFile(plan=PLAN, secret_file=SECRET)


async def test_yaml_may_be_written_by_hand(tmp_path: Path) -> None:
    """Without quotes, in either spelling of a field, with comments."""
    rank = f"{{rank: 0, world_size: 1, nonce: {'0' * 16}}}"
    (tmp_path / "plan").write_text(
        "# by hand\nplan:\n  name: p\n  term: 0\n  generation: 3\n  suspend: true\n"
        f"  sources:\n  - {{uid: t, pod: t, address: 'h:1', ranks: [{rank}]}}\n"
    )
    found = read_plan_file(tmp_path / "plan").plan
    assert (found.generation, found.suspend, found.sources) == (3, True, (SOURCE,))


async def test_each_change_is_given_once(feed: FileFeed, tmp_path: Path) -> None:
    """None before the file is there; then the newest plan; a rewrite of the same plan is no change."""
    assert feed.current is None
    write(tmp_path / "plan", generation(1))
    assert await soon(feed) == generation(1)
    write(tmp_path / "plan", generation(1), as_yaml=True)
    write(tmp_path / "plan", generation(2))
    assert await soon(feed) == generation(2)
    assert feed.current == generation(2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(feed.next(), 0.1)


async def test_a_broken_file_keeps_the_plan_and_is_said_once(
    feed: FileFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names file and field, once however often it is written again; a good file counts at once."""
    path = tmp_path / "plan"
    write(path, generation(1))
    await soon(feed)
    reads: list[Path] = []

    def counted(path: Path) -> PlanFile:
        reads.append(path)
        return read_plan_file(path)

    monkeypatch.setattr(from_file, "read_plan_file", counted)
    with structlog.testing.capture_logs() as logs:
        for number in range(5):
            path.write_text('{"plan": {"name": "x", "term": -1, "generation": 1}}' + " " * number)
            await until(functools.partial(lambda n: len(reads) > n and feed.problem, number))
        assert "plan: plan.term: " in feed.problem
        assert feed.current == generation(1)
        write(path, generation(2))
        assert await soon(feed) == generation(2)
    assert feed.problem == ""
    assert [entry["event"] for entry in logs].count("the plan file cannot be used") == 1


async def test_a_file_that_vanishes_keeps_the_plan(feed: FileFeed, tmp_path: Path) -> None:
    """Removed and made again, with the same plan: no change for anybody."""
    write(tmp_path / "plan", generation(1))
    await soon(feed)
    (tmp_path / "plan").unlink()
    await until(lambda: "cannot be read" in feed.problem)
    assert feed.current == generation(1)
    write(tmp_path / "plan", generation(1))
    write(tmp_path / "plan", generation(2))
    assert await soon(feed) == generation(2)


async def test_the_head_is_read_now(tmp_path: Path) -> None:
    """Not from the last poll, and also where the feed was never started."""
    feed = FileFeed(tmp_path / "plan")
    write(tmp_path / "plan", PLAN)
    assert await feed.head() == (0, "t")
    write(tmp_path / "plan", PLAN.model_copy(update={"coordinator": ""}))
    assert await feed.head() == (0, "")
    (tmp_path / "plan").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        await feed.head()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "document: Input should be", id="an empty file"),
        pytest.param("{", "document: Invalid JSON", id="half of JSON"),
        pytest.param("plan: [", "is no YAML", id="half of YAML"),
        pytest.param(
            "plan: {name: p, term: 0, generation: 0, engine: []}", "plan.engine: Extra", id="a misspelt field"
        ),
        pytest.param("plan: {name: p, term: x, generation: 0}", "plan.term: ", id="a word for a number"),
    ],
)
def test_what_is_no_plan_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The error names the file, and what is wrong in it."""
    (tmp_path / "plan").write_text(text)
    with pytest.raises(InputError) as caught:
        read_plan_file(tmp_path / "plan")
    assert str(caught.value).startswith(str(tmp_path / "plan"))
    assert words in str(caught.value)
