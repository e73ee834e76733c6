"""When Python looks for cycles among objects.

Records and plans make none, and there are hundreds of thousands of them: going through all of them again and again
took half the time of a plan for 10,000 engines.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def look_seldom() -> None:
    """Call at the start."""
    gc.set_threshold(20_000, 20, 50)


def settle() -> None:
    """Call when what stays is there: it is not looked at any more. What is replaced is freed all the same."""
    gc.collect()
    gc.freeze()


@contextmanager
def none_looked_for() -> Iterator[None]:
    """While a plan is made, without waiting for anything: all that is made then is either kept or freed at once."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
