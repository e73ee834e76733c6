"""Compares an engine's parameters with the version that it serves, for who asks: nothing of either changes."""

import structlog

from weightsync.errors import EngineError, Refused
from weightsync.version import Version
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.base import EngineAdapter

log = structlog.get_logger(__name__)


async def serves(ranks: EngineRanks, adapter: EngineAdapter, version: Version) -> bool:
    """Whether they are it, byte for byte, in every rank; while nobody commits to the engine.

    Raises Refused where a rank's replica is being filled anew, EngineError where the engine cannot say.
    """
    if ranks.direct:
        return await _as_written(ranks, adapter)
    return await _as_sealed(ranks, adapter, version)


async def _as_sealed(ranks: EngineRanks, adapter: EngineAdapter, version: Version) -> bool:
    grants = {rank: remote.grant_of(version) for rank, remote in ranks.remote.items()}
    held = {rank: target.holding(version) for rank, target in ranks.targets.items()}
    grants |= {rank: arena.arena.header.grant if arena is not None else "" for rank, arena in held.items()}
    lacking = next((rank for rank, grant in grants.items() if not grant), None)
    if lacking is not None:
        raise Refused(f"rank {lacking}'s arena is being filled anew", reason="Busy", status=503)
    async with ranks.kept(grants.items()), ranks.holding(version, grants.items()):
        refs = [ranks.ref(rank, grant, version.root) for rank, grant in sorted(grants.items())]
        async with adapter.standstill():
            found = await adapter.readback(refs)
    return all(bool(rank.equal) for rank in found)


async def _as_written(ranks: EngineRanks, adapter: EngineAdapter) -> bool:
    """Of an engine in Direct mode there is no replica: what was written is known by its digests."""
    async with adapter.standstill():
        for rank in ranks.direct.values():
            try:
                await rank.read_back()
            except EngineError as error:
                log.warning("the parameters are not what was written", why=str(error))
                return False
    return True
