"""The command line of the local cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cluster import light, node
from tools.cluster.errors import ClusterError
from tools.setup import progress
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _light(options) if getattr(options, "light", False) else _node(options)
    except (ClusterError, SetupError) as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start it, or find that it runs"),
        ("down", "end it and remove what it left"),
        ("status", "say what runs; exit status 0 where it is ready"),
        ("kubeconfig", "print the path of the administrator's kubeconfig"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--light", action="store_true", help="etcd and API server only; needs no root")
        command.add_argument("--folder", type=Path, help="state of a light cluster (default: build/light-cluster)")
        if name == "status":
            command.add_argument("-o", "--output", choices=["text", "json"], default="text")
    load = commands.add_parser("load", help="load an image archive into the node")
    load.add_argument("archive", type=Path)
    return parser


def _light(options: argparse.Namespace) -> int:
    folder = (options.folder or light.default_folder(ROOT)).resolve()
    if options.command == "up":
        sys.stdout.write(f"export KUBECONFIG={light.up(folder).kubeconfig}\n")
        return 0
    if options.command == "down":
        sys.stdout.write("ended\n" if light.down(folder) else "nothing ran\n")
        return 0
    found = light.find(folder)
    if options.command == "kubeconfig":
        if found is None:
            raise ClusterError("no light cluster runs; `python3 tools/cluster up --light` starts one")
        sys.stdout.write(f"{found.kubeconfig}\n")
        return 0
    state = {"ready": found is not None, "kubeconfig": str(found.kubeconfig) if found else None}
    sys.stdout.write(json.dumps(state) + "\n" if options.output == "json" else _text(state))
    return 0 if found else 1


def _node(options: argparse.Namespace) -> int:
    if options.command == "up":
        sys.stdout.write(f"export KUBECONFIG={node.up().kubeconfig}\n")
    elif options.command == "down":
        node.down()
    elif options.command == "load":
        with progress.step(f"load {options.archive.name}"):
            node.runtime_client().load(options.archive)
    else:
        return _describe(options, node.status())
    return 0


def _describe(options: argparse.Namespace, found: node.Status) -> int:
    if options.command == "kubeconfig":
        if found.kubeconfig is None:
            raise ClusterError("the local cluster does not run; `python3 tools/cluster up` starts it")
        sys.stdout.write(f"{found.kubeconfig}\n")
        return 0
    document = found.document()
    sys.stdout.write(json.dumps(document) + "\n" if options.output == "json" else _text(document))
    return 0 if found.ready else 1


def _text(state: Mapping[str, object]) -> str:
    lines = []
    for name, value in state.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        lines += [f"{name:<12}{key:<26}{each}\n" if key else f"{name:<12}{each}\n" for key, each in inner]
    return "".join(lines)
