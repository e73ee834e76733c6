"""How a write ends that did not land: what is said of it, and whether its bytes can still land (not quiet).

On RDMA a process's queue pairs die with it, and a device reads no memory that was unregistered. On TCP bytes may lie
in sockets, so that only the end of the target's process is certain.
"""

from weightsync.errors import TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.child import DIED, STALLED
from weightsync_agent.transfer.frames import Message
from weightsync_agent.transfer.probe import gone
from weightsync_agent.transfer.write import DROPPED, HALTED

STUCK = "WorkerStuck"
STOPPED = "Stopped"
# Other engines wait for a route that took a stall timeout already. Who cannot be asked that soon counts as not gone:
# then the target fences, which costs it a worker and what was written so far.
GONE_SECONDS = 0.25


def held(worker: str, stuck: str, fenced: str) -> str:
    """Why the worker takes no write. stuck, fenced: the session because of which, or empty."""
    why = f"is held in its first contact with {stuck or 'a peer'}"
    if fenced:
        why = f"gave up its memory, since a write to {fenced} stalled"
    return f"worker {worker} {why}: start another"


async def failure(message: Message, to: Region, *, rdma: bool, silent: bool, halted: str) -> TransferError | None:
    """The error that a message of the child means for a write; None where it goes on, or has landed.

    silent: the source's memory has been taken from the device; halted: why the worker would halt its writes.
    """
    match message:
        case {"event": "dead", "message": reason}:
            return TransferError(reason, reason=DIED, quiet=rdma or await gone(to.session, GONE_SECONDS))
        case {"event": "held"}:
            return TransferError(f"the first contact with {to.session} has not ended", reason=STALLED)
        case {"event": "end", "failed": failed, "lost": lost} if failed:
            quiet = lost == 0 or silent or await gone(to.session, GONE_SECONDS)
            if failed == HALTED:
                return TransferError(halted, reason=STUCK, quiet=quiet)
            if failed == DROPPED:
                return TransferError(f"a write to {to.session} was stopped", reason=STOPPED, quiet=quiet)
            return TransferError(f"a write to {to.session} failed: {failed}", quiet=quiet)
    return None
