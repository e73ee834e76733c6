"""How long to wait before the next try. Pure."""

FIRST = 0.2  # seconds
LONGEST = 10.0
REJOIN_FIRST = 1.0  # seconds
REJOIN_LONGEST = 300.0


def backoff(failures: int) -> float:
    """Seconds until the next try after so many failures (>= 1): doubling from FIRST, at most LONGEST."""
    return _doubled(FIRST, failures, LONGEST)


def rejoin(failures: int) -> float:
    """Seconds from so many failures (>= 1) until a publish, which the engine may then delay, takes it in again."""
    return _doubled(REJOIN_FIRST, failures, REJOIN_LONGEST)


def _doubled(first: float, failures: int, longest: float) -> float:
    return float(min(longest, first * 2 ** min(max(failures, 1) - 1, 16)))
