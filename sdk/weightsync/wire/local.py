"""Trainer to its own agent, over the Unix socket of the shared volume.

POST /v1/connect                     a Publisher begins its life
POST /v1/publishes                   publish() was called; answers which arenas to fill
POST /v1/publishes/{id}/names        the names it saw; answers the buckets of each arena
POST /v1/publishes/{id}/filled       buckets that are full: they are written from now on
POST /v1/publishes/{id}/copied       everything is full: the tensors may change again
POST /v1/publishes/{id}/failed       the trainer's input raised or was wrong; it was exhausted all the same
GET  /v1/publishes/{id}/outcome      long poll: ?wait=SECONDS bounds it; not ended by then: answered as it stands

A Publisher says connect again on each new connection, with the nonce that it had, and sends a request again where a
kept connection turns out to be closed: every request may come twice. Paths of programs and arenas are relative to
the volume, or absolute.
"""

from typing import Annotated

from pydantic import Field

from weightsync.bounds import MANY, Number, Offset, Rank, Ranks
from weightsync.buckets import Bucket
from weightsync.records import WireRecord
from weightsync.version import Hex16, Hex32


class ConnectRequest(WireRecord):
    """One rank's Publisher. nonce: new for each life of it."""

    rank: Rank
    world_size: Ranks
    stage: Rank = 0
    stages: Ranks = 1
    nonce: Hex16


class ConnectAnswer(WireRecord):
    """The agent took the rank in."""

    uid: str
    version: str


class BeginRequest(WireRecord):
    """publish() number ``sequence`` of this Publisher's life."""

    rank: Rank
    nonce: Hex16
    sequence: Number
    label: Annotated[str, Field(max_length=256)] = ""


class Replica(WireRecord):
    """An arena to fill. buckets is empty until the names of the stage are known (its first publish).

    owned: the tensors to copy; empty with empty buckets means: all that the program knows.
    """

    program: Hex32
    program_path: str
    arena_path: str
    buckets: Annotated[tuple[Bucket, ...], MANY] = ()
    owned: Annotated[tuple[str, ...], MANY] = ()


class BeginAnswer(WireRecord):
    """id names this publish from here on; no replicas: nobody to feed.

    version: the name that engines will report, ``<lineage>.<number>``; empty where it is not known yet.
    """

    id: str
    version: str = ""
    replicas: tuple[Replica, ...] = ()


class NamesReport(WireRecord):
    """All checkpoint names that this rank's publish yielded."""

    names: Annotated[tuple[str, ...], MANY]


class NamesReply(WireRecord):
    """Now with buckets and owned names."""

    replicas: tuple[Replica, ...]


class Filled(WireRecord):
    """Offsets of buckets of one program's arena that are full.

    digests: beside each offset the bucket's digest, where the Publisher took it while copying, else "".
    """

    program: Hex32
    offsets: Annotated[tuple[Offset, ...], MANY]
    digests: Annotated[tuple[Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")], ...], MANY] = ()


class Copied(WireRecord):
    """The whole publish is in the arenas."""

    seconds: float = 0.0


class PublishFailure(WireRecord):
    """Why this rank's publish cannot be used."""

    reason: str
    message: Annotated[str, Field(max_length=4096)]
