"""A pod of an engine of several: what it says of itself, and what it keeps for its leader."""

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.drivers.test_engine_driver import LAYOUT, Programs, Worker, program, until
from weightsync.errors import PeerError, Refused
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire.v1 import Capabilities, GrantRequest, WriterId
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.landing import Landing, staged
from weightsync_agent.drivers.member import MemberDriver
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.own_pod.no_pod import NoPod
from weightsync_agent.protocol.engine_member import MemberState
from weightsync_agent.protocol.fence import OpenGrant
from weightsync_agent.protocol.target import TargetState
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.volume import Volume

V1 = Version(lineage="1" * 16, number=1, root="2" * 64)
GRANT = "a" * 32
RANKS = (2, 3)
OURS = Capabilities(mooncake="0.3.13", transport="tcp")


class World:
    """Pod 1 of two with ranks 2 and 3. engine: what its leader answers, None: nothing."""

    def __init__(self, folder: Path) -> None:
        volume, self.pod = Volume(folder), NoPod()
        for path in (volume.arenas, volume.layouts):
            path.mkdir(exist_ok=True)
        for rank in RANKS:
            volume.rank_program(rank).write_text(program(rank).model_dump_json())
        self.engine: w.EngineOf | None = None
        programs: Any = Programs()
        direct: Any = None
        client: Any = self
        self.driver = MemberDriver(
            "me", "1.2.3.4:1", node=1, leader="leader:1", client=client, volume=volume, own_pod=self.pod,
            make_ranks=lambda served: EngineRanks(
                volume, programs, self._start, landing=Landing(staged, direct, memory_limit=None, arenas=1),
                make_direct=direct, arenas=1, served=served,
            ),
            probe_seconds=1.0, stall_seconds=1.0, side=Side("me"),
        )  # fmt: skip

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> w.EngineOf:
        if self.engine is None:
            raise PeerError("no answer")
        return self.engine

    async def _start(self, name: str, rank: int, ranks: Collection[int], carrier: Carrier = OWN) -> Any:
        worker = Worker()
        worker.capabilities = OURS
        return worker

    def leads(self, leader: str = "leader", **said: Any) -> None:
        fields: dict[str, Any] = {"life": "1" * 16, "ranks": RANKS, "engine_ranks": 4, "ready": True, **said}
        self.engine = w.EngineOf(leader=leader, **fields)

    async def told(self) -> None:
        await self.driver._tell_leader()

    async def hold(self) -> w.Held:
        """Of what lies sealed in every rank's arena."""
        for target in self.driver.targets.values():
            held = target.arenas[0]
            if held.machine.state is not TargetState.KEPT:
                held.machine.state, held.machine.version = TargetState.SEALED, V1
                held.machine.grant = OpenGrant(GRANT, 1, "c", "x", V1.lineage, 1, target.program.digest)
        grants = dict.fromkeys(reversed(RANKS), GRANT)
        return await self.driver.hold(
            w.Hold(leader="leader", target="me", life=self.driver.life, version=V1, grants=grants)
        )

    def ask(self, rank: int = 2) -> GrantRequest:
        return GrantRequest(
            term=1, coordinator="c", sync="x", rank=rank, layout=LAYOUT.digest, program=program(rank).digest,
            lineage="1" * 16, number=2, writers=(WriterId(uid="s", rank=0),), ours=OURS,
        )  # fmt: skip

    def states(self) -> set[TargetState]:
        return {target.arenas[0].machine.state for target in self.driver.targets.values()}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    found = World(tmp_path)
    yield found
    await found.driver.close()


async def led(world: World) -> World:
    world.leads()
    await world.told()
    await until(lambda: len(world.driver.targets) == len(RANKS))
    return world


async def test_a_pod_without_a_leader_grants_nothing(world: World) -> None:
    """It says that it is there, and is ready once its leader says so and its own arenas are there."""
    await world.told()
    with pytest.raises(Refused) as alone:
        await world.driver.grant(world.ask())
    assert alone.value.reason == "EngineSilent"
    await led(world)
    await until(lambda: world.pod.announcement is not None and world.pod.announcement.ready)
    assert (await world.driver.grant(world.ask())).grant
    world.leads(ready=False)
    await world.told()
    assert world.pod.announcement is not None
    assert not world.pod.announcement.ready


async def test_a_sync_that_has_ended_gets_no_grant(world: World) -> None:
    """Its coordinator has asked for another since."""
    await led(world)
    assert (await world.driver.grant(world.ask().model_copy(update={"sync": "c/1/2"}))).grant
    with pytest.raises(Refused) as over:
        await world.driver.grant(world.ask().model_copy(update={"sync": "c/1/1"}))
    assert over.value.reason == "SyncEnded"


async def test_what_is_held_is_granted_to_nobody_until_its_release(world: World) -> None:
    """And a release that is not this leader's, or of another life of this agent, frees nothing."""
    await led(world)
    held = await world.hold()
    assert ({rank.rank for rank in held.ranks}, world.states()) == (set(RANKS), {TargetState.KEPT})
    with pytest.raises(Refused) as busy:
        await world.driver.grant(world.ask())
    assert busy.value.reason == "Busy"
    release = w.Release(leader="leader", target="me", life=world.driver.life, grants=dict.fromkeys(RANKS, GRANT))
    for other, reason in ({"leader": "x"}, "NotLeader"), ({"life": "9" * 16}, "WrongLife"):
        with pytest.raises(Refused) as refused:
            await world.driver.release(release.model_copy(update=other))
        assert refused.value.reason == reason
    assert world.driver.machine.state is MemberState.HELD
    await world.driver.release(release)
    assert world.states() == {TargetState.SEALED}
    assert (await world.driver.grant(world.ask())).grant


async def test_what_an_answer_frees_is_not_what_is_held_meanwhile(world: World) -> None:
    """The same grants: the leader's agent restarted, and gives the engine back what it had."""
    await led(world)
    await world.hold()
    world.leads(life="2" * 16)
    first = world.driver.targets[RANKS[0]]
    async with first._lock:  # as while a receipt is compared
        answered = asyncio.create_task(world.told())
        await until(lambda: world.driver.machine.state is MemberState.FOLLOWING)
        again = asyncio.create_task(world.hold())
        await asyncio.sleep(0.01)
    await asyncio.gather(answered, again)
    assert world.driver.machine.state is MemberState.HELD
    assert world.states() == {TargetState.KEPT}


async def test_every_ranks_problem_is_told_until_it_is_none(world: World) -> None:
    """Of two ranks the first lacks a parameter: what the second says does not hide that."""
    await led(world)
    row = {"name": "w", "dtype": "float32", "shape": [4], "contiguous": True, "nbytes": 16, "device": "cpu"}
    for rank, parameters in ((2, []), (3, [row])):
        record = {"op": "describe", "rank": rank, "incarnation": "1:1", "parameters": parameters}
        said = world.driver._compared(rank, record)
        assert (bool(said["problem"]), said["parameters"]) == (not parameters, [])
    assert world.pod.announcement is not None
    assert "no parameter of the engine" in world.pod.announcement.refused
    world.driver._compared(2, {"op": "describe", "rank": 2, "incarnation": "1:1", "parameters": [row]})
    assert world.pod.announcement.refused == ""
