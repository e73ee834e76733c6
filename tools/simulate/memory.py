"""What memory holds, as symbols: an arena's or an engine's bucket is the tuple of its pieces' training steps.

Step 0 is the base checkpoint, -1 is rubbish. Buckets of a replica are numbered; bucket i lies at i * SIZE. A digest
tells program, bucket and content apart, and can be read: the steps stand in it.
"""

from __future__ import annotations

from weightsync.arena import NO_GRANT, ArenaState, Header
from weightsync.digests import BucketDigest
from weightsync.version import Version

SIZE = 4096
RUBBISH = -1
BASE = 0
NO_PIECE = -3

Content = tuple[int, ...]

_digests: dict[tuple[str, int, Content], BucketDigest] = {}


def digest(program: str, bucket: int, content: Content) -> BucketDigest:
    """The digest of a bucket that holds ``content``."""
    key = (program, bucket, content)
    found = _digests.get(key)
    if found is None:
        if len(_digests) > 200_000:
            _digests.clear()
        parts = [*(step + 8 for step in content), 0][:2]
        text = f"{program[:8]}{bucket:08x}" + "".join(f"{part:08x}" for part in parts)
        found = _digests[key] = BucketDigest(offset=bucket * SIZE, nbytes=SIZE, digest=text)
    return found


def number_of(offset: int) -> int:
    """Which bucket lies there."""
    return offset // SIZE


class ArenaFile:
    """An arena in a pod's volume: header and payload; it outlives every process."""

    __slots__ = ("content", "header", "name", "outstanding")

    def __init__(self, name: str, layout: str, program: str, buckets: int, pieces: int) -> None:
        self.name = name
        self.header = Header(ArenaState.EMPTY, buckets * SIZE, layout, program, NO_GRANT, None)
        self.content: list[Content] = [(RUBBISH,) * pieces for _ in range(buckets)]
        self.outstanding = [0] * buckets  # submits that may still read each bucket (a source's arena)

    def put(self, bucket: int, piece: int, step: int) -> None:
        """A piece's bytes come in."""
        old = self.content[bucket]
        self.content[bucket] = (*old[:piece], step, *old[piece + 1 :])

    def fill(self, grant: str) -> None:
        """As weightsync.arena.Arena.fill."""
        self.header = self.header._replace(state=ArenaState.FILLING, grant=grant, version=None)

    def seal(self, grant: str, version: Version) -> None:
        """As weightsync.arena.Arena.seal."""
        self.header = self.header._replace(state=ArenaState.SEALED, grant=grant, version=version)

    def empty(self) -> None:
        """As weightsync.arena.Arena.empty."""
        self.header = self.header._replace(state=ArenaState.EMPTY, grant=NO_GRANT, version=None)
