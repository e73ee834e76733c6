"""The program: collects the commands, and turns our errors into one line and exit code 1."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from weightsync.errors import WeightSyncError
from weightsync_cli import layout, plan, preflight

app = typer.Typer(name="weightsync", no_args_is_help=True, add_completion=False, help="WeightSync's command line.")
app.command("plan")(plan.command)
app.command("preflight")(preflight.command)
app.command("layout", context_settings={"allow_extra_args": True})(layout.command)


@app.callback()
def _root() -> None:
    """WeightSync's command line."""


def main() -> None:
    """Entry point of `weightsync` and `kubectl weightsync`."""
    try:
        app()
    except WeightSyncError as error:
        # Paths and the words of others may read like markup, which vanishes, or ends the program in a traceback.
        Console(stderr=True).print(f"[red]error[/red]: {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
