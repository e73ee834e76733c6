"""``weightsync-agent``: reads the environment, runs one agent until it is told to stop."""

import asyncio
import signal
import sys

import structlog

from weightsync.errors import WeightSyncError
from weightsync_agent.app import run
from weightsync_agent.observability.logs import configure
from weightsync_agent.settings import Settings


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    await run(settings, stop)


def main() -> None:
    """Exit codes: 0 told to stop, 1 failed, 2 the environment is wrong."""
    try:
        settings = Settings.from_environment()
    except WeightSyncError as error:
        sys.stderr.write(f"weightsync-agent: {error}\n")
        sys.exit(2)
    configure(settings.log_level, settings.log_format)
    log = structlog.get_logger("weightsync_agent")
    try:
        asyncio.run(_serve(settings))
    except WeightSyncError as error:
        log.error("the agent ends", reason=error.reason, why=str(error))  # noqa: TRY400 - the sentence says it all
        sys.exit(1)


if __name__ == "__main__":
    main()
