"""What the planner knows of a pod: built by observe.py from the API, by offline.py from an inventory. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weightsync.announcement import Announcement
from weightsync.report import Report


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, trimmed to what plans need: thousands are kept in memory.

    created: RFC 3339, as the API prints it, so that it sorts; gone: why the pod cannot take part any more
    ("Terminating", "Failed", "Succeeded"), else ""; problem: why an annotation cannot be read; size: of how many pods
    its engine is, as annotations say, 0 where none does; node: where it runs, "" while it is not scheduled; gated:
    its containers are ready, and our gate alone keeps it from being Ready.
    """

    namespace: str
    name: str
    uid: str
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    gone: str = ""
    announcement: Announcement | None = None
    problem: str = ""
    report: Report | None = None
    size: int = 0
    node: str = ""
    gated: bool = False


def by_age(pods: Iterable[Pod]) -> list[Pod]:
    """Oldest first; the API counts whole seconds, so that names decide among pods made together."""
    return sorted(pods, key=lambda pod: (pod.created, pod.name, pod.uid))


def listing(names: Iterable[str], limit: int = 5) -> str:
    """Names for a message, at most ``limit`` of them: ``a, b and 3 more``."""
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest} more" if rest > 0 else "")


def count(number: int, noun: str) -> str:
    """``1 engine``, ``2 engines``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
