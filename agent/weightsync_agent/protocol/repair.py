"""How long to wait before the next try. Pure."""

FIRST = 0.2  # seconds
LONGEST = 10.0
REJOIN_FIRST = 1.0  # seconds
REJOIN_LONGEST = 300.0


def backoff(failures: int) -> float:
    """Seconds until the next try after so many failures (>= 1): doubling from FIRST, at most LONGEST."""
    return float(min(LONGEST, FIRST * 2 ** min(max(failures, 1) - 1, 16)))


def rejoin(failures: int) -> float:
    """Seconds from that failure (>= 1) until a publish takes the engine in again, which it may hold: doubling."""
    return float(min(REJOIN_LONGEST, REJOIN_FIRST * 2 ** min(max(failures, 1) - 1, 16)))
