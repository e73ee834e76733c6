"""When Python looks for cycles among objects.

Records and plans make none, and there are hundreds of thousands of them: going through all of them again and again
took half the time of a plan for 10,000 engines.
"""

import gc


def look_seldom() -> None:
    """Call at the start."""
    gc.set_threshold(20_000, 20, 50)


def settle() -> None:
    """Call when what stays is there: it is not looked at any more. What is replaced is freed all the same."""
    gc.collect()
    gc.freeze()
