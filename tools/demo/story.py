"""What has happened so far, and what the demo does next. Pure: events come in, actions come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FEW, MANY = 2, 4  # engines at first, and after scaling
# What does not pass by waiting, as the kubelet calls it.
HOPELESS = (
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
    "ImagePullBackOff", "InvalidImageName", "RunContainerError",
)  # fmt: skip

Json = dict[str, Any]


@dataclass(frozen=True)
class TrainerSaid:
    """One event of rank 0, as rl.events prints it."""

    document: Json


@dataclass(frozen=True)
class PodSeen:
    """A pod as a watch event shows it; at_ms: when the event came, milliseconds since 1970, by this machine's clock.

    gate: the condition weightsync.io/WeightsCurrent; gate_ms: its last transition, by the agent's clock.
    """

    name: str
    role: str
    at_ms: int
    created_ms: int
    gate: bool = False
    gate_ms: int = 0
    ready: bool = False
    leaving: bool = False
    gone: bool = False
    note: str = ""


@dataclass(frozen=True)
class EngineUp:
    """An engine's own line: from then on it answers with 200."""

    pod: str
    unix_ms: int


Event = TrainerSaid | PodSeen | EngineUp


@dataclass(frozen=True)
class Scale:
    """Give the rollout so many engines."""

    engines: int


@dataclass(frozen=True)
class Delete:
    """Delete this engine's pod, now."""

    pod: str


Action = Scale | Delete


@dataclass
class PodStory:
    """One pod. Times in milliseconds since 1970, 0: not yet; joiner: it came after the rollout was scaled."""

    name: str
    role: str
    first_seen_ms: int
    created_ms: int
    joiner: bool
    gate: bool = False
    gate_open_ms: int = 0
    gate_transition_ms: int = 0
    up_ms: int = 0
    ready: bool = False
    leaving: bool = False
    gone: bool = False
    note: str = ""
    stuck_since_ms: int = 0


@dataclass
class Story:
    """scale_at: the step after which the rollout is scaled; delete_at: the step in whose sync an engine dies."""

    scale_at: int
    delete_at: int
    heard: list[Json] = field(default_factory=list)  # all that the trainer said
    steps: list[Json] = field(default_factory=list)
    pods: dict[str, PodStory] = field(default_factory=dict)
    findings: list[Json] = field(default_factory=list)
    summary: Json | None = None
    failure: str = ""
    scaled: bool = False
    deleted: str = ""
    news: list[str] = field(default_factory=list)

    @property
    def engines(self) -> list[PodStory]:
        """Engines that live."""
        return [pod for pod in self.pods.values() if pod.role == "rollout" and not pod.gone and not pod.leaving]

    @property
    def open_gates(self) -> list[PodStory]:
        """Engines whose gate is True."""
        return [pod for pod in self.engines if pod.gate]

    @property
    def joins(self) -> list[PodStory]:
        """Engines that came while training went on, and joined."""
        return [pod for pod in self.pods.values() if pod.joiner and pod.gate_open_ms]

    def take(self, event: Event) -> list[Action]:
        """Take an event in; what is to be done at once."""
        match event:
            case TrainerSaid(document):
                self._said(document)
                return list(self._next(document))
            case PodSeen():
                self._seen(event)
            case EngineUp(name, unix_ms):
                if name in self.pods:
                    self.pods[name].up_ms = unix_ms
        return []

    def _said(self, document: Json) -> None:
        self.heard.append(document)
        match document["event"]:
            case "step":
                self.steps.append(document)
                for engine in document["engines"]:
                    if engine["outcome"] != "Current":
                        self.news.append(
                            f"step {document['step']}: {engine['engine']}: {engine['outcome']} {engine['reason']}"
                        )
                if document["status"] == "Failed":
                    self.news.append(f"step {document['step']}: publish failed: {document['reason']}")
            case "torn" | "stale":
                self.findings.append(document)
                self.news.append(f"{document['event']}: {document['what']}")
            case "summary":
                self.summary = document
            case "failed":
                self.failure = f"rank {document['rank']} of the trainer failed: {document['error']}"
            case "started" if self.steps:
                self.failure = "the trainer was started anew in the middle of the run"

    def _next(self, document: Json) -> Iterator[Action]:
        step = document.get("step", 0)
        if document["event"] == "step" and step >= self.scale_at and not self.scaled:
            self.scaled = True
            self.news.append(f"step {step}: the rollout is scaled from {FEW} to {MANY} engines")
            yield Scale(MANY)
        # In the middle of a sync: the trainer says that it begins one, and the engine that goes is part of it.
        gates = sorted(pod.name for pod in self.open_gates)
        late = step >= self.delete_at and len(gates) == MANY
        if document["event"] == "publishing" and late and not self.deleted:
            self.deleted = gates[0]
            self.news.append(f"step {step}: engine {self.deleted} is deleted in the middle of the sync")
            yield Delete(self.deleted)

    def _seen(self, event: PodSeen) -> None:
        pod = self.pods.get(event.name)
        if pod is None:
            joiner = event.role == "rollout" and self.scaled
            pod = PodStory(event.name, event.role, event.at_ms, event.created_ms, joiner)
            self.pods[event.name] = pod
            if joiner:
                self.news.append(f"{event.name} starts")
        if event.gate and not pod.gate_open_ms:
            pod.gate_open_ms, pod.gate_transition_ms = event.at_ms, event.gate_ms
            if pod.joiner:
                self.news.append(f"{event.name} joined")
        if event.gone and not pod.gone and pod.role == "rollout":
            self.news.append(f"{event.name} is gone")
        pod.gate, pod.ready, pod.leaving, pod.gone = event.gate, event.ready, event.leaving, event.gone
        pod.note = event.note
        stuck = any(f" {reason}" in event.note for reason in HOPELESS)
        pod.stuck_since_ms = (pod.stuck_since_ms or event.at_ms) if stuck else 0

    def stuck(self, now_ms: int, seconds: float) -> str:
        """The first pod that has not been able to start for so long, and why; empty where there is none."""
        for pod in self.pods.values():
            if not pod.gone and pod.stuck_since_ms and now_ms - pod.stuck_since_ms > 1000 * seconds:
                return f"pod {pod.name} cannot start: {pod.note}"
        return ""

    @property
    def settled(self) -> bool:
        """Training is over, and every engine that should be there is current."""
        known = all(pod.up_ms for pod in self.joins)
        return self.summary is not None and len(self.open_gates) == MANY == len(self.engines) and known
