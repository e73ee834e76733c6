"""Put the suite's cases to a running engine and write its answers down.

python -m tests.contract.run --url http://127.0.0.1:30000 --volume /dev/weightsync --before DIR --after DIR --out FILE

The engine serves the checkpoint in --before and was started with the hook (--custom-weight-loader
weightsync_hook.load, PYTHONPATH, WEIGHTSYNC_DIR = --volume). --after is another of the same shape.
--fatal CASE puts only that one, and the engine is lost. Answers are added to FILE.
"""

import argparse
import asyncio
import json
import sys
import time
import traceback
from pathlib import Path

from tests.contract.api import Api, Json
from tests.contract.cases import CASES, FATAL
from tests.contract.table import Case
from tests.contract.world import World
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.sglang import SGLangEngine

CASE_SECONDS = 240


async def answers_of(world: World, cases: dict[str, Case]) -> tuple[dict[str, Json], dict[str, str]]:
    """Answers by case, and what was raised by those that have none: one case must not hide the others."""
    answers: dict[str, Json] = {}
    failures: dict[str, str] = {}
    for name, case in cases.items():
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(CASE_SECONDS):
                answers[name] = await case(world)
        except Exception:  # noqa: BLE001 - noted, and the run fails at its end
            failures[name] = traceback.format_exc(limit=6)
            failures[name] += await _recovered(world)
        took, end = time.perf_counter() - begin, "FAILED" if name in failures else "answered"
        print(f"{took:6.2f} s  {name}: {end}", flush=True)  # noqa: T201
    return answers, failures


async def _recovered(world: World) -> str:
    try:
        await world.idle()
    except Exception:  # noqa: BLE001 - the next case will tell
        return "\nand the engine could not be resumed:\n" + traceback.format_exc(limit=3)
    return ""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url", required=True)
    options.add_argument("--volume", type=Path, required=True)
    options.add_argument("--before", type=Path, required=True)
    options.add_argument("--after", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--fatal", choices=FATAL)
    options.add_argument("--admin-key", default="")
    options.add_argument("--api-key", default="")
    options.add_argument("--long-tokens", type=int, default=400)
    options.add_argument("--settle", type=float, default=0.5)
    return options


async def main() -> int:
    """Run; 1 where a case gave no answer."""
    o = parser().parse_args()
    cases = {o.fatal: FATAL[o.fatal]} if o.fatal else CASES
    async with (
        Api(o.url, o.admin_key, o.api_key) as api,
        SGLangEngine(o.url, o.volume, Keys(o.admin_key, o.api_key)) as engine,
    ):
        world = World(
            api, engine, o.volume, o.before, o.after,
            admin=o.admin_key, key=o.api_key, long_tokens=o.long_tokens, settle=o.settle,
        )  # fmt: skip
        answers, failures = await answers_of(world, cases)
    earlier = json.loads(o.out.read_text()) if o.out.exists() else {}
    o.out.write_text(json.dumps({**earlier, **answers}, indent=1, sort_keys=True) + "\n")
    for name, text in failures.items():
        print(f"--- {name}\n{text}", file=sys.stderr)  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
