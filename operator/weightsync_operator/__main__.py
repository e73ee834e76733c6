"""The program `weightsync-operator`: settings from flags and environment, signals, exit code."""

import asyncio
import signal
import sys

import structlog
from pydantic import ValidationError
from pydantic_settings import CliApp

from weightsync.errors import WeightSyncError
from weightsync.records import first_problem
from weightsync_operator import logs
from weightsync_operator.app import App
from weightsync_operator.kube.client import Kube
from weightsync_operator.settings import Settings

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises WeightSyncError where the operator cannot go on."""
    stop = asyncio.Event()
    kube = await Kube.connect()
    try:
        app = App(settings, kube)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await app.run(stop)
    finally:
        await kube.close()


def main() -> None:
    """Entry point."""
    try:
        settings = CliApp.run(Settings)
    except ValidationError as error:
        sys.exit(f"weightsync-operator: {first_problem(error)}")
    logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(run(settings))
    except WeightSyncError as error:
        log.critical("stopping", reason=error.reason, error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
