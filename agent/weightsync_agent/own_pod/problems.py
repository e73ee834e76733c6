"""What an answer of the API server means: a sentence, and whether the same call can succeed later. Pure."""

import json

from weightsync.errors import PeerError, Refused

# Rights and tokens come and go (a role is bound late, a token is renewed), a server restarts or sheds load.
LATER = frozenset({401, 403, 408, 425, 429})


def problem(what: str, status: int, body: bytes) -> PeerError:
    """The error for an answer over 399. what: the call, as it should stand in a message."""
    reason, message = _read(body)
    sentence = f"{what}: the API server answered {status} {reason}: {message}".rstrip(": ")
    if status in {409, 422} and "uid" in message.lower():
        return Refused(f"{sentence} (this agent's pod has been replaced)", reason="PodReplaced", status=status)
    # A conflict without a uid in it is a race with another writer of the pod's status.
    if status == 409 or status in LATER or status >= 500:
        error = PeerError(sentence)
        error.reason = reason or "ApiFailed"
        return error
    hint = " (no such pod, role or custom resource: are the CRDs installed?)" if status == 404 else ""
    return Refused(sentence + hint, reason=reason or "ApiRefused", status=status)


def unreachable(what: str, error: BaseException) -> PeerError:
    """The error for no answer at all."""
    words = str(error) or type(error).__name__
    problem = PeerError(f"{what}: the API server cannot be reached: {words}")
    problem.reason = "ApiUnreachable"
    return problem


def _read(body: bytes) -> tuple[str, str]:
    """Reason and message of a Status object; of anything else its first words."""
    try:
        status = json.loads(body)
        return str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        return "", body[:200].decode(errors="replace")
