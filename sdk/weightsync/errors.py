"""The tree of exceptions: what a trainer can catch from WeightSync, seen in one screen.

    WeightSyncError                 everything below
    +-- InputError                  the caller gave something wrong: names, shapes, files, settings
    |   +-- LayoutMismatch          two sides describe a rank's parameters differently
    |   +-- CoverageError           stages leave a byte of a layout unfed, or feed it twice
    +-- PeerError                   the other side answered wrongly, late or not at all
    |   +-- Refused                 it understood and said no; the reason is its own
    +-- TransferError               Mooncake could not move the bytes
    +-- EngineError                 the rollout engine refused or failed a control call
    +-- PublishFailed               raised by PublishHandle.raise_on_failure()
    +-- AgentUnavailable            the trainer's own agent cannot be reached
    +-- ProtocolError               an event that the machine's table does not hold; nothing was changed

``reason`` is a CamelCase word for machines, ``retryable`` says whether the same call can succeed later.
"""


class WeightSyncError(Exception):
    """Base of all. ``str()`` is a sentence with what, where and what to do."""

    reason = "Failed"
    retryable = False


class InputError(WeightSyncError):
    """Something that the caller handed in is wrong; trying again changes nothing."""

    reason = "InvalidInput"


class LayoutMismatch(InputError):
    """Two sides describe the parameters of one engine rank differently."""

    reason = "LayoutMismatch"


class CoverageError(InputError):
    """The stages' tensors leave part of a layout unfed, or feed it twice."""

    reason = "CoverageIncomplete"


class PeerError(WeightSyncError):
    """A peer answered wrongly, late or not at all."""

    reason = "PeerFailed"
    retryable = True


class Refused(PeerError):
    """A peer understood the request and refused it; its sentence is passed on."""

    retryable = False

    def __init__(self, message: str, *, reason: str = "Refused", status: int = 409) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class TransferError(WeightSyncError):
    """Mooncake could not move the bytes.

    quiet: no byte of the failed call can land in the target's region any more. Where it is False, only the end of
    the receiving process makes that region quiet.
    """

    reason = "TransferFailed"
    retryable = True

    def __init__(self, message: str, *, reason: str = reason, quiet: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.quiet = quiet


class EngineError(WeightSyncError):
    """The rollout engine refused or failed a control call; its own words are in the message."""

    reason = "EngineFailed"
    retryable = True


class PublishFailed(WeightSyncError):
    """At least one engine did not become current; the message names each with its reason."""

    reason = "PublishFailed"


class AgentUnavailable(WeightSyncError):
    """The agent beside the trainer cannot be reached over its Unix socket."""

    reason = "AgentUnavailable"
    retryable = True


class ProtocolError(WeightSyncError):
    """An event arrived that the machine's table does not hold in its state. The state was left as it was."""

    reason = "ProtocolError"
