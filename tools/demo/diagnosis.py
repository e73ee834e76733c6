"""What to show when the demo cannot go on: conditions, events, the last lines of logs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tools.demo.errors import DemoError
from tools.demo.kubectl import Kubectl

LINES = 8

Json = dict[str, Any]


def describe(kubectl: Kubectl, lines: int = LINES) -> str:
    """The text, with so many lines of each log; what cannot be asked is said so in its place."""
    parts: list[str] = []
    for title, make in (
        ("WeightSync", _conditions),
        ("pods", _pods),
        ("events", _events),
        ("logs", partial(_logs, lines=lines)),
    ):
        try:
            parts.append(f"--- {title}\n" + "\n".join(make(kubectl)))
        except DemoError as error:
            parts.append(f"--- {title}: {error}")
    return "\n".join(parts)


def _conditions(kubectl: Kubectl) -> Iterator[str]:
    for one in kubectl.get("weightsyncs")["items"]:
        for condition in one.get("status", {}).get("conditions", []):
            words = (condition[key] for key in ("type", "status", "reason", "message") if condition.get(key))
            yield f"{one['metadata']['name']}: " + " ".join(words)


def _pods(kubectl: Kubectl) -> Iterator[str]:
    for pod in kubectl.get("pods")["items"]:
        status = pod["status"]
        open_conditions = [
            f"{c['type']}={c['status']} {c.get('reason', '')} {c.get('message', '')}".strip()
            for c in status.get("conditions", [])
            if c["status"] != "True"
        ]
        yield f"{pod['metadata']['name']}: {status.get('phase')}; " + ("; ".join(open_conditions) or "all conditions")


def _events(kubectl: Kubectl) -> Iterator[str]:
    text = kubectl("get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=A:.type,B:.reason,C:.message")
    yield from text.splitlines()[1:][-LINES * 2 :]


def _logs(kubectl: Kubectl, lines: int) -> Iterator[str]:
    for pod in kubectl.get("pods")["items"]:
        name, spec = pod["metadata"]["name"], pod["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            try:
                text = kubectl("logs", name, "--container", container["name"], f"--tail={lines}")
            except DemoError as error:
                text = str(error)
            yield f"[{name} {container['name']}]"
            yield from (f"    {line[:400]}" for line in text.splitlines())
