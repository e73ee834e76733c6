"""How much is tried: the same few hundred examples at each run, more and others where WEIGHTSYNC_FUZZ is a factor."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("WEIGHTSYNC_FUZZ", "1"))


def examples(count: int) -> Callable[[Any], Any]:
    """A decorator for a test: so many examples, always the same ones unless more were asked for.

    Nothing is shrunk by time or kept in a database: a failure is shown as it was found, at every run alike.
    """
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        database=None,
        deadline=None,
        suppress_health_check=checks,
    )
