"""The light cluster: several at once, found again, ended with its starter, and never at the cost of other files."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tools.cluster import light, processes
from tools.cluster.errors import ClusterError

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_SECONDS = 60


def _start_and_wait(folder: Path, ready: object) -> None:
    light.up(folder, bound_to_caller=True)
    ready.set()  # type: ignore[attr-defined]
    signal.pause()


def recorded(folder: Path) -> list[processes.Record]:
    """The processes of the light cluster in `folder`."""
    return list(processes.Keeper(folder / "processes").records().values())


def test_a_light_cluster_is_found_again_beside_another(light_cluster: light.LightCluster, tmp_path: Path) -> None:
    """Two have different addresses and objects; a second `up` of one gives the same one."""
    folder = tmp_path / "cluster"
    with light.running(folder) as cluster:
        assert light.up(folder) == cluster
        assert cluster.url != light_cluster.url
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-here"}}
        assert cluster.client.call("POST", "/api/v1/namespaces", namespace)[0] == 201
        assert light_cluster.client.call("GET", "/api/v1/namespaces/only-here")[0] == 404
        started = recorded(folder)
    assert [record.name for record in started if processes.is_alive(record)] == []
    assert not folder.exists()


def test_a_light_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """No program of it is left after its starter was killed."""
    folder = tmp_path / "cluster"
    ready = SPAWN.Event()
    starter = SPAWN.Process(target=_start_and_wait, args=(folder, ready))
    starter.start()
    assert ready.wait(DEADLINE_SECONDS)
    started = recorded(folder)
    assert len(started) == len(light.STOP_ORDER)
    os.kill(starter.pid or 0, signal.SIGKILL)
    starter.join(DEADLINE_SECONDS)
    assert processes.wait_all_gone([record.pid for record in started], DEADLINE_SECONDS) == []


def test_a_folder_with_other_files_is_not_emptied(tmp_path: Path) -> None:
    """Refused, with the name of what is in the way, which stays."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ClusterError, match=r"thesis\.tex"):
        light.up(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
