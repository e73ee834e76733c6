"""`weightsync layout`: layout and copy program of each engine rank. Shows what weightsync.replicas does."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from weightsync.replicas.__main__ import PARTLY, default_cache
from weightsync.replicas.engine import EngineSpec
from weightsync.replicas.layouts import Check, write_layouts
from weightsync.replicas.summary import RankSummary, Summary


class Output(StrEnum):
    """How the summary is printed."""

    TABLE = "table"
    JSON = "json"


Model = Annotated[Path, typer.Option(help="Folder of the Hugging Face checkpoint that the engine serves.")]
Size = Annotated[int, typer.Option(min=1)]
Out = Annotated[Path, typer.Option(help="Folder for rank-<r>.json and summary.json.")]
Ranks = Annotated[list[int] | None, typer.Option("--rank", help="Only this rank; may be repeated.")]
Checks = Annotated[Check, typer.Option(help="What is compared with load_weights: one of each kind, all, nothing.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of earlier results.")]
Format = Annotated[Output, typer.Option("--output", "-o")]


def command(
    context: typer.Context,
    *,
    model: Model,
    out: Out,
    tp: Size = 1,
    pp: Size = 1,
    ep: Size = 1,
    rank: Ranks = None,
    check: Checks = Check.KINDS,
    cache: Cache = None,
    no_cache: Annotated[bool, typer.Option("--no-cache")] = False,
    output: Format = Output.TABLE,
) -> None:
    """Write layout and copy program of each rank of an SGLang engine. Runs where SGLang can be imported.

    What follows after -- goes to SGLang's own command line. Exits with 3 where parameters are left to load_weights.
    """
    spec = EngineSpec(model=str(model), tp=tp, pp=pp, ep=ep, flags=tuple(context.args))
    kept = None if no_cache else cache or default_cache()
    terminal = Console(stderr=True)
    with _progress(terminal, spec.ranks if rank is None else len(rank)) as (progress, task):

        def done(row: RankSummary) -> None:
            progress.update(task, advance=1, description=f"rank {row.rank} done")

        summary = write_layouts(spec, out, ranks=rank, check=check, cache=kept, done=done)
    if output is Output.JSON:
        typer.echo(summary.model_dump_json(indent=1))
    else:
        _show(Console(), summary, out)
    if not summary.pure:
        raise typer.Exit(PARTLY)


@contextmanager
def _progress(terminal: Console, ranks: int) -> Iterator[tuple[Progress, TaskID]]:
    """Moves on a terminal only; SGLang's own log goes past it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=terminal, disable=not terminal.is_terminal) as progress:
        yield progress, progress.add_task("building the first rank", total=ranks)


def _show(console: Console, summary: Summary, out: Path) -> None:
    table = Table("rank", "parameters", "tensors held", "copies", "MB", "compared", "s", box=None)
    table.add_column("program", overflow="fold")
    for row in summary.ranks:
        seconds = row.build_seconds + row.trace_seconds + row.check_seconds
        held = f"{row.held} of {row.tensors}"
        how = "cached" if row.cached else f"{seconds:.1f}"
        size = f"{row.nbytes / 1e6:,.1f}"
        table.add_row(
            str(row.rank), str(row.parameters), held, str(row.pieces), size, str(row.checked), how, row.program
        )
    console.print(table)
    for row in summary.ranks:
        for group in row.by_loading:
            names = ", ".join(group.parameters)
            text = f"[yellow]rank {row.rank}[/yellow]: left to load_weights: {escape(names)} ({escape(group.reason)})"
            console.print(text, highlight=False, soft_wrap=True)
    said = escape(f"{summary.engine}: wrote {out} in {summary.seconds:.1f} s")
    console.print(said, highlight=False, soft_wrap=True)
