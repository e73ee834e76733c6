"""Layout and copy program of every rank of an engine: built, traced, merged, compared, written, cached.

Ranks are made one after the other, each on the meta device: what it costs is the table of tensors, not their bytes.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from weightsync import names
from weightsync.convert.header import Header
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.records import replace_file
from weightsync.replicas.checkpoint import read_headers
from weightsync.replicas.engine import EngineSpec, Rebuild
from weightsync.replicas.release import release
from weightsync.replicas.summary import FILE, RankSummary, Summary, summarise

RECIPE = "1"  # raise it when the same engine and checkpoint give another program


class Check(StrEnum):
    """What is compared with load_weights: one unit of each kind, every unit, nothing."""

    KINDS = "kinds"
    FULL = "full"
    OFF = "off"


def write_layouts(
    spec: EngineSpec,
    out: Path,
    *,
    ranks: Sequence[int] | None = None,
    check: Check = Check.KINDS,
    cache: Path | None = None,
    done: Callable[[RankSummary], None] | None = None,
) -> Summary:
    """Write OUT/rank-<r>.json for each rank, and OUT/summary.json at the end; each whole or not at all.

    cache: a folder of earlier results, None for none. Raises InputError where a rank is refused; the files of the
    ranks before it stay.
    """
    begin = time.perf_counter()
    chosen = range(spec.ranks) if ranks is None else ranks
    if strange := [rank for rank in chosen if not 0 <= rank < spec.ranks]:
        raise InputError(f"rank {strange[0]} does not exist among {spec.ranks} (tp {spec.tp} x pp {spec.pp})")
    rebuild = Rebuild.of(spec, release())
    headers = read_headers(Path(spec.model))
    key = _key(rebuild, headers, check)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for rank in chosen:
        folder = cache / f"{key}-{rank}" if cache else None
        row, text = _rank(rebuild, headers, rank, check, folder)
        replace_file(out / row.file, text)
        rows.append(row)
        if done is not None:
            done(row)
    summary = Summary(
        model=spec.model,
        engine=f"sglang {rebuild.release}",
        pure=not any(row.by_loading for row in rows),
        seconds=round(time.perf_counter() - begin, 3),
        ranks=tuple(rows),
    )
    replace_file(out / FILE, summary.model_dump_json(indent=1).encode())
    return summary


def _rank(
    rebuild: Rebuild, headers: Sequence[Header], rank: int, check: Check, folder: Path | None
) -> tuple[RankSummary, bytes]:
    """One rank, from its folder of the cache or made anew: its row and its file."""
    if folder and (folder / "program.json").exists() and (folder / "row.json").exists():
        row = RankSummary.load(folder / "row.json").model_copy(update={"cached": True})
        return row, (folder / "program.json").read_bytes()
    program, row = make(rebuild, headers, rank, check)
    text = json.dumps(program.model_dump(mode="json", exclude_defaults=True), separators=(",", ":")).encode()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "program.json", text)
        replace_file(folder / "row.json", row.model_dump_json().encode())
    return row, text


def make(rebuild: Rebuild, headers: Sequence[Header], rank: int, check: Check) -> tuple[CopyProgram, RankSummary]:
    """Build, trace, merge and compare one rank. Raises InputError where it is refused."""
    from weightsync.convert import verify  # noqa: PLC0415 - torch
    from weightsync.convert.merge import merge  # noqa: PLC0415
    from weightsync.replicas.sglang import build_replica  # noqa: PLC0415

    times = [time.perf_counter()]
    replica = build_replica(rebuild.spec, rank)
    times.append(time.perf_counter())
    traced = replica.trace(headers)
    merged = merge(replica.parameters(), traced.blocks, headers, traced.joint)
    program = CopyProgram(
        rank=rank,
        layout=merged.layout,
        tensors=merged.tensors,
        together=merged.together,
        by_loading=merged.by_loading,
        engine=rebuild.text() if merged.by_loading else "",
        origin=f"sglang {rebuild.release}, {rebuild.spec.describe()}"[:512],
    )
    times.append(time.perf_counter())
    checked = 0
    if check is not Check.OFF:
        every = verify.units(program)
        loads = verify.Loads(replica.bind, replica.load, replica.release)
        for unit in every if check is Check.FULL else verify.kinds(every):
            verify.compare(unit, loads)
            checked += len(unit.parameters)
    times.append(time.perf_counter())
    build, trace, compare = (after - before for before, after in pairwise(times))
    return program, summarise(program, f"rank-{rank}.json", checked, (build, trace, compare))


def _key(rebuild: Rebuild, headers: Sequence[Header], check: Check) -> str:
    """Everything that the result depends on; the model's place is not part of it.

    Asked before SGLang is imported, which sets variables of its own.
    """
    surroundings = sorted((name, value) for name, value in os.environ.items() if name.startswith("SGLANG_"))
    parts = [
        RECIPE, names.VERSION, rebuild.release, rebuild.files, rebuild.spec.model_dump(exclude={"model"}),
        check.value, surroundings, Path("/dev/nvidia0").exists(), headers,
    ]  # fmt: skip
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
