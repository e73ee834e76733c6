"""An engine's driver: one look at a time, commits that always end, gates that are asked for until they are known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import weightsync_agent.volume
from weightsync.arena import ArenaState
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.digests import BucketDigest, program_root, version_root
from weightsync.errors import EngineError, PeerError, Refused, TransferError
from weightsync.layout import lay_out
from weightsync.plan import Strategy
from weightsync.version import Version, torn_name
from weightsync.wire.v1 import Capabilities as Wire
from weightsync.wire.v1 import (
    CommitRequest,
    Decided,
    GrantRequest,
    LeaseRequest,
    RankCommit,
    Region,
    RelayEnd,
    RelayOrder,
    RelayRank,
    Welcome,
    WriterId,
)
from weightsync_agent.drivers.engine import EngineDriver
from weightsync_agent.engines.base import (
    Applied,
    ArenaRef,
    Capabilities,
    Description,
    EngineInfo,
    LiveParameter,
    ReadBack,
)
from weightsync_agent.journal.file import JournalFile
from weightsync_agent.journal.records import JournalState
from weightsync_agent.own_pod.no_pod import NoPod
from weightsync_agent.protocol.engine_leader import KeepPaused, LeaderState
from weightsync_agent.protocol.fence import OpenGrant
from weightsync_agent.protocol.joiner import Needs, NeedsNothing
from weightsync_agent.protocol.target import Landed, LastReceipt, TargetState
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.volume import Volume

V1, V2 = (Version(lineage="1" * 16, number=n, root="2" * 64) for n in (1, 2))
GRANT = "a" * 32
LAYOUT = lay_out([("w", "float32", (4,))])


def program(rank: int = 0) -> CopyProgram:
    piece = Piece(box=((0, 4),), offset=0, strides=(4,), dtype="float32")
    tensor = TensorCopies(name="w", dtype="float32", shape=(4,), pieces=(piece,))
    return CopyProgram(rank=rank, layout=LAYOUT, tensors=(tensor,))


class Engine:
    """An engine in memory. calls: what it was asked; hold: describe waits for it; fail: call -> what it raises."""

    def __init__(self, ranks: int) -> None:
        self.name, self.life, self.tp, self.silent = "default", "life", ranks, False
        self.calls: list[str] = []
        self.hold: asyncio.Event | None = None
        self.hold_pause: asyncio.Event | None = None
        self.fail: dict[str, Exception] = {}
        self.in_place = False
        self.paused = False
        self.differs: list[str] = []  # of the next readbacks
        self.meant: set[str] = set()  # lives that applies and readbacks named
        self.replaced: tuple[str, str] | None = None  # name and life of the process that the next resume finds

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    async def info(self) -> EngineInfo:
        return EngineInfo(weight_version=self.name, server_version="1", tp_size=self.tp)

    async def weight_version(self) -> str:
        if self.silent:
            raise EngineError("no answer")
        return self.name

    async def ready(self) -> None: ...

    async def capabilities(self) -> Capabilities:
        return Capabilities(begin_end=True, flush_with_waiting=True)

    async def seed(self, rank: int) -> None: ...

    def forget(self) -> None: ...

    @asynccontextmanager
    async def standstill(self) -> AsyncIterator[None]:
        await self.pause("InPlace")
        try:
            yield
        finally:
            await self.resume()

    async def describe(self, ranks: Sequence[int]) -> tuple[Description, ...]:
        self._call("describe")
        if self.hold is not None:
            await self.hold.wait()
        live = LiveParameter(name="w", dtype="float32", shape=(4,), contiguous=True, nbytes=16, device="cpu")
        return tuple(Description(rank=rank, incarnation=self.life, parameters=(live,)) for rank in ranks)

    async def pin(self, arenas: Sequence[ArenaRef]) -> tuple[()]:
        return ()

    async def snapshot(self, arenas: Sequence[ArenaRef]) -> tuple[()]:
        self._call("snapshot")
        return ()

    async def pause(self, mode: str) -> None:
        self.in_place = mode == "InPlace"
        self._call("stand" if self.in_place else "pause")
        self.paused = True
        if self.hold_pause is not None:
            await self.hold_pause.wait()

    async def set_version(self, name: str) -> None:
        self._call("name")
        self.name = name

    async def begin(self) -> None: ...

    async def apply(self, arenas: Sequence[ArenaRef]) -> tuple[Applied, ...]:
        self._call("apply")
        self.meant |= {ref.incarnation for ref in arenas}
        return ()

    async def end(self) -> None: ...

    async def flush(self, deadline_seconds: float) -> None: ...

    async def readback(self, arenas: Sequence[ArenaRef]) -> tuple[ReadBack, ...]:
        difference = self.differs.pop(0) if self.differs else ""
        self.meant |= {ref.incarnation for ref in arenas}
        return tuple(ReadBack(rank=ref.rank, equal=not difference, difference=difference) for ref in arenas)

    async def resume(self) -> None:
        name, self.in_place = "go on" if self.in_place else "resume", False
        self._call(name)
        self.paused = False
        if self.replaced is not None:
            (self.name, self.life), self.replaced = self.replaced, None


class Worker:
    """A receiving worker in memory. broken: what its attach raises."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.broken = broken
        self.capabilities = Wire(mooncake="1", transport="tcp")

    async def attach(self, path: Path) -> Region:
        if self.broken is not None:
            raise self.broken
        return Region(session="s", address=1, nbytes=16)

    async def digest(self, path: Path, buckets: Sequence[object]) -> list[object]:
        return []

    def kill(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")

    async def close(self) -> None:
        self.kill()


class Programs:
    """Keeps nothing."""

    def put(self, kept: CopyProgram) -> None: ...

    def path(self, digest: str) -> Path:
        return Path(f"{digest}.json")


class World:
    """One driver with everything around it; looks are the test's to make."""

    def __init__(
        self, folder: Path, ranks: int = 1, initial_gate: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self.engine, self.pod, self.workers = Engine(ranks), NoPod(), list[Worker]()
        self.folder, volume = folder, Volume(folder)
        for path in (volume.arenas, volume.layouts):
            path.mkdir(exist_ok=True)
        for rank in range(ranks):
            volume.rank_program(rank).write_text(program(rank).model_dump_json())
        self.broken: list[Exception] = []  # of the next workers
        self.started: list[tuple[str, int, tuple[int, ...]]] = []
        adapter: Any = self.engine
        programs: Any = Programs()
        self.driver = EngineDriver(
            "uid", "1.2.3.4:1", adapter=adapter, volume=volume, journal=JournalFile.within(folder),
            own_pod=self.pod, programs=programs, start=self.start, memory_limit=None, probe_seconds=1.0,
            initial_gate=initial_gate,
        )  # fmt: skip

    async def start(self, name: str, rank: int, ranks: Collection[int], carrier: Carrier = OWN) -> Any:
        self.started.append((name, rank, tuple(ranks)))
        self.workers.append(Worker(self.broken.pop() if self.broken else None))
        return self.workers[-1]

    def arenas(self) -> list[Path]:
        return list(self.folder.glob("arenas/*"))

    @property
    def state(self) -> LeaderState:
        return self.driver.machine.state

    async def look(self) -> None:
        await self.driver._look_once()

    async def seen(self) -> None:
        await self.look()
        await until(lambda: self.state not in (LeaderState.ABSENT, LeaderState.LOOKING))

    async def fall_silent(self) -> None:
        self.engine.silent = True
        await self.look()
        await self.look()
        self.engine.silent = False

    async def commit(self, version: Version) -> None:
        """From sealed arenas on."""
        for target in self.driver.targets.values():
            held = target.arenas[0]
            held.arena.seal(GRANT, version)
            held.machine.state, held.machine.version = TargetState.SEALED, version
            held.machine.grant = OpenGrant(GRANT, 1, "c", "x", version.lineage, version.number, target.program.digest)
        grants = tuple((rank, GRANT) for rank in self.driver.targets)
        async with self.driver._committing:
            await self.driver._run_commit(Decided(version=version, term=1), grants, "Abort")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for is the driver's state, which has no event
            await asyncio.sleep(0.005)


async def test_a_second_look_ends_the_first(tmp_path: Path) -> None:
    """A look that an engine's silence cut off never goes on beside the next one, nor resumes what it paused."""
    world = World(tmp_path)
    world.engine.hold = asyncio.Event()
    await world.look()
    await until(lambda: "describe" in world.engine.calls)
    await world.fall_silent()
    world.engine.hold = None
    await world.seen()
    await world.commit(V1)
    assert [call for call in world.engine.calls if call != "resume"] == [
        *("stand", "describe", "go on"),
        *("stand", "describe", "stand", "snapshot", "apply", "apply", "go on"),
        *("pause", "name", "apply", "name"),
    ]
    assert world.engine.calls[-1] == "resume"
    assert len(world.workers) == 1
    await world.driver.close()


async def test_what_an_engine_announces_of_itself(tmp_path: Path) -> None:
    """Before the first look nothing; then how many ranks it has, what they read and how large the largest is."""
    world = World(tmp_path, ranks=2)
    world.driver._announce()
    before = world.pod.announcement
    assert before is not None
    assert (before.engine_ranks, before.checkpoint, before.replica_bytes) == (0, "", 0)
    await world.seen()
    said = world.pod.announcement
    assert said is not None
    assert (said.engine_ranks, said.checkpoint, said.replica_bytes) == (2, program().checkpoint, LAYOUT.nbytes)
    await world.driver.close()


async def test_a_worker_is_started_for_its_rank_of_all(tmp_path: Path) -> None:
    """So that the ranks of a pod share its devices; also where one is started again."""
    world = World(tmp_path, ranks=2)
    await world.seen()
    assert world.started == [("target-0", 0, (0, 1)), ("target-1", 1, (0, 1))]
    world.workers[1].kill()
    async with asyncio.timeout(10):
        await world.driver.targets[1]._living_worker()
    assert world.started[2:] == [("target-1", 1, (0, 1))]
    await world.driver.close()


async def test_ranks_that_read_different_checkpoints_announce_none(tmp_path: Path) -> None:
    """Whoever plans then compares layouts, as with an agent that does not know."""
    world = World(tmp_path, ranks=2)
    other = CopyProgram(rank=1, layout=LAYOUT, tensors=(program().tensors[0]._replace(name="v"),))
    Volume(tmp_path).rank_program(1).write_text(other.model_dump_json())
    await world.seen()
    said = world.pod.announcement
    assert said is not None
    assert (len(said.targets), said.checkpoint) == (2, "")
    await world.driver.close()


async def test_no_look_stands_in_the_way_of_a_refusal(tmp_path: Path) -> None:
    """A commit that comes in a look is refused at once: the look may last as long as the engine's start."""
    world = World(tmp_path)
    world.engine.hold = asyncio.Event()
    await world.look()
    await until(lambda: "describe" in world.engine.calls)
    with pytest.raises(Refused) as caught:
        await world.driver.commit(request(V1))
    assert (caught.value.reason, caught.value.status) == ("EngineSilent", 503)
    await world.driver.close()


def request(version: Version) -> CommitRequest:
    return CommitRequest(
        term=1, coordinator="c", sync="x", version=version, programs={}, strategy=Strategy(),
        ranks=(RankCommit(rank=0, grant=GRANT, program=program().digest),),
    )  # fmt: skip


async def test_any_failure_of_a_look_is_followed_by_another(tmp_path: Path) -> None:
    """Also one that is a bug: the engine is absent, not looked at for ever, and the next look takes its arena."""
    world = World(tmp_path)
    world.broken = [TransferError("cannot register")]
    world.engine.fail["describe"] = KeyError("bug")
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    assert world.workers[0].dead.done()
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    del world.engine.fail["describe"]
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert len(world.arenas()) == 1
    await world.driver.close()


@pytest.mark.parametrize("error", [OSError("bug"), EngineError("no")], ids=["a bug", "the engine's refusal"])
async def test_every_failed_step_ends_the_commit_torn(tmp_path: Path, error: Exception) -> None:
    """Whatever a step raises: answered, gate closed, paused again, and the next commit goes through."""
    world = World(tmp_path)
    await world.seen()
    world.engine.fail["apply"] = error
    with pytest.raises(Refused) as caught:
        await world.commit(V1)
    assert caught.value.reason == "EngineFailed"
    assert world.state is LeaderState.TORN
    assert world.pod.gate is not None
    assert not world.pod.gate.status
    assert world.driver.targets[0].arenas[0].machine.state is TargetState.SEALED
    world.engine.fail.clear()
    await world.commit(V1)
    assert world.driver.machine.serves(V1)
    await world.driver.close()


async def test_no_rank_stays_kept_where_another_cannot_be(tmp_path: Path) -> None:
    """Rank 0 is kept, rank 1 cannot be: rank 0 gives grants again."""
    world = World(tmp_path, ranks=2)
    await world.seen()
    first, second = world.driver.targets.values()

    async def cannot(grant: str) -> None:
        raise TransferError("rank 1 cannot be kept")

    second.keep = cannot  # type: ignore[method-assign]
    with pytest.raises(Refused):
        await world.commit(V1)
    assert first.arenas[0].machine.state is TargetState.SEALED
    await world.driver.close()


async def test_no_rank_stays_kept_after_a_readback_that_could_not_begin(tmp_path: Path) -> None:
    """A readback counts as a copy: it ends at every rank, too."""
    world = World(tmp_path, ranks=2)
    await world.seen()
    await world.commit(V1)
    assert await world.driver.readback() == (V1.name, True)
    first, second = world.driver.targets.values()
    second.arenas[0].machine.state = TargetState.EMPTY
    with pytest.raises(Refused, match="no grant was given"):
        await world.driver.readback()
    assert first.arenas[0].machine.state is TargetState.SEALED
    await world.driver.close()


async def test_an_older_version_is_refused(tmp_path: Path) -> None:
    """Within a lineage an engine never goes back."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V2)
    with pytest.raises(Refused) as caught:
        await world.driver.commit(request(V1))
    assert caught.value.reason == "StaleVersion"
    assert world.driver.machine.serves(V2)
    await world.driver.close()


async def test_nobody_is_let_in_for_a_version_that_could_not_be_committed(tmp_path: Path) -> None:
    """Its request comes late, and in Direct mode the engine would stop for it."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V2)
    with pytest.raises(Refused) as caught:
        await world.driver.grant(grant_request().model_copy(update={"lineage": V1.lineage, "number": V1.number}))
    assert caught.value.reason == "StaleVersion"
    assert world.driver.machine.serves(V2)
    await world.driver.close()


async def test_a_sync_that_has_ended_takes_no_arena_from_the_next(tmp_path: Path) -> None:
    """Its request was delivered late, or waited here for the rank while the next one's came."""
    world = World(tmp_path)
    await world.seen()
    first = grant_request().model_copy(update={"sync": "c/1/1", "number": 7})
    second = first.model_copy(update={"sync": "c/1/2"})
    world.workers[0].capabilities = first.ours
    async with world.driver.targets[0]._lock:
        late, asked = (asyncio.create_task(world.driver.grant(each)) for each in (first, second))
        await asyncio.sleep(0.01)
    with pytest.raises(Refused) as waited:
        await late
    given = await asked
    with pytest.raises(Refused) as came:
        await world.driver.grant(first)
    assert (waited.value.reason, came.value.reason) == ("SyncEnded", "SyncEnded")
    assert world.driver.targets[0].granted(given.grant)
    await world.driver.close()


async def test_what_is_sealed_for_a_commit_is_nobody_elses_until_the_engine_has_it(tmp_path: Path) -> None:
    """Neither the next sync's, nor our own reader's: before the commit comes, and from its seal to its end."""
    world = World(tmp_path)
    await world.seen()
    rank, decided = world.driver.targets[0], whole_version(world, 7)
    ask = grant_request().model_copy(update={"sync": "c/1/1", "number": 7})
    world.workers[0].capabilities = ask.ours
    given = await world.driver.grant(ask)
    bucket = BucketDigest(offset=0, nbytes=16, digest="0" * 32)
    rank.granted(given.grant).handle(Landed(given.grant, (bucket,), (bucket,)))
    for writer in ask.writers:
        rank.granted(given.grant).handle(LastReceipt(given.grant, writer.key, ""))
    assert world.driver.needs(60.0) == NeedsNothing("a sync writes to it")
    request = CommitRequest(
        term=1, coordinator="c", sync="c/1/1", version=decided.version, programs=decided.programs,
        strategy=Strategy(pause_mode="Abort"),
        ranks=(RankCommit(rank=0, grant=given.grant, program=rank.program.digest),),
    )  # fmt: skip
    sealed, goes_on, capable = asyncio.Event(), asyncio.Event(), world.engine.capabilities

    async def late_capabilities() -> Capabilities:
        if rank.kept:
            sealed.set()
            await goes_on.wait()
        return await capable()

    world.engine.capabilities = late_capabilities  # type: ignore[method-assign]
    async with rank._lock:
        commit = asyncio.create_task(world.driver.commit(request))
        await until(lambda: len(rank._lock._waiters or ()) == 1)
        late = asyncio.create_task(world.driver.grant(ask.model_copy(update={"sync": "c/1/2", "number": 8})))
        await until(lambda: len(rank._lock._waiters or ()) == 2)
    await asyncio.wait_for(sealed.wait(), 10)
    assert world.state is LeaderState.FRESH
    assert world.driver.needs(0.0) == NeedsNothing("a sync begins, or its commit does")
    with pytest.raises(Refused, match="ask again") as granted:
        await late
    with pytest.raises(Refused) as read:
        await rank.begin_pull(decided.version, 1)
    assert (granted.value.reason, read.value.reason) == ("Busy", "Busy")
    goes_on.set()
    assert (await commit).version == decided.version.name
    assert not rank.kept
    await world.driver.close()


async def test_a_welcome_ends_with_the_silence_of_the_engine(tmp_path: Path) -> None:
    """A version may have been decided while it was away: its gate opens by a welcome that comes after that."""
    world = World(tmp_path)
    welcome = Welcome(term=1, coordinator="c", initial_gate="Open")
    await world.driver.welcome(welcome)
    await world.seen()
    assert world.pod.gate is None
    await world.driver.welcome(welcome)
    assert world.pod.gate is not None
    assert world.pod.gate.status
    await world.fall_silent()
    await world.seen()
    assert not world.pod.gate.status
    await world.driver.welcome(welcome)
    assert world.pod.gate.status
    await world.driver.close()


async def test_the_initial_gate_is_asked_for_until_it_is_known(tmp_path: Path) -> None:
    """An API that does not answer once is asked again."""
    answers: list[bool | Exception] = [True, PeerError("the API is away")]

    async def allowed() -> bool:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    world = World(tmp_path, initial_gate=allowed)
    await world.seen()
    await until(lambda: world.pod.gate is not None and world.pod.gate.status)
    assert not answers
    await world.driver.close()


async def test_a_torn_engine_that_restarts_between_two_looks_is_paused(tmp_path: Path) -> None:
    """It shows its base version, answers every look, and was paused in its former life only."""
    world = World(tmp_path)
    await world.seen()
    world.engine.fail["apply"] = EngineError("no")
    with pytest.raises(Refused):
        await world.commit(V1)
    await until(lambda: world.engine.calls[-1] == "pause")
    world.engine.calls.clear()
    await world.look()
    assert not world.engine.calls
    world.engine.name = "default"
    await world.look()
    assert world.state is LeaderState.LOOKING
    await until(lambda: world.state not in (LeaderState.LOOKING, LeaderState.COMMITTING))
    assert world.engine.calls[:2] == ["pause", "describe"]
    await world.driver.close()


async def test_a_look_that_was_ended_says_nothing_more(tmp_path: Path) -> None:
    """Its standstill fails as it ends: that is no news of the look that runs by now."""
    world = World(tmp_path)
    world.engine.hold = asyncio.Event()
    await world.look()
    await until(lambda: "describe" in world.engine.calls)
    await world.fall_silent()
    world.engine.fail["go on"] = EngineError("gone")
    await world.look()
    await until(lambda: world.engine.calls.count("describe") == 2)
    assert world.state is LeaderState.LOOKING
    world.engine.fail.clear()
    world.engine.hold.set()
    await until(lambda: world.state is LeaderState.FRESH)
    await world.driver.close()


@pytest.mark.parametrize("name", ["default", V1.name], ids=["another name", "the journal's name"])
async def test_a_look_at_a_torn_engine_never_resumes_it(tmp_path: Path, name: str) -> None:
    """Whatever it calls itself; and a pause that was meant for the life before does not land in this one."""
    world = World(tmp_path)
    await world.seen()
    world.engine.fail["apply"] = EngineError("no")
    with pytest.raises(Refused):
        await world.commit(V1)
    await world.fall_silent()
    world.engine.calls.clear()
    world.engine.name = name
    await world.seen()
    assert world.engine.calls[:2] == ["pause", "describe"]
    assert "go on" not in world.engine.calls
    await world.driver.close()


async def test_a_pause_for_the_life_before_is_ended_by_the_look(tmp_path: Path) -> None:
    """It hangs in a torn engine that was replaced: landing later it would stop the new process for good."""
    world = World(tmp_path)
    await world.seen()
    world.engine.fail["apply"] = EngineError("no")
    with pytest.raises(Refused):
        await world.commit(V1)
    await until(lambda: world.driver._pausing is not None and world.driver._pausing.done())
    world.engine.hold_pause = asyncio.Event()
    world.engine.calls.clear()
    world.driver._act(KeepPaused("again"))
    await until(lambda: "pause" in world.engine.calls)
    pausing = world.driver._pausing
    world.engine.hold_pause = None
    await world.fall_silent()
    await world.seen()
    assert pausing is not None
    assert pausing.cancelled()
    await world.driver.close()


# --- certified before trusted ---


async def test_a_fresh_engine_is_certified_on_its_own_checkpoint(tmp_path: Path) -> None:
    """Copied out, applied and read back twice, and then as if nothing had been: no journal, empty arenas."""
    world = World(tmp_path)
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert world.engine.calls == ["resume", "stand", "describe", "stand", "snapshot", "apply", "apply", "go on"]
    assert not JournalFile.within(tmp_path).path.exists()
    assert world.driver.targets[0].arenas[0].arena.header.state is ArenaState.EMPTY
    await world.driver.close()


@pytest.mark.parametrize("differs", [["w: byte 3"], ["", "w: byte 3"]], ids=["at once", "the second time"])
async def test_what_does_not_give_back_what_was_applied_is_refused(tmp_path: Path, differs: list[str]) -> None:
    """It stays paused, its gate closed, and the announcement says which parameter."""
    world = World(tmp_path)
    world.engine.differs = differs
    await world.seen()
    assert world.state is LeaderState.REFUSED
    assert "w: byte 3" in world.driver.machine.problem
    assert world.engine.paused
    assert world.pod.gate is not None
    assert not world.pod.gate.status
    with pytest.raises(Refused):
        await world.driver.grant(grant_request())
    await world.driver.close()


def grant_request() -> GrantRequest:
    return GrantRequest(
        term=1, coordinator="c", sync="x", rank=0, layout=LAYOUT.digest, program=program().digest, lineage="1" * 16,
        number=1, writers=(WriterId(uid="s", rank=0),), ours=Wire(mooncake="1", transport="tcp"),
    )  # fmt: skip


async def test_an_agent_that_died_while_it_certified_goes_on_from_the_arenas(tmp_path: Path) -> None:
    """The engine may be torn: it is paused, gets its own checkpoint back, and only then goes on."""
    world = World(tmp_path)
    world.engine.fail["apply"] = EngineError("killed")
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    assert world.engine.paused
    journal = JournalFile.within(tmp_path).read()
    assert journal is not None
    assert (journal.state, journal.base) == (JournalState.TORN, True)
    await world.driver.close()
    again = World(tmp_path)
    again.engine.paused = True
    await again.seen()
    assert again.state is LeaderState.FRESH
    assert again.engine.calls == ["pause", "describe", "pause", "apply", "apply", "resume"]
    await again.driver.close()


async def test_a_copy_of_the_checkpoint_that_is_gone_leaves_the_engine_paused(tmp_path: Path) -> None:
    """Nothing here can make it whole again: refused, with what to do."""
    world = World(tmp_path)
    world.engine.fail["apply"] = EngineError("killed")
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    await world.driver.close()
    for path in world.arenas():
        path.unlink()
    again = World(tmp_path)
    await again.seen()
    assert again.state is LeaderState.REFUSED
    assert "restart it" in again.driver.machine.problem
    assert again.engine.paused
    await again.driver.close()


async def test_a_life_that_was_not_certified_is_in_its_first_commit(tmp_path: Path) -> None:
    """An engine that restarted is given its version back: applied and read back twice in one pause."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V1)
    await world.driver.close()
    again = World(tmp_path)
    again.engine.life = "life-2"
    await again.seen()
    await until(lambda: again.driver.machine.serves(V1))
    assert again.engine.calls.count("apply") == 2
    await again.commit(V2)
    assert again.engine.calls.count("apply") == 3
    await again.driver.close()


async def test_a_commit_that_cannot_be_read_back_refuses_the_engine(tmp_path: Path) -> None:
    """Certified never: paused for good, named, and not committed to again."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V1)
    await world.driver.close()
    again = World(tmp_path)
    again.engine.life, again.engine.differs = "life-2", ["", "w: byte 3"]
    await again.seen()
    await until(lambda: again.state is LeaderState.REFUSED)
    assert "w: byte 3" in again.driver.machine.problem
    await until(lambda: again.engine.calls[-1] == "pause")
    assert again.engine.paused
    await again.driver.close()


async def test_a_fresh_engine_that_a_look_left_paused_goes_on(tmp_path: Path) -> None:
    """The agent died in its look: the engine would not give the token that shows it ready."""
    world = World(tmp_path)
    world.engine.paused = True
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert world.engine.calls[0] == "resume"
    assert not world.engine.paused
    await world.driver.close()


async def test_an_engine_with_our_version_and_no_journal_is_torn(tmp_path: Path) -> None:
    """What it holds is not known: it is paused for a sync, not taken for fresh."""
    world = World(tmp_path)
    world.engine.name = V1.name
    await world.seen()
    assert world.state is LeaderState.TORN
    assert world.engine.calls[0] == "pause"
    assert world.engine.paused
    await world.driver.close()


async def test_a_process_that_answers_continue_for_another_is_not_taken_for_current(tmp_path: Path) -> None:
    """It was replaced between its name and the continue: the commit fails, and the new one gets the version back."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V1)
    world.engine.replaced = ("default", "life-2")
    with pytest.raises(Refused) as caught:
        await world.commit(V2)
    assert "calls itself 'default'" in str(caught.value)
    assert world.pod.gate is not None
    await until(lambda: world.driver.machine.serves(V2))
    assert world.engine.name == V2.name
    await world.driver.close()


async def test_a_process_that_took_the_engines_place_is_not_named_after_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was replaced once the bytes stood in it: nothing stands in the new one, whatever it is called."""
    world = World(tmp_path)
    await world.seen()
    await world.commit(V1)
    names: list[str] = []
    set_version = world.engine.set_version

    async def replaced() -> None:
        world.engine.name, world.engine.life, world.engine.paused = "default", "life-2", False

    async def noted(name: str) -> None:
        names.append(name)
        await set_version(name)

    monkeypatch.setattr(world.engine, "set_version", noted)
    with monkeypatch.context() as patch:
        patch.setattr(world.engine, "end", replaced)
        with pytest.raises(Refused, match="calls itself 'default'"):
            await world.commit(V2)
        assert names == [torn_name(V2.name)]
    await until(lambda: world.driver.machine.serves(V2))
    await world.driver.close()


async def test_bytes_go_only_into_the_process_that_was_looked_at(tmp_path: Path) -> None:
    """Every apply and readback names it, so that a restarted engine refuses both."""
    world = World(tmp_path, ranks=2)
    await world.seen()
    await world.commit(V1)
    assert await world.driver.readback() == (V1.name, True)
    assert world.engine.meant == {"life"}
    await world.driver.close()


async def test_an_engine_is_certified_only_in_an_arena_that_is_quiet(tmp_path: Path) -> None:
    """Its first sync was being staged when it restarted: the writer's late bytes must not meet its checkpoint."""
    world = World(tmp_path)
    await world.seen()
    target = world.driver.targets[0]
    await world.driver.grant(grant_request())
    world.engine.life = "life-2"
    await world.fall_silent()
    world.engine.calls.clear()
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    assert "snapshot" not in world.engine.calls
    assert not world.engine.paused
    await until(lambda: target.arenas[0].machine.state is TargetState.EMPTY)
    assert world.workers[0].dead.done()
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert target.arenas[0].machine.state is TargetState.EMPTY
    await world.driver.close()


async def test_what_is_meant_for_another_pod_is_refused(tmp_path: Path) -> None:
    """A pod that replaced another at its address takes neither its grants nor its commits, nor a caller's term."""
    world = World(tmp_path)
    await world.seen()
    calls: list[Awaitable[object]] = [
        world.driver.grant(grant_request().model_copy(update={"target": "before"})),
        world.driver.commit(request(V1).model_copy(update={"target": "before"})),
    ]
    for call in calls:
        with pytest.raises(Refused) as caught:
            await call
        assert caught.value.reason == "WrongPod"
    assert world.driver.fence.term == 0
    assert await world.driver.grant(grant_request().model_copy(update={"target": "uid"}))
    await world.driver.close()


async def test_no_relay_begins_while_the_engine_is_looked_at(tmp_path: Path) -> None:
    """The look has ended what read into the arenas, and lends them: another turn would find them lent."""
    world = World(tmp_path)
    ordered: list[RelayOrder] = []

    class Relays:
        async def order(self, order: RelayOrder) -> RelayEnd:
            ordered.append(order)
            return RelayEnd(ended=False)

        async def end(self, why: str) -> None: ...

        async def close(self) -> None: ...

    world.driver.exchange._relaying = Relays()  # type: ignore[assignment]
    order = RelayOrder(
        term=1, coordinator="c", sync="c/1/1", turn=1, uid="p", engine="p", address="p",
        ranks=(RelayRank(rank=0, grant=GRANT, parent="b" * 32),), deadline_seconds=30.0, stall_seconds=1.0,
    )  # fmt: skip
    world.engine.hold = asyncio.Event()
    await world.look()
    assert world.state is LeaderState.LOOKING
    with pytest.raises(Refused) as refused:
        await world.driver.relay(order)
    assert (refused.value.reason, ordered) == ("EngineSilent", [])
    world.engine.hold.set()
    await world.seen()
    assert not (await world.driver.relay(order)).ended
    assert ordered == [order]
    await world.driver.close()


async def test_a_commit_that_waited_while_another_term_began_is_refused(tmp_path: Path) -> None:
    """It waits for a commit that runs; its coordinator is deposed meanwhile, and nothing of it has effect."""
    world = World(tmp_path)
    await world.seen()
    world.engine.calls.clear()
    async with world.driver._committing:
        waiting = asyncio.create_task(world.driver.commit(request(V1)))
        await asyncio.sleep(0)
        world.driver.fence.raise_to(2, "d")
    with pytest.raises(Refused) as caught:
        await waiting
    assert caught.value.reason == "StaleTerm"
    assert world.engine.calls == []
    await world.driver.close()


async def met(folder: Path) -> None:
    """An agent that has ended since a coordinator, d of term 2, shook hands with it."""
    world = World(folder)
    await world.seen()
    await world.driver.grant(grant_request().model_copy(update={"term": 2, "coordinator": "d"}))
    await world.driver.close()


async def test_a_term_outlives_the_engines_agent(tmp_path: Path) -> None:
    """It was seen in a handshake only: after the agent's restart the coordinator before it is still refused."""
    await met(tmp_path)
    again = World(tmp_path)
    await again.seen()
    with pytest.raises(Refused) as caught:
        await again.driver.grant(grant_request())
    assert caught.value.reason == "StaleTerm"
    await again.driver.close()


async def test_an_agent_that_a_coordinator_knows_says_what_it_is_once_it_has_looked(tmp_path: Path) -> None:
    """What the agent before it announced stands until then: the engine stays in the plan over a restart."""
    world = World(tmp_path)
    running = asyncio.create_task(world.driver.run())
    await until(lambda: world.pod.announcement is not None)
    assert world.pod.announcement is not None
    assert world.pod.announcement.targets == ()  # nobody knows it: so the operator learns that its agent is there
    await until(lambda: world.state is LeaderState.FRESH)
    await world.driver.grant(grant_request().model_copy(update={"term": 2, "coordinator": "d"}))
    running.cancel()
    await world.driver.close()
    again = World(tmp_path)
    again.engine.hold = asyncio.Event()
    running = asyncio.create_task(again.driver.run())
    await until(lambda: "describe" in again.engine.calls)
    assert again.pod.announcement is None
    again.engine.hold.set()
    await until(lambda: again.pod.announcement is not None)
    assert [rank.rank for rank in again.pod.announcement.targets] == [0]
    assert again.pod.announcement.ready
    running.cancel()
    await again.driver.close()


async def test_an_engine_that_is_gone_when_its_agent_is_back_is_said_to_be(tmp_path: Path) -> None:
    await met(tmp_path)
    again = World(tmp_path)
    await again.fall_silent()
    assert again.pod.announcement is not None
    assert (again.pod.announcement.ready, again.pod.announcement.targets) == (False, ())
    await again.driver.close()


async def test_an_engine_without_copy_programs_says_so_until_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gate and its announcement name the ranks and what to do; nothing of it is left once they came."""
    monkeypatch.setattr(weightsync_agent.volume, "PATIENCE", 1)
    world = World(tmp_path, ranks=2)
    path = world.driver._ranks.volume.rank_program(1)
    text = path.read_bytes()
    path.unlink()
    await world.look()
    await until(lambda: world.pod.gate is not None)
    assert world.pod.gate is not None
    assert (world.pod.gate.status, world.pod.gate.reason) == (False, "NoCopyProgram")
    said = f"no copy program for rank 1 of 2: {path} is not there; an init container in the engine's image writes it"
    assert world.pod.gate.message.startswith(said)
    assert world.pod.announcement is not None
    assert world.pod.announcement.refused == world.pod.gate.message
    path.write_bytes(text)
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert world.pod.announcement.refused == ""
    await world.driver.close()


async def test_a_copy_program_that_is_none_is_said_and_read_again(tmp_path: Path) -> None:
    """Whoever wrote it sees the file and its first wrong field; a whole one in its place is taken."""
    world = World(tmp_path)
    path = world.driver._ranks.volume.rank_program(0)
    text = path.read_bytes()
    path.write_bytes(b"{}")
    await world.look()
    await until(lambda: world.state is LeaderState.ABSENT)
    assert world.pod.announcement is not None
    assert world.pod.announcement.refused == f"{path}: layout: Field required"
    path.write_bytes(text)
    await world.seen()
    assert world.state is LeaderState.FRESH
    assert world.pod.announcement.refused == ""
    await world.driver.close()


async def test_the_program_of_another_model_is_refused(tmp_path: Path) -> None:
    """A file that another engine's start left: the first parameter that this engine does not have so is named."""
    world = World(tmp_path)
    path = world.driver._ranks.volume.rank_program(0)
    other = CopyProgram(layout=lay_out([("w", "float32", (8,))]), tensors=())
    path.write_bytes(other.canonical())
    await world.seen()
    assert world.state is LeaderState.REFUSED
    assert world.pod.announcement is not None
    assert world.pod.announcement.refused == "rank 0: w float32 (8,) in the layout, float32 (4,) in the engine"
    await world.driver.close()


# --- joins ---


def whole_version(world: World, number: int, digest: str = "0") -> Decided:
    """Of one bucket of each rank, which these workers call verified."""
    bucket = BucketDigest(offset=0, nbytes=16, digest=digest * 32)
    roots = {target.program.digest: program_root([bucket]) for target in world.driver.targets.values()}
    root = version_root("1" * 16, number, roots)
    return Decided(version=Version(lineage="1" * 16, number=number, root=root), term=3, programs=roots)


async def pulled(world: World, decided: Decided) -> None:
    """As our reader leaves it."""
    bucket = BucketDigest(offset=0, nbytes=16, digest="0" * 32)
    for target in world.driver.targets.values():
        arena = await target.begin_pull(decided.version, decided.term)
        assert await target.pulled(arena, bucket, bucket)
        await target.end_pull(arena)


async def test_an_engine_takes_over_what_was_pulled_and_lends_it(tmp_path: Path) -> None:
    """It serves it, obeys the decision's term from then on, remembers both on disk, and others may read it."""
    world = World(tmp_path)
    assert isinstance(world.driver.needs(60.0), NeedsNothing)
    await world.seen()
    assert world.driver.needs(60.0) == Needs(None, sealed=False)
    assert world.driver.exchange.holding.held().decided is None
    decided = whole_version(world, 5)
    await pulled(world, decided)
    await world.driver.take(None, decided, "c", "Abort")
    assert world.state is LeaderState.CURRENT
    assert isinstance(world.driver.needs(60.0), NeedsNothing)
    assert (world.driver.fence.term, world.driver.fence.coordinator) == (3, "c")
    journal = JournalFile.within(tmp_path).read()
    assert journal is not None
    assert (journal.version, journal.term, journal.coordinator) == (decided.version, 3, "c")
    held = world.driver.exchange.holding.held()
    assert (held.decided, held.readers, held.most) == (decided, 0, 2)
    request = LeaseRequest(
        reader="r", version=decided.version, programs={0: program().digest},
        ours=Wire(mooncake="0.3.13", transport="tcp"),
    )  # fmt: skip
    world.workers[0].capabilities = request.ours
    lease = await world.driver.exchange.holding.lease(request)
    assert [rank.buckets for rank in lease.ranks] == [(BucketDigest(offset=0, nbytes=16, digest="0" * 32),)]
    assert world.driver.exchange.holding.held().readers == 1
    with pytest.raises(Refused) as refused:
        await world.driver.exchange.holding.lease(request.model_copy(update={"programs": {0: "9" * 32}}))
    assert refused.value.reason == "LayoutMismatch"
    ask = GrantRequest(
        term=3, coordinator="c", sync="x", rank=0, layout=LAYOUT.digest, program=program().digest, lineage="1" * 16,
        number=6, writers=(WriterId(uid="s", rank=0),), ours=request.ours,
    )  # fmt: skip
    await world.driver.grant(ask)
    with pytest.raises(Refused) as gone:
        await world.driver.exchange.holding.lease(request)
    assert (gone.value.reason, world.driver.exchange.holding.held().decided) == ("NotHeld", None)
    await world.driver.close()


async def test_a_version_that_is_not_whole_is_not_taken_over(tmp_path: Path) -> None:
    """Nothing was read, or the roots are others: refused, and the engine serves on."""
    world = World(tmp_path)
    await world.seen()
    decided = whole_version(world, 5)
    with pytest.raises(Refused, match="does not hold all"):
        await world.driver.take(None, decided, "", "Abort")
    other = whole_version(world, 5, digest="9")
    await pulled(world, other)
    with pytest.raises(Refused, match="not the decided one"):
        await world.driver.take(None, other, "", "Abort")
    assert world.state is LeaderState.FRESH
    assert world.driver.fence.term == 0
    await world.driver.close()


async def test_an_engine_goes_back_by_no_join(tmp_path: Path) -> None:
    """To an older number, or after it was told of another version since it began."""
    world = World(tmp_path)
    await world.seen()
    newer, older = whole_version(world, 5), whole_version(world, 4)
    await pulled(world, newer)
    await world.driver.take(None, newer, "", "Abort")
    for own in (None, newer):
        with pytest.raises(Refused) as refused:
            await world.driver.take(own, older, "", "Abort")
        assert refused.value.reason == "StaleVersion"
    with pytest.raises(Refused, match="meanwhile"):
        await world.driver.take(older, whole_version(world, 6), "", "Abort")
    await world.driver.close()


async def test_an_engine_that_is_written_to_needs_nothing_for_as_long_as_a_sync_lasts(tmp_path: Path) -> None:
    """A writer that is silent for longer is gone, and somebody else may have the version."""
    world = World(tmp_path)
    await world.seen()
    ask = GrantRequest(
        term=1, coordinator="c", sync="x", rank=0, layout=LAYOUT.digest, program=program().digest, lineage="1" * 16,
        number=1, writers=(WriterId(uid="s", rank=0),), ours=Wire(mooncake="0.3.13", transport="tcp"),
    )  # fmt: skip
    world.workers[0].capabilities = ask.ours
    await world.driver.grant(ask)
    assert world.driver.needs(60.0) == NeedsNothing("a sync writes to it")
    assert isinstance(world.driver.needs(0.0), Needs)
    await world.driver.close()


async def test_an_engine_needs_nothing_while_a_grant_is_on_its_way(tmp_path: Path) -> None:
    """A reader that began meanwhile would find the new grant open, and fence the writer that it was just given to."""
    world = World(tmp_path)
    await world.seen()
    ask = GrantRequest(
        term=1, coordinator="c", sync="x", rank=0, layout=LAYOUT.digest, program=program().digest, lineage="1" * 16,
        number=1, writers=(WriterId(uid="s", rank=0),), ours=Wire(mooncake="0.3.13", transport="tcp"),
    )  # fmt: skip
    world.workers[0].capabilities = ask.ours
    async with world.driver.targets[0]._lock:  # as while its worker is being replaced
        granting = asyncio.create_task(world.driver.grant(ask))
        await asyncio.sleep(0.01)
        assert not granting.done()
        assert world.driver.needs(60.0) == NeedsNothing("a sync begins, or its commit does")
    await granting
    with pytest.raises(Refused):
        await world.driver.grant(ask.model_copy(update={"layout": "9" * 32}))
    assert isinstance(world.driver.needs(0.0), Needs)
    await world.driver.close()
