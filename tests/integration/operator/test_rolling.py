"""Every engine is replaced in waves while watches end and the API server is killed: the plan ends right."""

import asyncio
from pathlib import Path

import pytest

from tools.bench.scale.fleet import TRAINERS, Fleet
from tools.bench.scale.premises import Premises
from tools.bench.scale.rolling import Rolling
from tools.bench.scale.wire import Wire
from tools.cluster.light import LightCluster

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

ENGINES = 50
SECONDS = 40.0  # far less than until the operator lists everything anew by itself, which is never here


def test_a_rolling_update_ends_in_the_right_plan(light_cluster: LightCluster, tmp_path: Path) -> None:
    """No engine is missing, of another life or left over, whatever of it the operator's watches did not tell."""

    async def scenario() -> int:
        async with Fleet(light_cluster) as fleet, Wire(light_cluster) as wire:
            here = Premises(light_cluster, fleet, tmp_path)
            here.on(wire.kubeconfig(tmp_path / "wire"))
            await here.install()
            await fleet.each(fleet.trainer, range(TRAINERS))
            await fleet.each(fleet.engine, range(ENGINES))
            await here.policy()
            try:
                await here.start()
                await Rolling(light_cluster, fleet, wire, away_seconds=0.5).run(range(ENGINES))
                return await here.settled(SECONDS)
            finally:
                here.operator.stop()

    assert asyncio.run(scenario()) == 0
    assert light_cluster.client.is_ready()  # for the tests that follow
