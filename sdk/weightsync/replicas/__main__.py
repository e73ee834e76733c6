"""`python3 -m weightsync.replicas`: layouts and copy programs, in an image that has the engine and little else."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from weightsync.errors import InputError
from weightsync.replicas.engine import EngineSpec
from weightsync.replicas.layouts import Check, write_layouts
from weightsync.replicas.summary import RankSummary

PURE, REFUSED, PARTLY = 0, 1, 3  # exit codes; 2 is argparse's


def default_cache() -> Path | None:
    """Where results are kept, unless the caller says otherwise; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "weightsync" / "layouts"
    except RuntimeError:
        return None


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    ours, flags = _split(arguments)
    asked = _parser().parse_args(ours)
    try:
        spec = EngineSpec(model=asked.model, tp=asked.tp, pp=asked.pp, ep=asked.ep, flags=tuple(flags))
        summary = write_layouts(
            spec,
            asked.out,
            ranks=asked.rank,
            check=Check(asked.check),
            cache=None if asked.no_cache else asked.cache or default_cache(),
            done=None if asked.json else _say,
        )
    except (InputError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    if asked.json:
        sys.stdout.write(summary.model_dump_json(indent=1) + "\n")
    return PURE if summary.pure else PARTLY


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after ``--``."""
    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    return given[:at], given[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m weightsync.replicas",
        description="Write layout and copy program of each rank of an SGLang engine.",
        epilog="Exit codes: 0 every parameter is copied; 3 some must be made by load_weights; 1 refused.",
    )
    parser.add_argument("--model", required=True, help="folder of a Hugging Face checkpoint")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder for rank-<r>.json and summary.json")
    parser.add_argument("--rank", type=int, action="append", help="only this rank; may be repeated")
    parser.add_argument("--check", choices=[check.value for check in Check], default=Check.KINDS.value)
    parser.add_argument("--cache", type=Path, help="folder of earlier results")
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _say(row: RankSummary) -> None:
    seconds = row.build_seconds + row.trace_seconds + row.check_seconds
    how = "cached" if row.cached else f"{seconds:.1f} s"
    sys.stdout.write(
        f"rank {row.rank}: {row.parameters} parameters, {row.pieces} copies, {row.nbytes} bytes, "
        f"program {row.program} ({how})\n"
    )
    for group in row.by_loading:
        sys.stdout.write(f"rank {row.rank}: load_weights must make {', '.join(group.parameters)}: {group.reason}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
