"""WeightSync: peer-to-peer weight synchronisation from trainers to rollout engines.

The public names, loaded when they are first used: importing the package loads no torch and no Kubernetes client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightsync.errors import (
        AgentUnavailable,
        CoverageError,
        EngineError,
        InputError,
        LayoutMismatch,
        PeerError,
        ProtocolError,
        PublishFailed,
        Refused,
        TransferError,
        WeightSyncError,
    )
    from weightsync.publisher.handle import PublishHandle
    from weightsync.publisher.outcome import Outcome
    from weightsync.publisher.publisher import Publisher
    from weightsync.version import Version
    from weightsync.wire.v1 import EngineOutcome

__all__ = [
    "AgentUnavailable",
    "CoverageError",
    "EngineError",
    "EngineOutcome",
    "InputError",
    "LayoutMismatch",
    "Outcome",
    "PeerError",
    "ProtocolError",
    "PublishFailed",
    "PublishHandle",
    "Publisher",
    "Refused",
    "TransferError",
    "Version",
    "WeightSyncError",
]

_MODULES = {
    "EngineOutcome": "weightsync.wire.v1",
    "Outcome": "weightsync.publisher.outcome",
    "PublishHandle": "weightsync.publisher.handle",
    "Publisher": "weightsync.publisher.publisher",
    "Version": "weightsync.version",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES.get(name, "weightsync.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
