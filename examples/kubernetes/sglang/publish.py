"""A trainer in its smallest form: one pipeline stage of a checkpoint, published over and over.

In place of its loop stands yours: what matters is the Publisher, and that the names are the checkpoint's. Each rank
owns the files of its stage; all ranks publish equally often.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from weightsync import Publisher

INDEX = "model.safetensors.index.json"


def stage_names(names: list[str], stage: int, stages: int) -> list[str]:
    """The checkpoint names of one stage: its share of the layers, and on the first what is in no layer."""
    layers = sorted({layer for name in names if (layer := layer_of(name)) is not None})
    share = -(-len(layers) // stages)
    mine = set(layers[stage * share : (stage + 1) * share])
    return [name for name in names if (layer_of(name) in mine if layer_of(name) is not None else stage == 0)]


def layer_of(name: str) -> int | None:
    """17 of model.layers.17.mlp.down_proj.weight, None of lm_head.weight."""
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else None


def places(model: Path) -> dict[str, Path]:
    """By the name of a tensor, the file that holds it."""
    if (model / INDEX).exists():
        table = json.loads((model / INDEX).read_text())["weight_map"]
        return {name: model / file for name, file in table.items()}
    found = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found


def tensors(files: dict[str, Path], names: list[str], device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """One after the other: none is kept. A real trainer gathers its shards here."""
    for name in names:
        with safe_open(files[name], framework="pt", device=device) as file:
            yield name, file.get_tensor(name)


def main() -> None:
    """Publish ``STEPS`` times (0: for ever), every ``SECONDS``."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps, pause = int(os.environ.get("STEPS", "0")), float(os.environ.get("SECONDS", "60"))
    device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    files = places(Path(os.environ["MODEL"]))
    mine = stage_names(list(files), rank, world)
    print(f"rank {rank} of {world} publishes {len(mine)} of {len(files)} tensors", flush=True)
    step = 0
    with Publisher(rank=rank, world_size=world, stage=rank, stages=world) as publisher:
        while not steps or step < steps:
            step += 1
            outcome = publisher.publish(tensors(files, mine, device), label=f"step {step}").outcome()
            print(f"step {step}: {outcome.status} {outcome.message}", flush=True)
            time.sleep(pause)


if __name__ == "__main__":
    main()
