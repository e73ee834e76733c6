"""What runs in each rank of a sharded trainer's tests (ranks.py): publishes of DTensors to its own fake agent."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from weightsync import Publisher
from weightsync.convert import gather
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.publisher.replicas import OpenReplicas
from weightsync.testing import FakeAgent, plain_program

LIMIT = 4096  # bytes of a bucket


def full(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def octets(tensor: Tensor) -> bytes:
    """Its bytes, row by row."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def mesh() -> DeviceMesh:
    """Both ranks, in one dimension."""
    return init_device_mesh("cpu", (2,))


def placed(whole: Tensor, *placements: Placement, on: DeviceMesh | None = None) -> DTensor:
    """The tensor, spread over the ranks."""
    return distribute_tensor(whole, on or mesh(), placements)


def kinds() -> Iterator[tuple[str, Any, Tensor]]:
    """What a rank gives, and what must arrive: a name, a tensor, the whole of it."""
    for name, shape, dimension in (
        ("rows", (64, 48), 0), ("uneven_rows", (7, 3), 0), ("a_rank_without_rows", (1, 5), 0),
        ("uneven_columns", (4, 7), 1), ("one_dimension", (9,), 0),
    ):  # fmt: skip
        whole = full(shape, len(name))
        yield name, placed(whole, Shard(dimension)), whole
    whole = full((6, 6), 1)
    yield "replicated", placed(whole, Replicate()), whole
    yield "partial", DTensor.from_local(whole / 2, mesh(), [Partial()]), whole
    yield "parameter", torch.nn.Parameter(placed(whole, Shard(0))), whole
    yield "bfloat16", placed(whole.bfloat16(), Shard(0)), whole.bfloat16()
    yield "master", placed(whole, Shard(0)), whole.bfloat16()  # of an engine in bfloat16
    yield "integers", placed(torch.arange(10), Shard(0)), torch.arange(10)
    for name, shape in (("hybrid", (2, 1)), ("shards_of_one_replica", (1, 2))):
        both = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        yield name, placed(whole, Replicate(), Shard(0), on=both), whole
    both = init_device_mesh("cpu", (1, 2), mesh_dim_names=("rows", "columns"))
    yield "two_dimensions", placed(whole, Shard(0), Shard(1), on=both), whole
    yield "plain", whole.clone(), whole


def program(wholes: Mapping[str, Tensor]) -> CopyProgram:
    """Takes them as they are."""
    return plain_program({n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in wholes.items()})


def arrived(agent: FakeAgent, wholes: Mapping[str, Tensor]) -> None:
    """The last publish has all of them, byte by byte."""
    for name, whole in wholes.items():
        assert agent.published[-1].parameter(name) == octets(whole), name


# --- scenarios ---


def publishes_every_kind(rank: int, folder: Path, form: str, threads: int) -> None:
    """Three publishes, the first and one into each arena, as a state dict or a generator."""
    wholes = {name: whole for name, _, whole in kinds()}
    with (
        FakeAgent(folder, [program(wholes)], bucket_bytes=LIMIT) as agent,
        Publisher(0, 1, directory=folder, timeout=10, fill_threads=threads) as publisher,
    ):
        for _ in range(3):
            given = {name: tensor for name, tensor, _ in kinds()}
            with torch.inference_mode(form == "inference"):
                handle = publisher.publish(iter(given.items()) if form == "generator" else given)
            handle.raise_on_failure(10)
            arrived(agent, wholes)


def publishes_stages(rank: int, folder: Path) -> None:
    """Each rank is a stage with a mesh of its own; what lies on another stage's mesh is refused, and hangs nobody."""
    name, other = f"stages.{rank}.weight", f"stages.{1 - rank}.weight"
    meshes = [DeviceMesh("cpu", [each]) for each in range(2)]
    wholes = {name: full((8, 8), rank)}
    with (
        FakeAgent(folder, [program({**wholes, other: full((8, 8), 1 - rank)})]) as agent,
        Publisher(0, 1, directory=folder, timeout=10) as publisher,
    ):
        mine = {name: placed(wholes[name], Shard(0), on=meshes[rank])}
        foreign = DTensor.from_local(
            torch.empty(0), meshes[1 - rank], [Shard(0)], shape=torch.Size((8, 8)), stride=(8, 1)
        )
        message = publisher.publish({**mine, other: foreign}).outcome(10).message
        assert message.startswith(f"tensor {other} is sharded over ranks that this one is none of"), message
        agent.refuse("names")  # the fake knows one stage only: it is enough that its own tensor got there
        publisher.publish(mine)
        assert agent.published[-1].failed is not None


def keeps_nothing(rank: int, folder: Path, threads: int) -> tuple[int, set[bool]]:
    """Whole tensors that are alive when the next one is made, at most, and whether any was left to be copied later;
    rank 1 has nobody to write to."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most, real, feed, kept_ones = 0, gather.gathered, Replayer.feed, set[bool]()

    def fed(*arguments: Any, kept: bool) -> None:
        kept_ones.add(kept)
        feed(*arguments, kept=kept)

    def watched(tensor: DTensor) -> Tensor:
        nonlocal most
        most = max(most, len(alive))
        whole = real(tensor)
        alive.add(whole.untyped_storage())  # what a copy that waits for its thread holds
        return whole

    wholes = {f"layers.{n}.weight": full((256, 128), n) for n in range(24)}
    given = {name: placed(whole, Shard(0)) for name, whole in wholes.items()}
    with (
        FakeAgent(folder, [program(wholes)] if rank == 0 else [], bucket_bytes=LIMIT),
        Publisher(0, 1, directory=folder, timeout=10, fill_threads=threads) as publisher,
        mock.patch.object(gather, "gathered", watched),
        mock.patch.object(Replayer, "feed", fed),
    ):
        gc.disable()
        try:
            for _ in range(3):
                publisher.publish(given).raise_on_failure(10)
        finally:
            gc.enable()
    return most, kept_ones


TENSORS = 6


@contextmanager
def struck(what: str, agent: FakeAgent, publisher: Publisher) -> Iterator[None]:
    """A rank whose publish fails, in one of many ways, once it has begun to take tensors in or before."""
    count, real = 0, Replayer.feed

    def feed(error: BaseException | Callable[[], None]) -> Callable[..., None]:
        def feeding(*arguments: Any, **options: Any) -> None:
            nonlocal count
            count += 1
            if count == 3 and isinstance(error, BaseException):
                raise error
            if count == 3 and callable(error):
                error()
            real(*arguments, **options)

        return feeding

    raised: dict[str, BaseException | Callable[[], None]] = {
        "a bug": ZeroDivisionError("a bug"),
        "an interrupt": KeyboardInterrupt(),
        "an exit": SystemExit(3),
        "the agent gone": agent.stop,
    }
    if what in raised:
        publisher._link.patience = publisher._sender._link.patience = 0
        with mock.patch.object(Replayer, "feed", feed(raised[what])):
            yield
    elif what == "a bug before it begins":
        with mock.patch.object(OpenReplicas, "refresh", side_effect=PermissionError("no")):
            yield
    elif what == "closed":
        publisher.close()
        yield
    elif what in ("another name", "another shape", "no pairs"):
        yield  # the input is wrong
    else:
        agent.refuse(what, "not now", reason="Superseded")
        yield


def one_rank_fails(rank: int, folder: Path, what: str, which: int) -> str:
    """Something goes wrong in a later publish on rank ``which`` alone; what became of that publish, here. All ranks
    gather to the end, and the publish after it is whole."""
    wholes = {f"layers.{n}.weight": full((64, 48), n) for n in range(TENSORS)}
    given: Any = {name: placed(whole, Shard(0)) for name, whole in wholes.items()}
    with (
        FakeAgent(folder, [program(wholes)], bucket_bytes=LIMIT) as agent,
        Publisher(0, 1, directory=folder, timeout=10) as publisher,
    ):
        publisher.publish(given).raise_on_failure(10)
        if rank != which:
            outcome = publisher.publish(given).outcome(10)
            if outcome.status == "Current":
                arrived(agent, wholes)
            publisher.publish(given).raise_on_failure(10)
            return f"{outcome.status} {outcome.reason}".strip()
        wrong = given
        if what == "another name":
            wrong = [(f"{name}.wrong", tensor) for name, tensor in given.items()]
        elif what == "another shape":
            wrong = [(name, tensor.reshape(-1, 1)) for name, tensor in given.items()]
        elif what == "no pairs":
            wrong = [[3, tensor] for tensor in given.values()]
        with struck(what, agent, publisher):
            try:
                outcome = publisher.publish(wrong).outcome(10)
                said = f"{outcome.status} {outcome.reason}"
            except BaseException as error:  # noqa: BLE001 - told to the test
                said = type(error).__name__
        if what == "the agent gone":
            agent.start()
        if what == "closed":
            with Publisher(0, 1, directory=folder, timeout=10) as another:
                another.publish(given).raise_on_failure(10)
        else:
            publisher.publish(given).raise_on_failure(10)
        arrived(agent, wholes)
        return said


def a_gather_fails(rank: int, folder: Path) -> str:
    """The second gather raises on both ranks, as where a backend knows no such device."""
    wholes = {f"layers.{n}.weight": full((8, 8), n) for n in range(3)}
    given = {name: placed(whole, Shard(0)) for name, whole in wholes.items()}
    real, count = gather.gathered, 0

    def failing(tensor: DTensor) -> Tensor:
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("no backend")
        return real(tensor)

    with (
        FakeAgent(folder, [program(wholes)]) as agent,
        Publisher(0, 1, directory=folder, timeout=10) as publisher,
        mock.patch.object(gather, "gathered", failing),
    ):
        try:
            publisher.publish(given)
        except RuntimeError:
            failed = agent.published[-1].failed
            assert failed is not None
            publisher.publish(given).raise_on_failure(10)
            arrived(agent, wholes)
            return f"{failed.reason}: {failed.message}"
        return ""


def another_order(rank: int, folder: Path) -> str:
    """Rank 1 gives two tensors of one shape the other way round; what the outcome says, here."""
    wholes = {f"layers.{n}.weight": full((8, 8), n) for n in range(3)}
    given = {name: placed(whole, Shard(0)) for name, whole in wholes.items()}
    with (
        FakeAgent(folder, [program(wholes)]) as agent,
        Publisher(0, 1, directory=folder, timeout=10) as publisher,
    ):
        message = publisher.publish(dict(reversed(given.items())) if rank else given).outcome(10).message
        assert agent.published[-1].failed is not None
        publisher.publish(given).raise_on_failure(10)
        arrived(agent, wholes)
        return message


def one_replica_publishes(rank: int, folder: Path) -> None:
    """Rank 1 holds the other replica, and does not call publish()."""
    both = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    wholes = {"weight": full((8, 8), 1)}
    given = {"weight": placed(wholes["weight"], Replicate(), Shard(0), on=both)}
    if rank == 0:
        with (
            FakeAgent(folder, [program(wholes)]) as agent,
            Publisher(0, 1, directory=folder, timeout=10) as publisher,
        ):
            publisher.publish(given).raise_on_failure(10)
            arrived(agent, wholes)
