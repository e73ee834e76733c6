"""What an agent says of itself in its pod's annotation. Small: tensor tables never enter the API. Pure."""

from typing import Annotated, Literal

from pydantic import Field

from weightsync.bounds import LARGEST, MOST_RANKS, Rank, Ranks
from weightsync.records import WireRecord
from weightsync.version import Hex32

Mode = Literal["Staged", "Direct"]  # writes land in arenas beside the engine, or in its live parameters

DeviceName = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class TargetRank(WireRecord):
    """One engine rank of the pod: what it holds, and where its replica's program can be fetched."""

    rank: Rank
    layout: Hex32
    program: Hex32


class SourceRank(WireRecord):
    """One trainer rank of the pod, as its Publisher said when it connected."""

    rank: Rank
    world_size: Ranks
    stage: Rank = 0
    stages: Ranks = 1
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # one life of that rank's Publisher


class Announcement(WireRecord):
    """Value of the annotation weightsync.io/agent, as JSON.

    address: host:port of the agent's HTTP API; incarnation: one life of the engine's process (empty for a
    trainer, or while the engine does not run); ready: a source has its Publishers, a target its engine's token; mode:
    where what is written to this engine lands; devices: RDMA devices that this pod can use; no_device: why it has
    none, in a sentence.
    Where a number is 0 or a digest is empty, the agent does not know it, or is too old to say.
    """

    format: Literal[1] = 1
    address: Annotated[str, Field(max_length=256)]
    incarnation: Annotated[str, Field(max_length=128)] = ""
    ready: bool = False
    mode: Mode = "Staged"
    targets: Annotated[tuple[TargetRank, ...], Field(max_length=64)] = ()
    sources: Annotated[tuple[SourceRank, ...], Field(max_length=64)] = ()
    engine_ranks: Annotated[int, Field(ge=0, le=MOST_RANKS)] = 0  # of the whole engine, other pods' included
    checkpoint: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""  # names, dtypes, shapes its programs read
    replica_bytes: Annotated[int, Field(ge=0, le=LARGEST)] = 0  # of the largest of its ranks' layouts
    room_bytes: Annotated[int, Field(ge=0, le=LARGEST)] = 0  # for replicas in a source's pod, one arena of each
    devices: Annotated[tuple[DeviceName, ...], Field(max_length=64)] = ()
    no_device: Annotated[str, Field(max_length=512)] = ""
    refused: Annotated[str, Field(max_length=1024)] = ""  # why this engine cannot be fed, in a sentence
