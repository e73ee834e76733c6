"""Pods and logs as events, from the API of whichever cluster. Each follower is a thread that fills one queue."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import urllib3

from kubernetes import client, config, watch
from tools.demo.story import EngineUp, Event, PodSeen, TrainerSaid

GATE = "weightsync.io/WeightsCurrent"
ROLES = ("rollout", "trainer")
AGAIN_SECONDS = 0.5

Json = dict[str, Any]
# The client carries no types.
_watch: Any = watch.Watch
_client_of: Any = config.new_client_from_config
_Lost = (client.ApiException, urllib3.exceptions.HTTPError, OSError)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def read_pod(raw: Json, kind: str, at_ms: int) -> PodSeen:
    """One watch event's object. Pure."""
    metadata, status = raw["metadata"], raw.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    gate = conditions.get(GATE, {})
    return PodSeen(
        name=metadata["name"],
        role=metadata["labels"]["app"],
        at_ms=at_ms,
        created_ms=_ms(metadata["creationTimestamp"]),
        gate=gate.get("status") == "True",
        gate_ms=_ms(gate.get("lastTransitionTime")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        leaving="deletionTimestamp" in metadata,
        gone=kind == "DELETED",
        note=_note(status),
    )


def _ms(stamp: str | None) -> int:
    return int(datetime.fromisoformat(stamp).timestamp() * 1000) if stamp else 0


def _note(status: Json) -> str:
    """Why a pod does not run, in the words of its first container that waits."""
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = one.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"{one['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
    return str(status.get("phase", ""))


def json_lines(lines: Iterator[str]) -> Iterator[Json]:
    """The lines that are one event of ours each; others (warnings, traces) are left out. Pure."""
    for line in lines:
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict) and "event" in document and "unix_ms" in document:
                yield document


class Watching:
    """Followers of one namespace. Use as a context manager; ``events`` is what they saw."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._namespace = namespace
        self._core = client.CoreV1Api(_client_of(str(kubeconfig)))
        self._apps = client.AppsV1Api(self._core.api_client)
        self._ended = threading.Event()
        self._told: set[str] = set()

    def __enter__(self) -> Watching:
        self._start(self._pods)
        self._start(self._trainer)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()  # the threads are daemons: those that wait for the API end with the process

    def _start(self, follow: Callable[[], None]) -> None:
        threading.Thread(target=follow, daemon=True, name=follow.__name__).start()

    def _pods(self) -> None:
        selector = f"app in ({','.join(ROLES)})"
        while not self._ended.is_set():
            try:
                stream = _watch().stream(
                    self._core.list_namespaced_pod, self._namespace, label_selector=selector, timeout_seconds=300
                )
                for event in stream:
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        self._saw(read_pod(event["raw_object"], event["type"], now_ms()))
            except _Lost:
                self._ended.wait(AGAIN_SECONDS)

    def _saw(self, seen: PodSeen) -> None:
        self.events.put(seen)
        if seen.role == "rollout" and seen.gate and seen.name not in self._told:
            self._told.add(seen.name)
            self._start(lambda: self._up_time(seen.name))

    def _up_time(self, pod: str) -> None:
        """The engine said so before its gate could open: one look is enough, but for a log that lags."""
        for _ in range(20):
            try:
                text = self._core.read_namespaced_pod_log(pod, self._namespace, container="engine")
            except _Lost:
                text = ""
            for document in json_lines(iter(text.splitlines())):
                if document["event"] == "up":
                    self.events.put(EngineUp(pod, document["unix_ms"]))
                    return
            if self._ended.wait(AGAIN_SECONDS):
                return

    def _trainer(self) -> None:
        """Rank 0's lines, each once, also where the stream is cut and opened again."""
        told: set[str] = set()
        while not self._ended.is_set():
            try:
                stream = _watch().stream(
                    self._core.read_namespaced_pod_log, "trainer-0", self._namespace, container="trainer", follow=True
                )
                for document in json_lines(stream):
                    key = json.dumps(document, sort_keys=True)
                    if key not in told:
                        told.add(key)
                        self.events.put(TrainerSaid(document))
            except _Lost:
                pass  # the pod is not there yet, or its container is not: looked for again
            self._ended.wait(AGAIN_SECONDS)

    def scale(self, deployment: str, replicas: int) -> None:
        """Set a Deployment's replicas."""
        self._apps.patch_namespaced_deployment_scale(deployment, self._namespace, {"spec": {"replicas": replicas}})

    def delete(self, pod: str, grace_seconds: int) -> None:
        """Delete a pod; that it is gone already is as good."""
        try:
            self._core.delete_namespaced_pod(pod, self._namespace, grace_period_seconds=grace_seconds)
        except client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
