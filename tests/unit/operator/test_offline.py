"""Plans from an inventory, against agents that speak HTTP and are nothing else."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tests.build.pods import OTHER_LAYOUT, engine, shard, trainer
from weightsync.errors import InputError
from weightsync.plan import PlanFile
from weightsync_operator.inventory import Inventory, draft
from weightsync_operator.offline import Planner
from weightsync_operator.planning.pods import Pod

SHARED = "open sesame"


@asynccontextmanager
async def agents(pods: Mapping[str, Pod], secret: str = "") -> AsyncIterator[dict[str, str]]:
    """One server for all: uid -> host:port. What a pod says can be changed while it runs."""
    servers: dict[str, TestServer] = {}

    def handler(uid: str) -> TestServer:
        async def answer(request: web.Request) -> web.Response:
            if secret and request.headers.get("Authorization") != f"Bearer {secret}":
                return web.json_response({"reason": "Unauthenticated", "message": "no token"}, status=401)
            said = pods[uid].announcement
            if said is None:  # as an agent answers that has just started again, see test_who_speaks
                refusal = {"reason": "NotAnnounced", "message": "once it has looked"}
                return web.json_response(refusal, status=503)
            return web.Response(text=said.model_dump_json(), content_type="application/json")

        app = web.Application()
        app.router.add_get("/v1/announcement", answer)
        return TestServer(app)

    for uid in pods:
        servers[uid] = handler(uid)
        await servers[uid].start_server()
    try:
        yield {uid: f"127.0.0.1:{server.port}" for uid, server in servers.items()}
    finally:
        for server in servers.values():
            await server.close()


def inventory(path: Path, addresses: Mapping[str, str], **more: object) -> Path:
    rows = [
        {"uid": uid, "address": address, "role": "trainer" if uid.startswith("t") else "engine"}
        for uid, address in addresses.items()
    ]
    path.write_text(yaml.safe_dump({"agents": rows, **more}), encoding="utf-8")
    return path


async def test_a_plan_file_follows_the_inventory(tmp_path: Path) -> None:
    """Agents that announce themselves are planned; a second look writes nothing; a new engine does."""
    pods = {"t0": trainer("t0"), "e0": engine("e0"), "e1": engine("e1")}
    out = tmp_path / "plan.json"
    async with agents(pods) as where, ClientSession() as session:
        first = {uid: where[uid] for uid in ("t0", "e0")}
        planner = Planner(inventory(tmp_path / "agents.yaml", first, transfer={"bucketSize": "1Mi"}), out)
        _, silent, written = await planner.step(session)
        assert (silent, written) == ({}, True)
        plan = PlanFile.load(out).plan
        assert (plan.term, plan.generation, plan.coordinator) == (1, 1, "t0")
        assert plan.transfer.bucket_bytes == 2**20
        assert [(e.name, e.address) for e in plan.engines] == [("e0", where["e0"])]
        assert (await planner.step(session))[2] is False

        inventory(tmp_path / "agents.yaml", where, transfer={"bucketSize": "1Mi"})
        assert (await planner.step(session))[2] is True
        assert PlanFile.load(out).plan.generation == 2


def saying(pod: Pod, **said: object) -> Pod:
    """The same pod, whose agent says more."""
    assert pod.announcement is not None
    return replace(pod, announcement=pod.announcement.model_copy(update=said))


@pytest.mark.parametrize(
    ("room", "planned"),
    [pytest.param(0, ["e0", "e1"], id="any room"), pytest.param(20, ["e0"], id="room for one engine's replicas")],
)
async def test_a_plan_file_serves_all_layouts_of_a_checkpoint_that_fit(
    tmp_path: Path, room: int, planned: list[str]
) -> None:
    """What agents say of checkpoint, replicas and room counts here as it does for pods."""
    read = {"checkpoint": "c" * 32, "replica_bytes": 20}
    pods = {
        "t0": saying(trainer("t0"), room_bytes=room),
        "e0": saying(engine("e0"), engine_ranks=1, **read),
        "e1": saying(engine("e1", ranks=2, layout=OTHER_LAYOUT), engine_ranks=2, **read),
    }
    out = tmp_path / "plan.json"
    async with agents(pods) as where, ClientSession() as session:
        drafted, _, _ = await Planner(inventory(tmp_path / "agents.yaml", where), out).step(session)
    assert [engine.name for engine in PlanFile.load(out).plan.engines] == planned
    assert [(out.engine, out.reason) for out in drafted.engines.refused] == [
        (name, "SourcesFull") for name in ("e0", "e1") if name not in planned
    ]


async def test_an_agent_that_falls_silent_stays_planned(tmp_path: Path) -> None:
    """It keeps what it said last, and the caller is told; it leaves by leaving the inventory."""
    pods = {"t0": trainer("t0"), "e0": engine("e0")}
    out = tmp_path / "plan.json"
    async with ClientSession() as session:
        async with agents(pods) as where:
            planner = Planner(inventory(tmp_path / "agents.yaml", where), out)
            await planner.step(session)
            pods["e0"] = Pod(namespace="", name="e0", uid="e0")
            _, silent, written = await planner.step(session)
            assert set(silent) == {"e0"}
            assert "once it has looked" in silent["e0"]
            assert not written
        _, silent, written = await planner.step(session)
        assert set(silent) == {"t0", "e0"}
        assert not written
        inventory(tmp_path / "agents.yaml", {"t0": where["t0"]})
        await planner.step(session)
        assert PlanFile.load(out).plan.engines == ()


async def test_another_process_goes_on_from_the_file(tmp_path: Path) -> None:
    """Term, generation and coordinator survive the planner; a trainer's new life raises the term."""
    pods = {"t0": trainer("t0"), "e0": engine("e0")}
    out = tmp_path / "plan.json"
    async with agents(pods) as where, ClientSession() as session:
        path = inventory(tmp_path / "agents.yaml", where)
        await Planner(path, out).step(session)
        assert (await Planner(path, out).step(session))[2] is False
        said = pods["t0"].announcement
        assert said is not None
        reborn = said.model_copy(update={"sources": (said.sources[0].model_copy(update={"nonce": "2" * 16}),)})
        pods["t0"] = Pod(namespace="", name="t0", uid="t0", announcement=reborn)
        await Planner(path, out).step(session)
        assert (PlanFile.load(out).plan.term, PlanFile.load(out).plan.generation) == (2, 2)


async def test_the_secret_is_shown_and_named(tmp_path: Path) -> None:
    """Agents are asked with the secret; the plan file names its path, not its text."""
    secret, out = tmp_path / "secret", tmp_path / "plan.json"
    secret.write_text(f"{SHARED}\n", encoding="utf-8")
    async with agents({"t0": trainer("t0")}, SHARED) as where, ClientSession() as session:
        path = inventory(tmp_path / "agents.yaml", where)
        _, silent, _ = await Planner(path, tmp_path / "other.json").step(session)
        assert "answered 401" in silent["t0"]
        await Planner(path, out, secret).step(session)
    assert PlanFile.load(out).secret_file == str(secret)
    assert SHARED not in out.read_text(encoding="utf-8")


def test_agents_of_one_engine_share_its_name() -> None:
    """They are one engine, led by the agent of rank 0, once all of them have announced themselves."""
    addresses = {"t0": "127.0.0.1:1", "e0": "127.0.0.1:2", "e1": "127.0.0.1:3"}
    rows = [
        {"uid": uid, "address": address, "role": "trainer" if uid == "t0" else "engine"}
        | ({"engine": "big"} if uid != "t0" else {})
        for uid, address in addresses.items()
    ]
    listed = Inventory.model_validate({"agents": rows})
    heard = {
        uid: pod.announcement
        for uid, pod in {"t0": trainer(), "e0": shard("e0", (1,)), "e1": shard("e1", (0,))}.items()
        if pod.announcement is not None
    }
    partly = draft(listed, {uid: said for uid, said in heard.items() if uid != "e1"}, None)
    assert "pod e1: its agent has not announced itself" in partly.engines.waiting[0].message
    plan = draft(listed, heard, None).plan
    assert plan is not None
    (made,) = plan.engines
    assert (made.name, made.leader, [target.uid for target in made.targets]) == ("big", "e1", ["e1", "e0"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("agents: [", "is not YAML", id="no YAML"),
        pytest.param("agents: [{uid: a, address: here, role: engine}]", "agents.0.address", id="no port"),
        pytest.param("agents: [{uid: a, address: 'h:1', role: engine, x: 1}]", "agents.0.x", id="unknown key"),
        pytest.param(
            "agents: [{uid: a, address: 'h:1', role: engine}, {uid: a, address: 'h:2', role: engine}]",
            "agent a stands twice",
            id="twice",
        ),
    ],
)
def test_a_wrong_inventory_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The message names the file and the place."""
    path = tmp_path / "agents.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        Inventory.load_yaml(path)
    assert str(path) in str(caught.value)


async def test_an_address_that_is_no_name_is_that_agents_trouble(tmp_path: Path) -> None:
    """The others are asked, and the agent is named."""
    async with ClientSession() as session:
        planner = Planner(inventory(tmp_path / "agents.yaml", {"t0": "a..b:80"}), tmp_path / "plan.json")
        _, silent, _ = await planner.step(session)
    assert list(silent) == ["t0"]
