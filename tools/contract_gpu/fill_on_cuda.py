"""Filling an arena from CUDA tensors: the bytes, when buckets are told, what is held meanwhile, a refused pin."""

from collections.abc import Iterator
from pathlib import Path

import torch

from weightsync.arena import Arena
from weightsync.buckets import Bucket, cut
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.convert.replay import Replayer
from weightsync.layout import ITEMSIZE, lay_out
from weightsync.testing.programs import dense_strides, plain_program

MIB = 1 << 20
LARGE, COUNT = (4096, 2048), 24  # bfloat16: tensors of 16 MiB
BUCKET = 32 * MIB


class Filling:
    """A program's arena, and what was told of it."""

    def __init__(self, folder: Path, program: CopyProgram, bucket: int = BUCKET) -> None:
        nbytes = program.layout.nbytes
        self.arena = Arena.create(folder / "fill", layout=program.layout.digest, program="0" * 32, nbytes=nbytes)
        self.arena.prefault([(0, nbytes)])
        self.buckets = {b.offset: b for b in cut([(0, nbytes)], bucket)}
        names = [tensor.name for tensor in program.tensors]
        self.replayer = Replayer(program, self.arena.view, names, list(self.buckets.values()))
        self.told: dict[int, bytes] = {}

    def tell(self, full: list[tuple[int, str]]) -> None:
        """Keep the bucket's bytes as they are when it is told."""
        for offset, _ in full:
            self.told[offset] = self.bytes(self.buckets[offset])

    def bytes(self, bucket: Bucket) -> bytes:
        """As they are now."""
        return bytes(self.arena.view[bucket.offset : bucket.offset + bucket.nbytes])

    def whole(self) -> bool:
        """Each bucket was told, once its last byte was there."""
        return self.told == {offset: self.bytes(bucket) for offset, bucket in self.buckets.items()}

    def parameter(self, program: CopyProgram, name: str) -> torch.Tensor:
        """A parameter as it stands in the arena."""
        row = next(row for row in program.layout.parameters if row.name == name)
        payload = torch.frombuffer(self.arena.view, dtype=torch.uint8)
        flat = payload[row.offset : row.offset + row.nbytes].clone().view(getattr(torch, row.dtype))
        return flat.view(row.shape)

    def close(self) -> None:
        """Unpin, unmap, remove."""
        self.replayer.close()
        path = self.arena.path
        self.arena.close()
        path.unlink()


def check(folder: Path) -> dict[str, bool]:
    """Claims, each true or false. Leaves the arena's memory free."""
    folder.mkdir(parents=True, exist_ok=True)
    return {**_shapes(folder), **_large(folder), **_refused(folder)}


def _shapes(folder: Path) -> dict[str, bool]:
    """A column shard, a cast, a transposed parameter, rows with gaps between them, and a whole tensor."""
    whole, half = (64, 96), (64, 48)
    layout = lay_out([
        ("columns", "bfloat16", half), ("cast", "bfloat16", whole), ("turned", "bfloat16", (96, 64)),
        ("joined", "bfloat16", (64, 192)), ("plain", "bfloat16", whole),
    ])  # fmt: skip
    places = {row.name: row.offset for row in layout.parameters}
    size = ITEMSIZE["bfloat16"]
    full = ((0, 64), (0, 96))

    def tensor(name: str, dtype: str, piece: Piece) -> TensorCopies:
        return TensorCopies(name=name, dtype=dtype, shape=whole, pieces=(piece,))

    def piece(home: str, box: tuple[tuple[int, int], ...], strides: tuple[int, ...], skip: int = 0) -> Piece:
        return Piece(box=box, offset=places[home] + skip, strides=strides, dtype="bfloat16")

    program = CopyProgram(layout=layout, tensors=(
        tensor("columns", "bfloat16", piece("columns", ((0, 64), (48, 96)), dense_strides(half, size))),
        tensor("cast", "float32", piece("cast", full, dense_strides(whole, size))),
        tensor("turned", "bfloat16", piece("turned", full, (size, 64 * size))),
        tensor("left", "bfloat16", piece("joined", full, (192 * size, size))),
        tensor("right", "bfloat16", piece("joined", full, (192 * size, size), 96 * size)),
        tensor("plain", "bfloat16", piece("plain", full, dense_strides(whole, size))),
    ))  # fmt: skip
    given = {t.name: torch.randn(whole, device="cuda").to(getattr(torch, t.dtype)) for t in program.tensors}
    filling = Filling(folder, program, 4096)
    for _ in range(2):
        filling.told.clear()
        filling.replayer.begin()
        for name, values in given.items():
            filling.replayer.feed(name, values, filling.tell)
        filling.replayer.finish()
    expected = {
        "columns": given["columns"][:, 48:], "cast": given["cast"].bfloat16(), "turned": given["turned"].t(),
        "joined": torch.cat([given["left"], given["right"]], dim=1), "plain": given["plain"],
    }  # fmt: skip
    claims = {
        f"filled as sliced: {name}": torch.equal(filling.parameter(program, name), values.cpu())
        for name, values in expected.items()
    }
    claims["small buckets told when whole"] = filling.whole()
    filling.close()
    return claims


def _large(folder: Path) -> dict[str, bool]:
    """A generator that makes every tensor in the same memory, and one that makes new ones."""
    program = plain_program({f"t{i}": ("bfloat16", LARGE) for i in range(COUNT)})
    filling = Filling(folder, program)
    numbers = {f"t{i}": float(i + 1) for i in range(COUNT)}

    def reused() -> Iterator[tuple[str, torch.Tensor]]:
        buffer = torch.empty(LARGE, dtype=torch.bfloat16, device="cuda")
        for name, number in numbers.items():
            yield name, buffer.fill_(number)

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        for name, number in numbers.items():
            yield name, torch.full(LARGE, number, dtype=torch.bfloat16, device="cuda")

    claims: dict[str, bool] = {}
    for what, tensors in (("reused", reused), ("new", made)):
        filling.arena.view[:] = bytes(filling.arena.view.nbytes)
        filling.told.clear()
        filling.replayer.begin()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for name, tensor in tensors():
            filling.replayer.feed(name, tensor, filling.tell)
        filling.replayer.finish()
        held = torch.cuda.max_memory_allocated() - before
        right = all(bool((filling.parameter(program, name) == number).all()) for name, number in numbers.items())
        claims[f"right from a generator with {what} memory"] = right
        claims[f"told when whole, {what} memory"] = filling.whole()
        # This loop's own variable, and the tensor that is being made while it still holds the last one.
        claims[f"at most two buckets and two tensors held, {what} memory"] = held <= 2 * BUCKET + 2 * 16 * MIB
        claims[f"progress is whole, {what} memory"] = filling.replayer.copied == filling.replayer.nbytes
    filling.close()
    return claims


def _refused(folder: Path) -> dict[str, bool]:
    """Pages that are pinned already cannot be pinned again: the copies are made one by one."""
    program = plain_program({"t": ("bfloat16", LARGE)})
    filling = Filling(folder, program)
    payload = torch.frombuffer(filling.arena.view, dtype=torch.uint8)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostRegister(payload.data_ptr(), payload.numel(), 0)
    filling.replayer.feed("t", torch.full(LARGE, 7.0, dtype=torch.bfloat16, device="cuda"), filling.tell)
    told_at_once = filling.whole()
    filling.replayer.finish()
    right = bool((filling.parameter(program, "t") == 7).all())
    runtime.cudaHostUnregister(payload.data_ptr())
    del payload
    filling.close()
    alive = bool((torch.ones(4, device="cuda") * 2).sum() == 8)
    return {
        "a refused pin: filled all the same": right and told_at_once,
        "a refused pin leaves no error for the next kernel": alive,
    }
