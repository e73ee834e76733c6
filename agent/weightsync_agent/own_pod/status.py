"""The objects that are applied to the own pod, and what is read from it. Pure.

Two appliers, so that neither drops what the other says: a manager's apply removes whatever it said before and
leaves out now. Annotation and gate of the agent therefore go into ONE apply, the report into one of its own.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from weightsync import names
from weightsync.announcement import Announcement
from weightsync.errors import InputError
from weightsync.report import Report
from weightsync_agent.own_pod.base import Gate, Identity

Body = dict[str, Any]
Clock = Callable[[], datetime]

MESSAGE_LIMIT = 1024  # characters: enough for a sentence, small in an object that every controller reads
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


class Said(NamedTuple):
    """The agent's part of its pod: the announcement as text, and the gate; None where there is none."""

    announcement: str | None = None
    gate: Gate | None = None


class Seen(NamedTuple):
    """What is read from the own pod."""

    labels: dict[str, str]
    said: Said


def utc_now() -> datetime:
    """The wall clock, for timestamps in the API."""
    return datetime.now(UTC)


def turned(old: Gate | None, new: Gate, now: datetime) -> Gate:
    """``new`` with its since: that of ``old`` where the status is the same, else ``now``.

    Raises InputError where the reason is no CamelCase word, which the API would refuse.
    """
    if not _REASON.fullmatch(new.reason):
        raise InputError(f"{new.reason!r} is no reason of a condition: write one CamelCase word")
    since = old.since if old is not None and old.status == new.status else ""
    return new._replace(message=new.message[:MESSAGE_LIMIT], since=since or now.strftime("%Y-%m-%dT%H:%M:%SZ"))


def text(value: Announcement | Report) -> str:
    """An annotation's value: the same text for the same value."""
    return value.canonical().decode()


def agent_body(pod: Identity, said: Said) -> Body:
    """The whole of what the agent says, under names.MANAGER_AGENT."""
    body = identity_body(pod)
    if said.announcement is not None:
        body["metadata"]["annotations"] = {names.ANNOUNCEMENT: said.announcement}
    if said.gate is not None:
        condition = {
            "type": names.GATE,
            "status": "True" if said.gate.status else "False",
            "reason": said.gate.reason,
            "message": said.gate.message,
            "lastTransitionTime": said.gate.since,
        }
        body["status"] = {"conditions": [condition]}
    return body


def report_body(pod: Identity, report: str) -> Body:
    """The report alone, under names.MANAGER_REPORT."""
    body = identity_body(pod)
    body["metadata"]["annotations"] = {names.REPORT: report}
    return body


def identity_body(pod: Identity) -> Body:
    """The pod and nothing said of it. With the uid in it a pod that took over the name is refused as a conflict."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
    }


def read_pod(pod: Body) -> Seen:
    """What the pod, as the API gives it, already says."""
    metadata = pod["metadata"]
    conditions = pod.get("status", {}).get("conditions", [])
    found = next((condition for condition in conditions if condition["type"] == names.GATE), None)
    gate = found and Gate(
        status=found["status"] == "True",
        reason=found.get("reason", ""),
        message=found.get("message", ""),
        since=found.get("lastTransitionTime") or "",
    )
    return Seen(
        labels=dict(metadata.get("labels", {})),
        said=Said(metadata.get("annotations", {}).get(names.ANNOUNCEMENT), gate),
    )
