"""Copy programs by digest: the one that was asked for, from wherever it can be had, and of any size."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.build.programs import experts
from weightsync.announcement import TargetRank
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError, PeerError
from weightsync.plan import Engine, Plan, Target
from weightsync.testing import plain_program
from weightsync_agent.drivers.programs import Programs

ONE, OTHER = plain_program({"a": ("float32", (4,))}), plain_program({"b": ("float32", (4,))})


class Peers:
    """Agents by address, and what they answer; in place of PeerClient."""

    def __init__(self, **answers: bytes | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def text(self, address: str, path: str, *, seconds: float, limit: int) -> bytes:
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


def plan(digest: str, *addresses: str) -> Plan:
    """Engines at these addresses that announced the program."""
    rank = TargetRank(rank=0, layout=digest, program=digest)
    engines = tuple(
        Engine(
            name=address, leader=address, address=address, incarnation="life",
            targets=(Target(uid=address, pod=address, address=address, rank=rank, routes=()),),
        )
        for address in addresses
    )  # fmt: skip
    return Plan(name="n/p", term=1, generation=1, engines=engines)


def programs(folder: Path, peers: Peers, known: Plan | None = None) -> Programs:
    client: Any = peers
    return Programs(folder, client, lambda: known)


async def test_the_program_is_taken_from_the_first_holder_that_has_it(tmp_path: Path) -> None:
    """One that is silent, one that answers another program, one that answers nonsense; then it is kept."""
    peers = Peers(a=PeerError("silent"), b=OTHER.canonical(), c=b"{}", d=ONE.canonical(), e=b"never asked")
    kept = programs(tmp_path, peers, plan(ONE.digest, *"abcde"))
    assert await kept.get(ONE.digest) == ONE
    assert peers.asked == list("abcd")
    assert await kept.get(ONE.digest) == ONE
    again = programs(tmp_path, Peers())
    assert await again.get(ONE.digest) == ONE
    assert CopyProgram.read(again.text(ONE.digest), "served on") == ONE


async def test_where_nobody_has_it_everybody_is_named(tmp_path: Path) -> None:
    """With what each answered."""
    kept = programs(tmp_path, Peers(a=PeerError("silent"), b=OTHER.canonical()), plan(ONE.digest, "a", "b"))
    with pytest.raises(PeerError, match=f"silent; b answered program {OTHER.digest} when asked for {ONE.digest}"):
        await kept.get(ONE.digest)
    with pytest.raises(PeerError, match="no engine of the plan holds it"):
        await programs(tmp_path, Peers()).get(ONE.digest)


@pytest.mark.parametrize("content", [OTHER.canonical(), b"{", b""], ids=["another", "half of one", "nothing"])
async def test_what_lies_in_the_volume_under_its_name_is_not_believed(tmp_path: Path, content: bytes) -> None:
    """Others write there too: fetched anew, and replaced."""
    kept = programs(tmp_path, Peers(a=ONE.canonical()), plan(ONE.digest, "a"))
    kept.path(ONE.digest).write_bytes(content)
    assert await kept.get(ONE.digest) == ONE
    assert CopyProgram.load(kept.path(ONE.digest)) == ONE


def test_a_pipe_in_the_volume_holds_nobody(tmp_path: Path) -> None:
    """It is refused like a program that is not here."""
    kept = programs(tmp_path, Peers())
    os.mkfifo(kept.path(ONE.digest))
    with pytest.raises(InputError, match=f"program {ONE.digest} is not here"):
        kept.text(ONE.digest)


async def test_the_experts_of_a_very_large_model_are_a_small_file(tmp_path: Path) -> None:
    """Four layers of 384 FP8 experts are 9,216 checkpoint tensors for each rank, and some kilobytes."""
    large = experts(layers=4, count=384, tp=8, rank=3)
    kept = programs(tmp_path, Peers())
    kept.put(large)
    assert len(kept.text(large.digest)) < 16_000
    again = await programs(tmp_path, Peers()).get(large.digest)
    assert len(again.tensors) == 9_216
    assert sorted(again.tensors) == sorted(large.tensors)
