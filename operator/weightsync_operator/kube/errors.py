"""From an answer of the API server to an error with a reason, and whether a later try can succeed. Pure."""

import json
from http import HTTPStatus
from typing import Any

from weightsync.errors import WeightSyncError


class KubeError(WeightSyncError):
    """The API server refused a call or could not be reached."""

    reason = "KubeRefused"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Conflict(KubeError):
    """The object changed since it was read: look again, plan again."""

    reason = "KubeConflict"
    retryable = True


class AlreadyExists(KubeError):
    """An object of that name is there."""

    reason = "KubeAlreadyExists"


class NotFound(KubeError):
    """The object, or its kind, is not there."""

    reason = "KubeNotFound"


class Forbidden(KubeError):
    """The operator's role does not allow it."""

    reason = "KubeForbidden"


class Unavailable(KubeError):
    """Nobody answered, or not now."""

    reason = "KubeUnavailable"
    retryable = True


class Rewound(WeightSyncError):
    """The API server's storage was restored from a backup: what is known is of a future that never came."""

    reason = "KubeRewound"


def error_of(what: str, status: int, body: bytes) -> KubeError:
    """The error for a status over 399. what: the call, for the message."""
    answer = _parse(body)
    message = f"{what}: {status} {answer.get('message') or body[:300].decode(errors='replace')}"
    if status == HTTPStatus.CONFLICT and answer.get("reason") == "AlreadyExists":
        return AlreadyExists(message, status)
    kinds: dict[int, type[KubeError]] = {
        HTTPStatus.NOT_FOUND: NotFound,
        HTTPStatus.CONFLICT: Conflict,
        HTTPStatus.UNAUTHORIZED: Unavailable,  # a token that is being rotated
        HTTPStatus.FORBIDDEN: Forbidden,
        HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
    }
    # Somebody's webhook that does not answer is told as an error of the server's own, for as long as it is away.
    later = status >= HTTPStatus.INTERNAL_SERVER_ERROR and "failed calling webhook" not in message
    return kinds.get(status, Unavailable if later else KubeError)(message, status)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
