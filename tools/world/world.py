"""The world: pods of one or two processes, and the planner that follows their inventory."""

import json
import secrets
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tools.world.processes import Child, WorldError, python, wait
from weightsync import names
from weightsync.plan import Plan, PlanFile
from weightsync.report import Report
from weightsync.wire.v1 import AgentStatus

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where a pod's memory-backed volume lies on this machine


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Pod:
    """One pod: its volume and its processes."""

    name: str
    role: str
    volume: Path
    port: int
    agent: Child
    engine: Child | None = None
    engine_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """host:port of the agent."""
        return f"127.0.0.1:{self.port}"

    @property
    def children(self) -> list[Child]:
        """All processes."""
        return [self.agent, *([self.engine] if self.engine else [])]


class World:
    """Use as a context manager: at the end all processes are ended and the folder is removed.

    plan: further fields of the inventory (strategy, transfer), camelCase.
    """

    def __init__(self, plan: dict[str, Any] | None = None, agent_environment: dict[str, str] | None = None) -> None:
        base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="weightsync-world-", dir=base))
        self.pods: dict[str, Pod] = {}
        self.secret = secrets.token_hex(16)
        self._plan_fields = plan or {}
        self._agent_environment = agent_environment or {}
        self._secret_file = self.folder / "secret"
        self._secret_file.write_text(self.secret)
        self._inventory = self.folder / "inventory.yaml"
        self.plan_file = self.folder / "plan.json"
        self._planner = Child(
            "planner",
            python(
                "weightsync_cli", "plan", "--inventory", str(self._inventory), "--out", str(self.plan_file),
                "--watch", "--secret-file", str(self._secret_file),
            ),
            {},
            self.folder / "planner.log",
        )  # fmt: skip

    # --- making ---

    def trainer(self, name: str, **environment: str) -> Pod:
        """A trainer's pod: an agent; the trainer itself is whoever uses ``pod.volume`` in a Publisher."""
        return self._add(name, "trainer", environment)

    def engine(self, name: str, model: Path, *flags: str, **environment: str) -> Pod:
        """An engine's pod: an agent and the reference engine over the checkpoint ``model``."""
        port = free_port()
        pod = self._add(name, "engine", {"WEIGHTSYNC_ENGINE_URL": f"http://127.0.0.1:{port}", **environment})
        # As in a pod: the agent has prepared the volume before the engine starts.
        wait(f"{name}'s volume", (pod.volume / names.PYTHON / "weightsync_hook.py").exists, 60, [pod.agent])
        pod.engine_port = port
        pod.engine = Child(
            f"{name} engine",
            python(
                "reference.server", "--model-path", str(model), "--port", str(port), "--engine-name", name,
                "--custom-weight-loader", names.HOOK_LOADER, *flags,
            ),
            {names.DIRECTORY_ENV: str(pod.volume), "PYTHONPATH": str(pod.volume / names.PYTHON)},
            self.folder / f"{name}-engine.log",
        )  # fmt: skip
        pod.engine.start()
        return pod

    def _add(self, name: str, role: str, environment: dict[str, str]) -> Pod:
        volume = self.folder / name
        volume.mkdir()
        port = free_port()
        settings = {
            "WEIGHTSYNC_ROLE": role,
            "WEIGHTSYNC_DIR": str(volume),
            "WEIGHTSYNC_UID": name,
            "WEIGHTSYNC_PLAN": f"file:{self.plan_file}",
            "WEIGHTSYNC_SECRET_FILE": str(self._secret_file),
            "WEIGHTSYNC_PORT": str(port),
            "WEIGHTSYNC_BIND": "127.0.0.1",
            "POD_IP": "127.0.0.1",
            "WEIGHTSYNC_PROBE_SECONDS": "0.25",
            **self._agent_environment,
            **environment,
        }
        agent = Child(f"{name} agent", python("weightsync_agent"), settings, self.folder / f"{name}-agent.log")
        pod = self.pods[name] = Pod(name, role, volume, port, agent, environment=settings)
        agent.start()
        self._write_inventory()
        return pod

    def remove(self, name: str) -> None:
        """The pod is deleted: its processes end, its volume is gone."""
        pod = self.pods.pop(name)
        for child in pod.children:
            child.kill()
        self._write_inventory()
        shutil.rmtree(pod.volume)

    def _write_inventory(self) -> None:
        agents = [{"uid": pod.name, "address": pod.address, "role": pod.role} for pod in self.pods.values()]
        temporary = self._inventory.with_suffix(".new")
        temporary.write_text(yaml.safe_dump({"agents": agents, **self._plan_fields}))
        temporary.replace(self._inventory)

    # --- watching ---

    def plan(self) -> Plan | None:
        """The plan as it stands in the file."""
        return PlanFile.load(self.plan_file).plan if self.plan_file.exists() else None

    def wait_for_plan(self, condition: Callable[[Plan], bool], what: str, seconds: float = 60.0) -> Plan:
        """Until the plan is as wanted; the planner is started by the first call."""
        if not self._planner.alive:
            self._planner.start()
        children = [self._planner, *(child for pod in self.pods.values() for child in pod.children)]

        def holds() -> bool:
            plan = self.plan()
            return plan is not None and condition(plan)

        wait(what, holds, seconds, children)
        plan = self.plan()
        if plan is None:
            raise WorldError("the plan file vanished")
        return plan

    def wait_for_engines(self, count: int, seconds: float = 60.0) -> Plan:
        """Until the plan has so many engines, and its coordinator knows it."""
        plan = self.wait_for_plan(
            lambda plan: len(plan.engines) == count and plan.coordinator in self.pods,
            f"a plan with {count} engines",
            seconds,
        )
        coordinator = self.pods[plan.coordinator]

        def known() -> bool:
            report = Report.model_validate(self.call(coordinator, "/v1/report"))
            return report.current + report.behind + report.joining == count

        wait(f"the coordinator knowing {count} engines", known, seconds, coordinator.children)
        return plan

    def keep_plan(self) -> None:
        """The plan stays as it is: the planner ends, and costs nothing while something is measured."""
        self._planner.stop()

    def call(self, pod: Pod, path: str, body: dict[str, Any] | None = None, *, seconds: float = 10.0) -> Any:
        """Ask an agent; raises WorldError with its words where it refuses."""
        return self._http(pod.address, path, body, seconds, {"Authorization": f"Bearer {self.secret}"})

    def ask_engine(self, pod: Pod, path: str, body: dict[str, Any] | None = None, *, seconds: float = 60.0) -> Any:
        """Ask an engine, as any client would."""
        return self._http(f"127.0.0.1:{pod.engine_port}", path, body, seconds, {})

    @staticmethod
    def _http(address: str, path: str, body: dict[str, Any] | None, seconds: float, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{address}{path}", data, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise WorldError(
                f"{address}{path}: {error.code} {error.read()[:500].decode(errors='replace')}"
            ) from error
        except OSError as error:
            raise WorldError(f"{address}{path}: {error}") from error

    def status(self, pod: Pod) -> AgentStatus:
        """What the engine's agent knows."""
        return AgentStatus.model_validate(self.call(pod, "/v1/status"))

    def wait_for_version(self, pod: Pod, version: str, seconds: float = 30.0) -> None:
        """Until the agent says that its engine serves ``version`` and its gate is open."""

        def serves() -> bool:
            try:
                status = self.status(pod)
            except WorldError:
                return False
            return status.version == version and status.gate

        wait(f"{pod.name} serving {version}", serves, seconds)

    # --- the end ---

    def close(self) -> None:
        """End everything, remove the folder."""
        children = [self._planner, *(child for pod in self.pods.values() for child in pod.children)]
        for child in children:
            child.stop(seconds=5.0)
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for child in [self._planner, *(child for pod in self.pods.values() for child in pod.children)]:
                print(f"--- {child.name}\n{child.tail(40)}")
        self.close()
