"""How long to wait before the next try. Pure."""

FIRST = 0.2  # seconds
LONGEST = 10.0


def backoff(failures: int) -> float:
    """Seconds until the next try after so many failures (>= 1): doubling from FIRST, at most LONGEST."""
    return float(min(LONGEST, FIRST * 2 ** min(max(failures, 1) - 1, 16)))
