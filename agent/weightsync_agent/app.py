"""Wires an agent, starts it, stops it. Nobody else does."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog

from weightsync.errors import InputError
from weightsync.names import VERSION
from weightsync.plan import Plan
from weightsync_agent.base import Common
from weightsync_agent.drivers.crew import CrewCalls, CrewPost
from weightsync_agent.drivers.kept_term import OwnTerms
from weightsync_agent.drivers.kept_wish import KeptWish
from weightsync_agent.drivers.landing import Wish
from weightsync_agent.engine_agent import EngineAgent
from weightsync_agent.engines.hook_files import HookFiles
from weightsync_agent.engines.hook_post import LocalPost
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.sglang import SGLangEngine
from weightsync_agent.journal.file import DecisionFile, JournalFile
from weightsync_agent.member_agent import MemberAgent
from weightsync_agent.observability import feeds, metrics
from weightsync_agent.own_pod.api import Api
from weightsync_agent.own_pod.base import Identity, OwnPod
from weightsync_agent.own_pod.cluster import KubernetesOwnPod
from weightsync_agent.own_pod.no_pod import NoPod
from weightsync_agent.peers import auth
from weightsync_agent.peers.heads import Head
from weightsync_agent.peers.keys import KeyCache, KeyDocument
from weightsync_agent.peers.server import HttpServer
from weightsync_agent.plan_feed.base import PlanFeed
from weightsync_agent.plan_feed.from_file import FileFeed, read_plan_file
from weightsync_agent.plan_feed.from_slices import SlicesFeed, initial_gate_allows, transfer_mode
from weightsync_agent.settings import Settings
from weightsync_agent.trainer_agent import TrainerAgent

log = structlog.get_logger(__name__)


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """One agent, until ``stop`` is set. Raises WeightSyncError where it cannot go on."""
    async with contextlib.AsyncExitStack() as stack:
        api = await Api.connect() if settings.in_cluster else None
        if api is not None:
            stack.push_async_callback(api.close)
        proof = _auth(settings, api)
        common = Common(settings, _own_pod(settings, api), proof.credentials, proof.verifier)
        agent: EngineAgent | MemberAgent | TrainerAgent
        if settings.role == "engine" and settings.leader_address:
            agent = MemberAgent(common, _head(settings, common, api))
        elif settings.role == "engine":
            agent = await _engine(settings, common, api, stack)
        else:
            agent = await _trainer(settings, common, api, stack)
        await serve(common, agent, stop)


def _auth(settings: Settings, api: Api | None) -> auth.Auth:
    if settings.auth_mode == "token":
        if api is None:
            raise InputError("tokens can be checked only with the cluster's keys")

        async def fetch(api: Api) -> KeyDocument:
            return KeyDocument(*await api.issuer_and_keys())

        return auth.by_token(settings.token_file, KeyCache(partial(fetch, api)), settings.pod_namespace)
    if settings.auth_mode == "secret":
        return auth.by_secret(_secret_file(settings))
    return auth.by_nothing()


def _secret_file(settings: Settings) -> Path:
    """The one that is set, else the one that the plan file names."""
    if settings.secret_file is not None:
        return settings.secret_file
    named = read_plan_file(settings.plan_path).secret_file if settings.plan_path is not None else ""
    if not named:
        raise InputError(
            "WEIGHTSYNC_SECRET_FILE is not set, and the plan file names none: agents of a plan file know one another "
            "by a secret"
        )
    return Path(named)


def _own_pod(settings: Settings, api: Api | None) -> OwnPod:
    if api is None:
        return NoPod()
    return KubernetesOwnPod(api, Identity(settings.pod_name, settings.pod_namespace, settings.pod_uid))


async def _engine(
    settings: Settings, common: Common, api: Api | None, stack: contextlib.AsyncExitStack
) -> EngineAgent:
    keys = Keys.read(settings.engine_admin_key_file, settings.engine_api_key_file)
    crew = CrewCalls(settings.uid, common.client, settings.stall_seconds)
    post = CrewPost(LocalPost(HookFiles(settings.directory)), crew)
    adapter = await stack.enter_async_context(SGLangEngine(settings.engine_url, settings.directory, keys, post=post))

    async def allowed(api: Api) -> bool:
        return await initial_gate_allows(api, settings.pod_namespace, await common.own_pod.labels())

    async def said() -> Wish:
        return settings.mode or "Auto"

    async def asked(api: Api) -> Wish:
        return await transfer_mode(api, settings.pod_namespace, await common.own_pod.labels())

    wish = said if settings.mode is not None or api is None else KeptWish(settings.directory, partial(asked, api))
    journal = JournalFile.within(settings.directory)
    if api is None:
        path = settings.plan_path
        read = partial(_plan_in, path) if path is not None else None
        return EngineAgent(common, adapter, journal, None, crew=crew, wish=wish, read_plan=read)
    plan = SlicesFeed(api, settings.pod_namespace, settings.uid, common.own_pod.labels).plan
    head = _head(settings, common, api)
    return EngineAgent(common, adapter, journal, partial(allowed, api), head, crew=crew, wish=wish, read_plan=plan)


def _head(settings: Settings, common: Common, api: Api | None) -> Callable[[], Awaitable[Head]] | None:
    """Whom the operator made coordinator; None where a plan file says it."""
    if api is None:
        return None
    return SlicesFeed(api, settings.pod_namespace, settings.uid, common.own_pod.labels).head


async def _plan_in(path: Path) -> Plan:
    return (await asyncio.to_thread(read_plan_file, path)).plan


async def _trainer(
    settings: Settings, common: Common, api: Api | None, stack: contextlib.AsyncExitStack
) -> TrainerAgent:
    feed: PlanFeed
    terms = None
    if settings.plan_path is not None:
        feed = FileFeed(settings.plan_path)
        terms = OwnTerms(settings.directory, settings.uid)
    elif api is not None:
        feed = SlicesFeed(api, settings.pod_namespace, settings.uid, common.own_pod.labels)
    else:
        raise InputError("a plan from the cluster needs the cluster")
    await feed.start()
    stack.push_async_callback(feed.stop)
    return TrainerAgent(common, feed, DecisionFile.within(settings.directory), terms)


async def serve(common: Common, agent: EngineAgent | MemberAgent | TrainerAgent, stop: asyncio.Event) -> None:
    """Run one agent until ``stop`` is set; a task of it that fails ends the agent with that error."""
    common.volume.prepare()
    metrics.ARENA_BYTES.set_function(partial(feeds.arena_bytes, common.volume.arenas))
    said = common.capabilities
    metrics.BUILD.info({"version": VERSION, "role": common.settings.role, "mooncake": said.mooncake})
    await common.client.start()
    await common.own_pod.start()
    server = HttpServer([*common.routes(), *agent.routes()])
    await server.listen(common.settings.bind, common.settings.port)
    running = asyncio.create_task(agent.run())
    stopping = asyncio.create_task(stop.wait())
    common.ready = True
    log.info("agent", role=common.settings.role, address=common.settings.address, uid=common.settings.uid)
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        common.ready = False
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        await agent.close()
        await server.close()
        await common.own_pod.stop()
        await common.client.close()
