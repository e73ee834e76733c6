"""Where the reference engine answers otherwise than the real one, on purpose, and why. All else must be equal."""

from typing import Any

from tests.contract.api import Json

# (case, field): what the reference engine answers, and the reason.
DELIBERATE: dict[tuple[str, str], tuple[Any, str]] = {
    ("an abort pause on top of one in place", "pause abort"): (
        "200",
        "SGLang 0.5.17 waits for running requests that its paused scheduler never ends. The adapter never asks for "
        "that; a wedged engine would teach a test nothing more",
    ),
    ("an abort pause on top of one in place", "continue"): ("200", "as above: the pause holds the lock for ever"),
}

# What newer releases do otherwise, as the reference engine does it: read in 0.5.23's source, not yet seen.
NEWER: dict[tuple[str, str], tuple[Any, str]] = {
    ("what it has, and what it has not", "sessions"): (True, "/begin_weight_update exists"),
    ("what it has, and what it has not", "flush with waiting"): (True, "since 0.5.21"),
    ("what it has, and what it has not", "GET /begin_weight_update"): (
        {"the api key": 405, "the admin key": 401},
        "it is for POST: a GET counts as an ordinary call",
    ),
    ("what it has, and what it has not", "POST /begin_weight_update"): (
        {"the api key": 401, "the admin key": 200},
        "a control call",
    ),
    ("what it has, and what it has not", "POST /end_weight_update"): (
        {"the api key": 401, "the admin key": 200},
        "a control call",
    ),
    ("pause retract with requests in flight", "flush while paused"): (
        {"http": 200, "body": "text"},
        "waiting requests do not forbid it while paused",
    ),
    ("the engine's answer to the hook's call", "without a request for the hook"): (
        {"http": 400, "success": False, "message": "str"},
        "no weights call outside of a session",
    ),
}


def differences(case: str, real: Json, ours: Json, known: dict[tuple[str, str], tuple[Any, str]]) -> list[str]:
    """Sentences about every field that is neither equal nor as ``known`` says."""
    found = []
    for field in sorted(real.keys() | ours.keys()):
        expected = known[(case, field)][0] if (case, field) in known else real.get(field)
        if ours.get(field) != expected:
            found.append(f"{case}: {field}: expected {expected}, found {ours.get(field)}")
    return found
