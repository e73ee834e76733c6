"""Pairing the ranks' publishes into versions. Pure.

Every trainer rank calls publish() once a step; the n-th calls of all ranks are one version. The lineage is a
digest of all ranks' nonces, so that one rank restarting alone begins a new lineage for all, and the same lives
always give the same lineage, whoever coordinates.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from weightsync.errors import Refused
from weightsync.wire.v1 import PublishRequest


@dataclass(frozen=True)
class Gathered:
    """All ranks are there: one version."""

    lineage: str
    number: int
    label: str
    ranks: Mapping[int, PublishRequest]


def lineage_of(nonces: Mapping[int, str]) -> str:
    """8 bytes of blake2b over (rank, nonce) by rank, in hex."""
    total = hashlib.blake2b(digest_size=8)
    for rank in sorted(nonces):
        total.update(rank.to_bytes(4, "big") + bytes.fromhex(nonces[rank]))
    return total.hexdigest()


@dataclass
class Gather:
    """Publishes that wait for the other ranks'. ``number`` is the last one given in ``lineage``."""

    lineage: str = ""
    number: int = 0
    waiting: dict[int, PublishRequest] = field(default_factory=dict)

    def add(self, request: PublishRequest) -> tuple[Gathered | None, PublishRequest | None]:
        """Take a rank's publish; returns the version if it was the last to come, and a publish that it replaced.

        A rank that restarted replaces what its former life left waiting. Raises Refused where the ranks do not
        agree on the size of their world.
        """
        for other in self.waiting.values():
            if other.world_size != request.world_size or other.stages != request.stages:
                raise Refused(
                    f"rank {request.writer.rank} says {request.world_size} ranks in {request.stages} stages, rank "
                    f"{other.writer.rank} says {other.world_size} in {other.stages}: give every Publisher the same",
                    reason="WorldsDiffer",
                )
        replaced = self.waiting.get(request.writer.rank)
        self.waiting[request.writer.rank] = request
        if len(self.waiting) < request.world_size:
            return None, replaced
        ranks = dict(sorted(self.waiting.items()))
        self.waiting = {}
        lineage = lineage_of({rank: r.nonce for rank, r in ranks.items()})
        self.number = self.number + 1 if lineage == self.lineage else 1
        self.lineage = lineage
        label = next((r.label for r in ranks.values() if r.label), "")
        return Gathered(lineage, self.number, label, ranks), replaced

    def missing(self) -> list[int]:
        """Ranks whose publish is awaited while others wait."""
        if not self.waiting:
            return []
        size = next(iter(self.waiting.values())).world_size
        return [rank for rank in range(size) if rank not in self.waiting]
