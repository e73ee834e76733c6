"""The hook inside the engine: what it sees, what it refuses, and a commit held against a load from disk."""

from typing import Any

from tests.contract.api import Json
from tests.contract.table import case
from tests.contract.world import World
from weightsync.errors import EngineError
from weightsync_agent.engines.base import ArenaRef
from weightsync_agent.engines.incarnation import engine_incarnation, is_new_life
from weightsync_agent.engines.payload import hook_call


@case("describe")
async def _describe(world: World) -> Json:
    description = await world.described()
    async with world.engine.standstill():
        (again,) = await world.engine.describe([0])
    parts = {p.name.split(".")[-2] for p in description.parameters}
    return {
        "the same life": engine_incarnation([description]) == engine_incarnation([again]),
        "the same table": description.parameters == again.parameters,
        "all contiguous": all(p.contiguous for p in description.parameters),
        "fused": [part for part in ("q_proj", "qkv_proj", "up_proj", "gate_up_proj") if part in parts],
        "ends": [description.parameters[0].name, description.parameters[-1].name],
        "tied": [p.name for p in description.parameters if p.tied],
    }


@case("the hook on a serving engine")
async def _hook_while_serving(world: World) -> Json:
    async with world.flying(2) as flights:
        await world.engine.describe([0])
        waited = flights.landed == len(flights.tasks)
        outcomes = await flights.outcomes()
    async with world.flying(2) as flights:
        async with world.engine.standstill():
            await world.engine.describe([0])
        prompt = flights.landed == 0
        after = await flights.outcomes()
    return {
        "without a pause it waits for all requests": waited,
        "in flight": outcomes,
        "in a standstill it does not": prompt,
        "in flight over the standstill": after,
    }


@case("pin")
async def _pin(world: World) -> Json:
    ref = await world.filled(world.after)
    (pinned,) = await world.engine.pin([ref])
    cuda = (await world.described()).parameters[0].device.startswith("cuda")
    return {
        "all bytes": world.replica is not None and pinned.nbytes == world.replica.layout.nbytes,
        "pinned where there is CUDA": pinned.pinned is cuda,
    }


@case("what the hook refuses changes nothing")
async def _refusals(world: World) -> Json:
    ref = await world.filled(world.after)
    if world.replica is None:
        return {}
    before = await world.checksums()
    wrong: dict[str, ArenaRef] = {
        "another layout": ref.model_copy(update={"layout": "ee" * 16}),
        "another grant": ref.model_copy(update={"grant": "ee" * 16}),
        "another root": ref.model_copy(update={"root": "ee" * 32}),
        "another life": ref.model_copy(update={"incarnation": "1-1"}),
        "no arena": ref.model_copy(update={"arena": ref.arena.with_name("none")}),
    }
    found: Json = {}
    await world.engine.pause("Abort")
    for name, request in wrong.items():
        found[name] = await _refused(world, request)
    world.replica.arena.fill(world.replica.grant)
    found["an unsealed arena"] = await _refused(world, ref)
    found["nothing changed"] = await world.checksums() == before
    await world.idle()
    return found


async def _refused(world: World, ref: ArenaRef) -> str:
    try:
        await world.engine.apply([ref])
    except EngineError as error:
        return error.reason
    return "applied"


@case("the engine's answer to the hook's call")
async def _raw_call(world: World) -> Json:
    seen = await world.api.post("/update_weights_from_tensor", hook_call(1))
    return {"without a request for the hook": seen.note("success", "message")}


@case("a commit, held against the same checkpoint from disk")
async def _commit(world: World) -> Json:
    start_tokens, start_sums = await world.tokens(), await world.checksums()
    ref = await world.filled(world.after)
    await world.engine.pin([ref])
    name = world.replica.version.name if world.replica else ""
    found: Json = {}
    await world.engine.pause("Abort")
    await world.engine.set_version(f"torn:{name}")
    found["torn while it is applied"] = await world.version() == f"torn:{name}"
    sessions = (await world.engine.capabilities()).begin_end
    if sessions:
        await world.engine.begin()
    (applied,) = await world.engine.apply([ref])
    if sessions:
        await world.engine.end()
    (back,) = await world.engine.readback([ref])
    paused_sums = await world.checksums()
    await world.engine.flush(10)
    await world.engine.set_version(name)
    await world.engine.resume()
    tokens, sums = await world.tokens(), await world.checksums()
    answer = await world.generate([3], 1)
    found |= {
        "all bytes": applied.nbytes == sum(p.nbytes for p in (await world.described()).parameters),
        "read back equal": back.equal,
        "version in an answer": answer.at("meta_info.weight_version") == name,
        "found to be a new life": is_new_life(name, await world.version()),
    }
    to_before = await world.from_disk(world.before)
    found["from disk"] = to_before.note("success", "message", "num_paused_requests")
    found["the version after a load from disk"] = await world.version() == name
    found["back at the start"] = (await world.tokens(), await world.checksums()) == (start_tokens, start_sums)
    (stale,) = await world.engine.readback([ref])
    found["readback sees the difference"] = stale.equal is False
    await world.from_disk(world.after)
    found |= {
        "tokens equal those from disk": tokens == await world.tokens(),
        "checksums equal those from disk": sums == await world.checksums(),
        "checksums equal while paused": sums == paused_sums,
        "every tensor changed": all(sums[row.name] != start_sums[row.name] for row in _changing(world)),
        "every prompt's tokens changed": all(a != b for a, b in zip(tokens, start_tokens, strict=True)),
    }
    await world.from_disk(world.before)
    await world.engine.set_version("default")
    return found


def _changing(world: World) -> list[Any]:
    """Rows whose values differ between the checkpoints: norms may be ones in both."""
    return [row for row in world.replica.layout.parameters if len(row.shape) > 1] if world.replica else []


@case("its own checkpoint, copied out and applied again")
async def _own_checkpoint(world: World) -> Json:
    """What certifies an engine before it is trusted."""
    start_tokens, start_sums = await world.tokens(), await world.checksums()
    sealed = await world.filled(world.after)
    if world.replica is None:
        return {}
    found: Json = {}
    async with world.flying() as flights:
        async with world.engine.standstill():
            try:
                await world.engine.snapshot([sealed])
            except EngineError as error:
                found["into a sealed arena"] = error.reason
            await world.engine.pause("InPlace")  # the process that was described, whichever was paused before
            world.replica.arena.fill(world.replica.grant)
            await world.engine.snapshot([sealed])
            world.replica.arena.seal(world.replica.grant, world.replica.version)
            equal = []
            for _ in range(2):
                await world.engine.apply([sealed])
                (back,) = await world.engine.readback([sealed])
                equal.append(back.equal)
        outcomes = await flights.outcomes()
    await world.idle()
    return found | {
        "read back equal": equal,
        "in flight over it": outcomes,
        "the same weights": await world.checksums() == start_sums,
        "the same tokens": await world.tokens() == start_tokens,
    }


@case("a commit in place, with requests in flight")
async def _commit_in_place(world: World) -> Json:
    start = await world.checksums()
    ref = await world.filled(world.after)
    await world.engine.pin([ref])
    async with world.flying() as flights:
        await world.engine.pause("InPlace")
        sessions = (await world.engine.capabilities()).begin_end
        if sessions:
            await world.engine.begin()
        await world.engine.apply([ref])
        if sessions:
            await world.engine.end()
        (back,) = await world.engine.readback([ref])
        await world.engine.resume()
        found: Json = {"read back equal": back.equal, "in flight": await flights.outcomes()}
    await world.idle()
    await world.from_disk(world.before)
    found["back at the start"] = await world.checksums() == start
    return found


@case("the weights checker")
async def _checker(world: World) -> Json:
    sums = await world.api.post("/weights_checker", {"action": "checksum"})
    unknown = await world.api.post("/weights_checker", {"action": "dance"})
    rank = sums.body["ranks"][0]
    names = {p.name for p in (await world.described()).parameters}
    return {
        "checksum": sums.note("success", "message", "per_engine_checksum"),
        "one for each parameter": names <= set(rank["checksums"]),
        "an unknown action": unknown.note("success", "message"),
    }


@case("a checkpoint that is not there")
async def _no_checkpoint(world: World) -> Json:
    seen = await world.from_disk(world.before / "none")
    return {
        "from disk": seen.note("success", "message"),
        "still serving": (await world.generate([1], 1)).status,
    }
