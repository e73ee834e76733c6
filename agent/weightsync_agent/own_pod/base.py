"""What the agent says through its own pod, and to whom it says it. Pure."""

from typing import NamedTuple, Protocol

from weightsync.announcement import Announcement
from weightsync.report import Report


class Identity(NamedTuple):
    """The pod that this agent runs in. A pod of the same name and another uid is not it."""

    name: str
    namespace: str
    uid: str


class Gate(NamedTuple):
    """The readiness gate's condition. reason: one CamelCase word; since: RFC 3339, when status last turned."""

    status: bool
    reason: str
    message: str = ""
    since: str = ""


class OwnPod(Protocol):
    """Where the agent says what it is. The calls set what should be said and return at once.

    Writing happens behind them, the newest value each time and none that changes nothing, so that no sync waits
    for the API and a long outage ends with one write. A gate that is True stays True while the API is away.
    """

    @property
    def announcement(self) -> Announcement | None:
        """What was last announced."""
        ...

    @property
    def gate(self) -> Gate | None:
        """The gate as last set; before that, as the pod had it; None where neither is known."""
        ...

    @property
    def last_report(self) -> Report | None:
        """What was last reported."""
        ...

    def announce(self, announcement: Announcement) -> None:
        """Say what the agent is."""
        ...

    def set_gate(self, status: bool, reason: str, message: str = "") -> None:
        """Open or close the readiness gate. Keep versions out of the texts: each new text is a write."""
        ...

    def report(self, report: Report) -> None:
        """A coordinator's report; of several in quick succession the last is written."""
        ...

    async def labels(self) -> dict[str, str]:
        """The pod's labels as they are, or were a few seconds ago; waits until they are known.

        Raises WeightSyncError where they cannot be read anew.
        """
        ...

    async def settled(self) -> None:
        """Return once everything said is written, or refused for good."""
        ...

    async def start(self) -> None:
        """Begin to write."""
        ...

    async def stop(self, seconds: float = 2.0) -> None:
        """Write what is still to be written, for so long at most, and end."""
        ...
