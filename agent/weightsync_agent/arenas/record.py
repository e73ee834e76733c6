"""What is written beside a source's arena when it is sealed, so that a restarted agent can offer it to repairs.

The header says Sealed only after the record is on disk; header and record name the same version, or the arena is
nothing. The bytes are compared with the record's digests before they are offered.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from weightsync.announcement import SourceRank
from weightsync.digests import BucketDigest
from weightsync.records import Record
from weightsync.version import Hex32, Version


class SealedRecord(Record):
    """One sealed replica. who: the rank's Publisher; turn: which of the rank's publishes filled it.

    limit, owned: upper bound of a bucket in bytes, and the stage's tensors: what the buckets were cut for.
    """

    who: SourceRank
    program: Hex32
    index: Annotated[int, Field(ge=0)]
    version: Version
    turn: Annotated[int, Field(ge=1)]
    limit: Annotated[int, Field(ge=1)]
    owned: tuple[str, ...]
    buckets: tuple[BucketDigest, ...]

    @model_validator(mode="after")
    def _apart(self) -> Self:
        end = 0
        for bucket in self.buckets:
            if bucket.offset < end:
                raise ValueError(f"buckets must be apart and in order: {bucket.offset} is within the one before")
            end = bucket.offset + bucket.nbytes
        return self


def record_path(arena: Path) -> Path:
    """Where the record of that arena lies."""
    return arena.with_name(f"{arena.name}.sealed")
