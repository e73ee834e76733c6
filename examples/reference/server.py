"""Wires the parts, starts and stops them: ``python -m reference.server --model-path DIR``. Nobody else does."""

import asyncio
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any, NoReturn

import torch
from aiohttp import web

from reference.behaviour import BEHAVIOURS
from reference.checkpoint import read_checkpoint
from reference.config import EMBED, ModelConfig
from reference.engine_model import EngineModel, build_engine_model
from reference.front import Front, Status
from reference.model_thread import ModelThread
from reference.nodes import Peers, follow, leave, share
from reference.programs import build_programs, write_programs
from reference.routes import Routes, say
from reference.scheduler import Scheduler
from reference.seed import register
from reference.settings import Settings, parse
from reference.shards import Shards
from reference.weights import WeightUpdater
from weightsync.errors import InputError


def die(error: BaseException) -> None:
    """The model's thread ended by an accident: so does the process, as SGLang's does, with connections cut."""
    traceback.print_exception(error)
    sys.stderr.flush()
    say("engine_died", error=f"{type(error).__name__}: {error}")
    os._exit(1)


def read_model(settings: Settings) -> EngineModel:
    """Read the checkpoint, write this node's ranks' programs, make the model. Raises InputError."""
    config, state = read_checkpoint(settings.model_path)
    dtype = str(state[EMBED].dtype).removeprefix("torch.")
    if settings.volume is not None:
        programs = build_programs(config, settings.tp_size, checkpoint_dtype=dtype)
        own = share(settings.tp_size, settings.nodes, settings.node_rank)
        for path in write_programs(settings.volume, [programs[rank] for rank in own]):
            say("program_written", path=str(path))
    return build_engine_model(config, state)


def build(settings: Settings) -> Front:
    """The server of node 0, once the others are there. Raises InputError."""
    behaviour = BEHAVIOURS[settings.act_as]
    model = read_model(settings)
    peers = None
    if settings.nodes > 1:
        peers = Peers.gather(settings.meeting, settings.nodes, settings.tp_size)
        peers.watch(leave)
    shards = Shards(model, settings.tp_size, peers)
    scheduler = Scheduler(
        model,
        settings.weight_version,
        flush_ignores_waiting=behaviour.flush_ignores_waiting,
        max_running=settings.max_running_requests,
    )
    updater = WeightUpdater(scheduler, behaviour, settings.loaders, shards)
    thread = ModelThread(scheduler, die)
    front = Front(thread, updater, behaviour, settings.engine_name, str(settings.model_path))
    if settings.seed:
        if settings.tp_size > 1:
            raise InputError("parameters can be registered for others to write to on one rank only: use --tp-size 1")
        front.seed_engine, front.seed = register(dict(scheduler.model.named_parameters()))
    return front


def be_member(settings: Settings) -> NoReturn:
    """A node but the first: no server, its ranks' parameters, and whatever loader node 0 runs in them."""
    shards = Shards(read_model(settings), settings.tp_size)
    own = share(settings.tp_size, settings.nodes, settings.node_rank)
    say("node", rank=settings.node_rank, ranks=list(own), pid=os.getpid())
    try:
        follow(settings.meeting, settings.node_rank, {rank: shards.ranks[rank] for rank in own}, shards.run)
    except OSError:
        leave()


def server_info(settings: Settings, config: ModelConfig) -> dict[str, Any]:
    """What /server_info tells of the start: with the keys, as SGLang does."""
    return {
        "model_path": str(settings.model_path),
        "host": settings.host,
        "port": settings.port,
        "skip_tokenizer_init": True,
        "tp_size": settings.tp_size,
        "pp_size": 1,
        "ep_size": 1,
        "dp_size": 1,
        "nnodes": settings.nodes,
        "node_rank": 0,
        "dtype": "float32",
        "device": "cpu",
        "context_length": config.max_positions,
        "custom_weight_loader": list(settings.loaders),
        "max_running_requests": settings.max_running_requests,
        "weight_version": settings.weight_version,
        "api_key": settings.api_key,
        "admin_api_key": settings.admin_api_key,
        "launch_command": " ".join(sys.argv),
        "version": settings.act_as,
        "startup_time": time.time(),
        "reference_engine": {"name": settings.engine_name, "model": asdict(config)},
    }


async def serve(settings: Settings, front: Front) -> None:
    """Answer until SIGTERM or SIGINT, then let requests in flight end, for a while."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    info = server_info(settings, front.thread.scheduler.model.config)
    app = Routes(front, settings, info, say).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        await site.start()
        say("listening", host=settings.host, port=runner.addresses[0][1], pid=os.getpid())
        await front.warm_up()
        say("up")
        await stop.wait()
        front.status = Status.LEAVING
        say("leaving", in_flight=front.in_flight)
        await front.drain(settings.drain_seconds)
    finally:
        await runner.cleanup()
        front.thread.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run the server. Returns the exit status."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    try:
        if settings.node_rank:
            be_member(settings)
        front = build(settings)
    except InputError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 1
    front.thread.start()
    asyncio.run(serve(settings, front))
    return 0


if __name__ == "__main__":
    sys.exit(main())
