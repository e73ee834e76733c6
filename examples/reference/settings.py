"""The command line, with SGLang's flags where SGLang has them."""

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference.behaviour import BEHAVIOURS
from weightsync import names


@dataclass(frozen=True)
class Settings:
    """volume: the pod's shared volume, None where there is none; loaders: names allowed as load format; seed: the
    parameters are registered with Mooncake; meeting: host:port where the processes of several nodes meet."""

    model_path: Path
    host: str
    port: int
    loaders: tuple[str, ...]
    api_key: str | None
    admin_api_key: str | None
    weight_version: str
    max_running_requests: int
    act_as: str
    engine_name: str
    drain_seconds: float
    shallow_health: bool
    volume: Path | None
    tp_size: int
    seed: bool
    nodes: int = 1
    node_rank: int = 0
    meeting: str = ""


def parse(arguments: Sequence[str]) -> Settings:
    """Read flags and environment; ends the process with a usage message where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.server",
        description="A small transformer behind the part of SGLang's API that WeightSync uses.",
    )
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="folder with config.json and model.safetensors")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000, help="0: any free port; the first line of output names it")
    add(
        "--tp-size",
        "--tensor-parallel-size",
        "--tp",
        type=int,
        default=1,
        choices=range(1, 9),
        metavar="N",
        help="ranks, 1 to 8, each with its parameters: all in this process, or shared out evenly over the nodes",
    )
    add("--nnodes", type=int, default=1, help="processes of this engine, each in a pod of its own")
    add("--node-rank", type=int, default=0, help="which of them this is; the server is node 0's")
    add("--dist-init-addr", default="", metavar="HOST:PORT", help="where node 0 listens for the others")
    add("--custom-weight-loader", nargs="*", default=[], help="module.function names allowed as load format")
    add("--api-key")
    add("--admin-api-key")
    add("--weight-version", default="default")
    add("--max-running-requests", type=int, default=256)
    add("--act-as", choices=sorted(BEHAVIOURS), default="0.5.23", help="the SGLang release to behave like")
    add("--engine-name", default=os.environ.get("POD_NAME") or socket.gethostname())
    add("--drain-seconds", type=float, default=5.0, help="after SIGTERM: how long requests in flight may go on")
    add(
        "--remote-instance-weight-loader-start-seed-via-transfer-engine",
        dest="seed",
        action="store_true",
        help="register the parameters with Mooncake and tell where they lie",
    )
    add("--no-volume", action="store_true", help="write no copy program: this engine takes no part in syncs")
    flags = parser.parse_args(arguments)
    if flags.nnodes > 1 and (flags.tp_size % flags.nnodes or not flags.dist_init_addr or flags.seed):
        parser.error("--nnodes needs --dist-init-addr and a --tp-size that it divides, and has no transfer engine")
    if not 0 <= flags.node_rank < flags.nnodes:
        parser.error(f"--node-rank {flags.node_rank} is none of {flags.nnodes}")
    generation = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "true").lower()
    return Settings(
        model_path=flags.model_path,
        host=flags.host,
        port=flags.port,
        loaders=tuple(flags.custom_weight_loader),
        api_key=flags.api_key,
        admin_api_key=flags.admin_api_key,
        weight_version=flags.weight_version,
        max_running_requests=flags.max_running_requests,
        act_as=flags.act_as,
        engine_name=flags.engine_name,
        drain_seconds=flags.drain_seconds,
        shallow_health=generation in ("0", "false", "no", "n"),
        seed=flags.seed,
        volume=None if flags.no_volume else _volume(os.environ.get(names.DIRECTORY_ENV)),
        tp_size=flags.tp_size,
        nodes=flags.nnodes,
        node_rank=flags.node_rank,
        meeting=flags.dist_init_addr,
    )


def _volume(named: str | None) -> Path | None:
    """The folder that the environment names, else the usual one if it is mounted."""
    usual = Path(names.DIRECTORY)
    if named:
        return Path(named)
    return usual if usual.is_dir() else None
