"""The world: pods of one or two processes, and the planner that follows their inventory."""

import json
import secrets
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import yaml

from tools.world.network import Network
from tools.world.pod import HOST, Pod
from tools.world.ports import Ports
from tools.world.processes import Child, WorldError, python, wait
from weightsync import names
from weightsync.plan import Plan, PlanFile
from weightsync.report import Report
from weightsync.wire.v1 import AgentStatus

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where a pod's memory-backed volume lies on this machine


class World:
    """Use as a context manager: at the end all processes are ended and the folder is removed.

    plan: further fields of the inventory (strategy, transfer), camelCase. network: gives each pod a network
    namespace and an address of its own; failpoints: each agent may be held (weightsync_agent.failpoints).
    """

    start_seconds = 60.0  # until an agent has prepared its pod's volume
    child: ClassVar[type[Child]] = Child  # how its programs are started
    running: ClassVar[list["World"]] = []  # of this process, from with to its end: for who reports a failure

    def __init__(
        self,
        plan: dict[str, Any] | None = None,
        agent_environment: dict[str, str] | None = None,
        *,
        network: Network | None = None,
        failpoints: bool = False,
    ) -> None:
        base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="weightsync-world-", dir=base))
        self.pods: dict[str, Pod] = {}
        self.ports = Ports()
        self.secret = secrets.token_hex(16)
        self._plan_fields = plan or {}
        self._agent_environment = agent_environment or {}
        self._network = network
        self._failpoints = failpoints
        self._mounted: list[Path] = []
        self._secret_file = self.folder / "secret"
        self._secret_file.touch(mode=0o600)  # agents refuse one that everybody may read
        self._secret_file.write_text(self.secret)
        self._inventory = self.folder / "inventory.yaml"
        self.plan_file = self.folder / "plan.json"
        self.planner = self.child(
            "planner",
            python(
                "weightsync_cli", "plan", "--inventory", str(self._inventory), "--out", str(self.plan_file),
                "--watch", "--secret-file", str(self._secret_file),
            ),
            {},
            self.folder / "planner.log",
        )  # fmt: skip

    # --- making ---

    def trainer(self, name: str, *, volume_bytes: int | None = None, **environment: str) -> Pod:
        """A trainer's pod: an agent; the trainer itself is whoever uses ``pod.volume`` in a Publisher."""
        return self._add(name, "trainer", environment, volume_bytes=volume_bytes)

    def engine(self, name: str, model: Path, *flags: str, volume_bytes: int | None = None, **environment: str) -> Pod:
        """An engine's pod: an agent and the reference engine over the checkpoint ``model``.

        volume_bytes: the volume is a file system of that size (as root).
        """
        port = self.ports.take()
        pod = self._add(name, "engine", environment, engine_port=port, volume_bytes=volume_bytes)
        self._start_engine(pod, model, flags)
        return pod

    def engine_of_pods(self, name: str, model: Path, nodes: int, *flags: str) -> list[Pod]:
        """One engine of ``nodes`` pods, the leader's first: their processes meet before the first answers."""
        meeting = self.ports.take()
        return [self.node_of(name, model, node, nodes, meeting, *flags) for node in range(nodes)]

    def node_of(self, name: str, model: Path, node: int, nodes: int, meeting: int, *flags: str, uid: str = "") -> Pod:
        """One pod of an engine of several. meeting: the port of node 0 where its processes meet."""
        own, leader = name if node == 0 else f"{name}-{node}", self.pods.get(name)
        environment = {"WEIGHTSYNC_NODE_RANK": str(node)}
        if leader is not None:
            environment["WEIGHTSYNC_LEADER"] = leader.address
        pod = self._add(own, "engine", environment, engine_port=self.ports.take(), uid=uid, group=name)
        host = leader.host if leader is not None else pod.host
        place = ("--nnodes", str(nodes), "--node-rank", str(node), "--dist-init-addr", f"{host}:{meeting}")
        self._start_engine(pod, model, (*place, *flags))
        return pod

    def _start_engine(self, pod: Pod, model: Path, flags: Sequence[str]) -> None:
        # As in a pod: the agent has prepared the volume before the engine starts.
        wait(
            f"{pod.name}'s volume",
            (pod.volume / names.PYTHON / "weightsync_hook.py").exists,
            self.start_seconds,
            [pod.agent],
        )
        command = [
            *pod.prefix,
            *python(
                "reference.server", "--model-path", str(model), "--host", pod.host, "--port", str(pod.engine_port),
                "--engine-name", pod.name, "--custom-weight-loader", names.HOOK_LOADER, *flags,
            ),
        ]  # fmt: skip
        pod.engine = self.child(
            f"{pod.name} engine",
            command,
            {names.DIRECTORY_ENV: str(pod.volume), "PYTHONPATH": str(pod.volume / names.PYTHON)},
            self.folder / f"{pod.name}-engine.log",
        )
        pod.engine.start()

    def _add(
        self,
        name: str,
        role: str,
        environment: dict[str, str],
        *,
        engine_port: int = 0,
        volume_bytes: int | None = None,
        uid: str = "",
        port: int = 0,
        group: str = "",
    ) -> Pod:
        volume = self.folder / name
        volume.mkdir()
        if volume_bytes is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={volume_bytes}", "tmpfs", volume], check=True)
            self._mounted.append(volume)
        here = self._network.join(name) if self._network is not None else None
        host, prefix = (here.address, here.prefix) if here is not None else (HOST, ())
        port = port or self.ports.take()
        uid, identity = self._register(name, role, uid or name)
        settings = {
            "WEIGHTSYNC_ROLE": role,
            "WEIGHTSYNC_DIR": str(volume),
            "WEIGHTSYNC_SECRET_FILE": str(self._secret_file),
            **identity,
            "WEIGHTSYNC_PORT": str(port),
            "WEIGHTSYNC_BIND": host,
            "POD_IP": host,
            "WEIGHTSYNC_PROBE_SECONDS": "0.25",
            **({"WEIGHTSYNC_ENGINE_URL": f"http://{host}:{engine_port}"} if engine_port else {}),
            **({"WEIGHTSYNC_FAILPOINTS": str(self.failpoints(name))} if self._failpoints else {}),
            **self._agent_environment,
            **environment,
        }
        command = [*prefix, *python("weightsync_agent")]
        agent = self.child(f"{name} agent", command, settings, self.folder / f"{name}-agent.log")
        pod = self.pods[name] = Pod(
            name, role, volume, port, agent, engine_port=engine_port, environment=settings, uid=uid, host=host,
            prefix=tuple(prefix), group=group,
        )  # fmt: skip
        agent.start()
        self._write_inventory()
        return pod

    def _register(self, name: str, role: str, uid: str) -> tuple[str, dict[str, str]]:
        """Make a pod known to whoever plans: its uid, and what its agent's environment says of both."""
        return uid, {"WEIGHTSYNC_UID": uid, "WEIGHTSYNC_PLAN": f"file:{self.plan_file}"}

    def _forget(self, name: str) -> None:
        """The pod was deleted."""

    def failpoints(self, name: str) -> Path:
        """The folder in which the pod's failpoints are armed."""
        folder = self.folder / "failpoints" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def replace(self, name: str, uid: str, model: Path, *flags: str) -> Pod:
        """The engine's pod is deleted, and another comes to the same address: a new uid, a fresh volume."""
        old = self.pods[name]
        self.remove(name)
        pod = self._add(name, "engine", {}, engine_port=old.engine_port, uid=uid, port=old.port)
        self._start_engine(pod, model, flags)
        return pod

    def remove(self, name: str) -> None:
        """The pod is deleted: its processes end, its volume is gone."""
        pod = self.pods.pop(name)
        for child in pod.children:
            child.kill()
        self._forget(name)
        self._write_inventory()
        self._unmount(pod.volume)
        shutil.rmtree(pod.volume)

    def _unmount(self, volume: Path) -> None:
        if volume in self._mounted:
            self._mounted.remove(volume)
            subprocess.run(["umount", "--lazy", volume], check=True)

    def set_plan(self, **fields: Any) -> None:
        """Change further fields of the inventory; the planner follows."""
        self._plan_fields = {**self._plan_fields, **fields}
        self._write_inventory()

    def _write_inventory(self) -> None:
        agents = [
            {"uid": pod.uid, "address": pod.address, "role": pod.role} | ({"engine": pod.group} if pod.group else {})
            for pod in self.pods.values()
        ]
        temporary = self._inventory.with_suffix(".new")
        temporary.write_text(yaml.safe_dump({"agents": agents, **self._plan_fields}))
        temporary.replace(self._inventory)

    # --- watching ---

    @property
    def children(self) -> list[Child]:
        """The planner and all pods' processes."""
        return [self.planner, *(child for pod in self.pods.values() for child in pod.children)]

    def plan(self) -> Plan | None:
        """The plan as it stands in the file."""
        return PlanFile.load(self.plan_file).plan if self.plan_file.exists() else None

    def wait_for_plan(self, condition: Callable[[Plan], bool], what: str, seconds: float = 60.0) -> Plan:
        """Until the plan is as wanted; the planner is started by the first call."""
        if not self.planner.alive:
            self.planner.start()

        def holds() -> bool:
            plan = self.plan()
            return plan is not None and condition(plan)

        wait(what, holds, seconds, self.children)
        plan = self.plan()
        if plan is None:
            raise WorldError("the plan file vanished")
        return plan

    def wait_for_engines(self, count: int, seconds: float = 60.0) -> Plan:
        """Until the plan has so many engines, and its coordinator knows it."""
        plan = self.wait_for_plan(
            lambda plan: len(plan.engines) == count and plan.coordinator in {pod.uid for pod in self.pods.values()},
            f"a plan with {count} engines",
            seconds,
        )
        coordinator = self.coordinator(plan)

        def known() -> bool:
            report = Report.model_validate(self.call(coordinator, "/v1/report"))
            return report.current + report.behind + report.joining == count

        wait(f"the coordinator knowing {count} engines", known, seconds, coordinator.children)
        return plan

    def wait_for_fresh_plan(self, count: int, seconds: float = 60.0) -> Plan:
        """Until the planner has asked every agent after this call, and so many engines are in its plan.

        An engine that was away for a moment may be current again before a plan without it is written. The inventory
        is read before agents are asked: a plan that holds its new deadline (another second) was made since.
        """
        before = self.wait_for_plan(lambda plan: True, "a plan", seconds)
        deadline = before.strategy.deadline_seconds ^ 1
        self.set_plan(strategy={**self._plan_fields.get("strategy", {}), "deadlineSeconds": deadline})
        self.wait_for_plan(
            lambda plan: plan.strategy.deadline_seconds == deadline and len(plan.engines) == count,
            f"a plan with {count} engines, made anew",
            seconds,
        )
        return self.wait_for_engines(count, seconds)

    def name_of(self, uid: str) -> str:
        """The pod of that uid; the uid itself where it is no pod's any more."""
        return next((pod.name for pod in self.pods.values() if pod.uid == uid), uid)

    def coordinator(self, plan: Plan) -> Pod:
        """The pod whose agent coordinates."""
        return next(pod for pod in self.pods.values() if pod.uid == plan.coordinator)

    def keep_plan(self) -> None:
        """The plan stays as it is: the planner ends, and costs nothing while something is measured."""
        self.planner.stop()

    def call(self, pod: Pod, path: str, body: dict[str, Any] | None = None, *, seconds: float = 10.0) -> Any:
        """Ask an agent; raises WorldError with its words where it refuses."""
        return self._http(pod.address, path, body, seconds, {"Authorization": f"Bearer {self.secret}"})

    def metric(self, pod: Pod, name: str) -> float:
        """What an agent's metric of that name is now, over all its labels."""
        with urllib.request.urlopen(f"http://{pod.address}/metrics", timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split()[:1] == [name])

    def ask_engine(self, pod: Pod, path: str, body: dict[str, Any] | None = None, *, seconds: float = 60.0) -> Any:
        """Ask an engine, as any client would."""
        return self._http(pod.engine_address, path, body, seconds, {})

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
        """Until the agent says that its engine serves ``version`` and its gate is open. Raises WorldError when one of
        the pod's processes has ended."""

        def serves() -> bool:
            try:
                status = self.status(pod)
            except WorldError:
                return False
            return status.version == version and status.gate

        wait(f"{pod.name} serving {version}", serves, seconds, pod.children)

    # --- the end ---

    def close(self) -> None:
        """End everything, remove the folder."""
        for child in self.children:
            child.stop(seconds=5.0)
        for volume in list(self._mounted):
            self._unmount(volume)
        self.ports.close()
        shutil.rmtree(self.folder)

    def tails(self, lines: int = 40) -> str:
        """The last lines of every process's log."""
        return "\n".join(f"--- {child.name}\n{child.tail(lines)}" for child in self.children)

    def __enter__(self) -> Self:
        self.running.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.tails())
        self.running.remove(self)
        self.close()
