"""`weightsync plan`: from an inventory of agents to a plan file."""

import asyncio
import contextlib
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weightsync.errors import InputError
from weightsync_operator import offline
from weightsync_operator.inventory import Draft


class Output(StrEnum):
    """How it is told what was planned."""

    TABLE = "table"
    JSON = "json"


Inventory = Annotated[Path, typer.Option(help="YAML: agents, each with uid, address and role (trainer or engine).")]
Out = Annotated[Path, typer.Option(help="The plan file; replaced in one step.")]
Watch = Annotated[bool, typer.Option("--watch", help="Ask again every half second; rewrite when the plan changes.")]
SecretFile = Annotated[Path | None, typer.Option(help="The secret that agents show one another.")]
Form = Annotated[Output, typer.Option("--output", "-o", help="table, or json: a line for each thing that is told")]


def command(
    inventory: Inventory, out: Out, watch: Watch = False, secret_file: SecretFile = None, output: Form = Output.TABLE
) -> None:
    """Ask the agents of INVENTORY what they hold, and write who writes to whom.

    Exits with 1 when no plan can be made; with --watch it waits until one can.
    """
    console = Console() if output is Output.TABLE else None
    planner = offline.Planner(inventory, out, secret_file)
    if not watch:
        planned = asyncio.run(offline.run_once(planner, lambda *step: _show(console, out, *step)))
        if planned.plan is None:
            raise typer.Exit(1)
        return
    watcher = _Watcher(console, out)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(offline.run_forever(planner, watcher.show, watcher.complain))


class _Watcher:
    """Prints a step only where it says something new."""

    def __init__(self, console: Console | None, out: Path) -> None:
        self._console = console
        self._out = out
        self._said = ""

    def show(self, planned: Draft, silent: dict[str, str], written: bool) -> None:
        news = repr((planned, sorted(silent)))
        if news != self._said:
            _show(self._console, self._out, planned, silent, written)
        self._said = news

    def complain(self, error: InputError) -> None:
        if str(error) == self._said:
            return
        self._said = str(error)
        if self._console is None:
            typer.echo(json.dumps({"error": str(error)}))
        else:
            self._console.print(f"[red]error[/red]: {escape(str(error))}", highlight=False)


def _show(console: Console | None, out: Path, planned: Draft, silent: dict[str, str], written: bool) -> None:
    if console is None:
        typer.echo(json.dumps(_document(planned, silent, written)))
    else:
        _print(console, out, planned, silent, written)


def _document(planned: Draft, silent: dict[str, str], written: bool) -> dict[str, object]:
    """The same for programs; the plan itself as the file has it, null where there is none."""
    outsiders = (*planned.engines.refused, *planned.engines.waiting)
    return {
        "plan": planned.plan.model_dump(mode="json") if planned.plan is not None else None,
        "written": written,
        "sources": [{"reason": one.reason, "message": one.message} for one in planned.trainers.findings],
        "engines": [{"engine": one.engine, "reason": one.reason, "message": one.message} for one in outsiders],
        "silent": silent,
    }


def _print(console: Console, out: Path, planned: Draft, silent: dict[str, str], written: bool) -> None:
    for finding in planned.trainers.findings:
        console.print(f"[yellow]{finding.reason}[/yellow]: {escape(finding.message)}", highlight=False)
    for outsider in (*planned.engines.refused, *planned.engines.waiting):
        console.print(f"[yellow]{outsider.reason}[/yellow]: {escape(outsider.message)}", highlight=False)
    for uid, why in silent.items():
        console.print(f"[yellow]agent {escape(uid)}[/yellow]: {escape(why)}", highlight=False)
    if planned.plan is None:
        console.print("no plan yet")
        return
    table = Table("engine", "rank", "stage", "from", box=None)
    for engine in planned.plan.engines:
        for target in engine.targets:
            for route in target.routes:
                source = f"{route.source} rank {route.rank}"
                table.add_row(escape(engine.name), str(target.rank.rank), str(route.stage), escape(source))
    plan = planned.plan
    said = f"term {plan.term}, generation {plan.generation}, coordinator {escape(plan.coordinator)}"
    console.print(said, highlight=False)
    console.print(table)
    console.print(f"{'wrote' if written else 'unchanged:'} {escape(str(out))}", highlight=False)
