"""EngineError with the reason that machines read. Pure.

EngineUnreachable, EngineTimeout   no answer                     EngineUnauthorized   the key is wrong or missing
EngineStarting                     it is warming up: not to be paused yet
EngineRefusedCall                  an answer over 399            EngineRefused        it must never be written to
EngineNotPaused                    it was resumed, not paused
FlushRefused                       requests still run or wait    HookSilent           no result, or another call's
any other                          the hook's own reason (weightsync_hook.py)
"""

from weightsync.errors import EngineError

# Reasons of the hook with which the same request can never succeed.
FINAL = frozenset(
    {
        "ArenaInvalid",
        "ArenaMissing",
        "ConstantChanged",
        "EngineRestarted",
        "GrantMismatch",
        "LayoutMismatch",
        "NotContiguous",
        "NotSealed",
        "ParameterUnknown",
        "ProgramInvalid",
        "RootMismatch",
    }
)


def engine_error(reason: str, sentence: str, *, retryable: bool | None = None) -> EngineError:
    """retryable: by the reason where it is not given."""
    error = EngineError(sentence)
    error.reason = reason
    error.retryable = reason not in FINAL if retryable is None else retryable
    return error
