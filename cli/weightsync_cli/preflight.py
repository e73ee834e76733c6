"""`weightsync preflight`: what this pod lacks for moving weights, each with its cause and what to do."""

import asyncio
import contextlib
import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.markup import escape

from weightsync.units import parse_bytes
from weightsync_agent import transport
from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.settings import Settings
from weightsync_cli.checks import machine, writes
from weightsync_cli.checks.finding import Finding, exit_code

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - for the check's own arenas, where there is no volume
HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


class Carrier(StrEnum):
    """What the bytes are to go over."""

    AUTO = "auto"
    RDMA = "rdma"
    TCP = "tcp"


class Output(StrEnum):
    """Form of the answer."""

    TEXT = "text"
    JSON = "json"


Wanted = Annotated[Carrier | None, typer.Option("--transport", help="In place of WEIGHTSYNC_TRANSPORT.")]
Host = Annotated[
    str, typer.Option(help="This pod's address for its workers; default: POD_IP, else this host's name.")
]
Size = Annotated[str, typer.Option(help="Bytes of each write, such as 256Mi.")]
Listen = Annotated[int | None, typer.Option(help="Be the target of --to on this port, until Ctrl-C.")]
To = Annotated[str, typer.Option(help="Also write to the pod that listens at host:port.")]
Form = Annotated[Output, typer.Option("--output", "-o", help="text or json")]


def command(  # noqa: PLR0917 - typer calls it by name
    wanted: Wanted = None,
    host: Host = "",
    size: Size = "64Mi",
    listen: Listen = None,
    to: To = "",
    output: Form = Output.TEXT,
) -> None:
    """Check this pod, or this machine: devices, memory, ports, and writes that are compared.

    Run it in the agent's container. Exits with 1 where a check failed. Settings are the agent's: WEIGHTSYNC_*.
    """
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # workers' logs are not the answer
    given: dict[str, str] = {"transport": wanted.value} if wanted is not None else {}
    given |= {"advertise": host} if host else {}
    settings = Settings.from_environment(
        role="engine", plan="file:/preflight", own_uid="preflight", auth="none", **given
    )
    with tempfile.TemporaryDirectory(prefix="weightsync-preflight-", dir=_shared(settings)) as folder:
        place = writes.Place(
            settings.host, transport.transfer_settings(settings, transport.chosen(settings)), Path(folder)
        )
        if listen is not None:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(writes.listen(place, listen, lambda port: _say(output, settings, port)))
            return
        findings = [*_machine(settings), *asyncio.run(_writes(place, parse_bytes(size), to))]
    _show(findings, output)
    raise typer.Exit(exit_code(findings))


def _shared(settings: Settings) -> Path | None:
    return next((each for each in (settings.directory, SHARED_MEMORY) if each.is_dir()), None)


def _machine(settings: Settings) -> list[Finding]:
    found = verbs.opened(sysfs.discover())
    decision = transport.chosen(settings)
    low, high = settings.ports
    return [
        machine.mooncake(),
        *machine.devices(found, settings, decision),
        machine.memlock(verbs.Lockable.of_this_process(), settings.memory_limit or 0, decision.transport),
        machine.shared_memory(settings.directory, Path("/proc/mounts").read_text(encoding="utf-8")),
        machine.hugepages(HUGE.read_text(encoding="ascii") if HUGE.exists() else ""),
        machine.ports(low, high),
    ]


async def _writes(place: writes.Place, nbytes: int, to: str) -> list[Finding]:
    found = [await writes.loopback(place, nbytes)]
    if to:
        found.append(await writes.to_peer(place, to, nbytes))
    return found


def _say(output: Output, settings: Settings, port: int) -> None:
    if output is Output.JSON:
        print(json.dumps({"listening": f"{settings.host}:{port}"}), flush=True)  # noqa: T201
        return
    Console().print(f"listening: `weightsync preflight --to {settings.host}:{port}` in another pod", highlight=False)


def _show(findings: list[Finding], output: Output) -> None:
    if output is Output.JSON:
        document = {"ok": not exit_code(findings), "findings": [finding.document() for finding in findings]}
        print(json.dumps(document, indent=2))  # noqa: T201 - the answer
        return
    console = Console()
    for finding in findings:
        colour = COLOURS[finding.status]
        line = f"[{colour}]{finding.status:<8}[/{colour}]{escape(finding.check)}: {escape(finding.found)}"
        console.print(line, highlight=False, soft_wrap=True)
        if finding.remedy:
            console.print(f"        -> {escape(finding.remedy)}", highlight=False, soft_wrap=True)
