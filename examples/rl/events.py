"""What the trainer says: one line of JSON for each event, for whoever watches it."""

import json
import time
from typing import Any


def say(event: str, **fields: Any) -> None:
    """Print an event; unix_ms: milliseconds since 1970."""
    print(json.dumps({"event": event, "unix_ms": time.time_ns() // 1_000_000, **fields}), flush=True)
