"""What runs in each rank of a trainer of whole models (ranks.py): the blocks of the page for trainers, and one that
trains and publishes to real agents."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from reference.checkpoint import initial_state
from reference.model import CheckpointModel
from tests.build.sharded import LIMIT, arrived, program
from tests.build.small_model import CONFIG, PROMPT
from weightsync import Publisher
from weightsync.testing import FakeAgent


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(7, 12, bias=False)
        self.down_proj = nn.Linear(12, 7, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(self.up_proj(x).relu())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(7)
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Any:
        return x + self.mlp(self.input_layernorm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 7)
        self.layers = nn.ModuleList(Layer() for _ in range(2))


class Causal(nn.Module):
    """Named as Hugging Face names them, of sizes that two ranks do not share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()
        self.lm_head = nn.Linear(7, 11, bias=False)

    def forward(self, ids: Tensor) -> Any:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(x)


def runs_a_block(rank: int, folder: Path, code: str, tied: bool) -> None:
    """The page's code, and its last line once more, into an engine in bfloat16.

    tied: the checkpoint has no head of its own.
    """
    torch.manual_seed(1)
    model = Causal()
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    wholes = {name: tensor.bfloat16() for name, tensor in model.named_parameters()}
    with (
        FakeAgent(folder, [program(wholes)], bucket_bytes=LIMIT) as agent,
        Publisher(0, 1, directory=folder, timeout=10) as publisher,
    ):
        names: dict[str, Any] = {
            "torch": torch, "dist": dist, "device": "cpu", "model": model, "publisher": publisher
        }  # fmt: skip
        exec(compile(code, "docs/trainers.md", "exec"), names)  # noqa: S102 - the page's own
        assert agent.published[-1].failed is None, agent.published[-1].failed
        arrived(agent, wholes)
        last = code.rstrip().splitlines()[-1]
        exec(compile(last, "docs/trainers.md", "exec"), names)  # noqa: S102
        arrived(agent, wholes)


class Trainer:
    """A rank of a real trainer: FSDP2 over the reference model, a Publisher beside a real agent. Lives on between
    scenarios."""

    one: "Trainer | None" = None

    def __init__(self, rank: int, volume: Path) -> None:
        self.model = CheckpointModel(CONFIG)
        self.model.load_state_dict(initial_state(CONFIG, seed=5), strict=False)
        mesh = init_device_mesh("cpu", (2,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.publisher = Publisher(rank, 2, directory=volume, timeout=30)

    def step(self) -> dict[str, Tensor]:
        """Train a little; the whole of each tensor, put together from the ranks' shards."""
        logits = self.model(torch.tensor([PROMPT]))
        logits.logsumexp(-1).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        shards: list[Any] = [None, None]
        mine = {name: tensor.to_local() for name, tensor in self.model.state_dict().items()}
        dist.all_gather_object(shards, mine)
        return {name: torch.cat([shard[name] for shard in shards]) for name in mine}


def begins_to_train(rank: int, folder: Path, volumes: list[Path]) -> None:
    """Connects to the rank's agent."""
    Trainer.one = Trainer(rank, volumes[rank])


def trains_and_publishes(rank: int, folder: Path) -> tuple[str | None, str, dict[str, Tensor]]:
    """The version's name, what became of it, and its tensors."""
    trainer = Trainer.one
    assert trainer is not None
    wholes = trainer.step()
    handle = trainer.publisher.publish(trainer.model.state_dict())
    outcome = handle.outcome(30)
    return handle.version, outcome.describe(), wholes


def loses_an_agent(rank: int, folder: Path, agent: int) -> str:
    """Rank 1's agent, of that process id, is killed while the ranks gather; the reason why the publish failed, if it
    did."""
    trainer = Trainer.one
    assert trainer is not None
    trainer.publisher._link.patience = trainer.publisher._sender._link.patience = 0

    def given() -> Iterator[tuple[str, Any]]:
        for number, pair in enumerate(trainer.model.state_dict().items()):
            if (rank, number) == (1, 3):
                os.kill(agent, signal.SIGKILL)
            yield pair

    outcome = trainer.publisher.publish(given()).outcome(30)
    return outcome.reason


def ends_training(rank: int, folder: Path) -> None:
    """Lets go of the agent."""
    if Trainer.one is not None:
        Trainer.one.publisher.close()
        Trainer.one = None
