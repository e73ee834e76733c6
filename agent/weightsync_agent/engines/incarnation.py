"""Which life of the engine's processes this is. Pure.

Two signs tell of a new one: another pid or start time in any rank (only ``describe`` sees that), or a weight
version that nobody set (``/model_info`` shows it each second: a fresh SGLang says "default").
"""

import hashlib
from collections.abc import Callable, Iterable

from weightsync_agent.engines.base import Description


def engine_incarnation(ranks: Iterable[Description], pod_of: Callable[[int], str] = lambda rank: "") -> str:
    """One life of the whole engine: 8 bytes in hex over every rank's pid and start time, by rising rank.

    pod_of: the uid of a rank's pod, "" in the leader's own: pids and clocks of two pods may be alike.
    """
    lines = [
        f"{d.rank}:{f'{pod}:' if (pod := pod_of(d.rank)) else ''}{d.incarnation}\n"
        for d in sorted(ranks, key=lambda d: d.rank)
    ]
    return hashlib.blake2b("".join(lines).encode(), digest_size=8).hexdigest()


def is_new_life(left_with: str, found: str) -> bool:
    """The engine names another version than it was left with, so its process was replaced (or somebody else wrote).

    left_with: what the agent last set; "" while it has set none, then every name fits.
    """
    return left_with not in ("", found)
