"""Mooncake's integers, made into TransferErrors with a sentence. Pure; no integer of Mooncake's leaves this folder.

-1 is any failure, without a reason: Mooncake writes that to its log only. -2 from a poll is its own timeout, which
does not end the write: it is not terminal. 0 from a submit means that the submit failed.
"""

import enum

from weightsync.errors import TransferError

_SENTENCES = {
    -1: "Mooncake failed and gives no reason; its log lines on the worker's standard error may name one",
    -3: "the memory is not registered",
    -7: "the memory overlaps a registered region, or is registered already",
    -202: "the device would not register the memory: raise the memlock limit, or run the agent as root with "
    "IPC_LOCK; map the memory read-write",
}


class Poll(enum.Enum):
    """What a poll says of one submitted piece."""

    PENDING = 0
    DONE = 1
    FAILED = 2  # terminal too: the source's bytes are not read any more


def check(code: int, what: str) -> None:
    """Raises TransferError unless ``code``, from initialize, register or unregister, is 0."""
    if code != 0:
        sentence = _SENTENCES.get(code, "this code of Mooncake's is not known")
        raise TransferError(f"{what} failed (Mooncake code {code}): {sentence}")


def accepted(submit: int) -> bool:
    """Whether a submit was taken. Its id must not be polled where it was not: that crashes the process."""
    return submit != 0


def polled(code: int) -> Poll:
    """The outcome of transfer_check_status. An unknown code is taken as not terminal, so that nothing is freed."""
    if code == 1:
        return Poll.DONE
    return Poll.FAILED if code == -1 else Poll.PENDING
