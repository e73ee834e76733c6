"""What a version is: (lineage, number, root). Pure."""

from typing import Annotated

from pydantic import Field

from weightsync.bounds import Number
from weightsync.records import Record

Hex16 = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # 8 bytes
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # 16 bytes
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # 32 bytes


class Version(Record):
    """One version of the weights.

    lineage: nonce of the trainer's life (8 bytes, hex); number: rises within it, from 1;
    root: digest of everything that the version is (digests.py).
    """

    lineage: Hex16
    number: Number
    root: Hex64

    @property
    def name(self) -> str:
        """What engines report as their weight version: ``<lineage>.<number>``."""
        return version_name(self.lineage, self.number)


def version_name(lineage: str, number: int) -> str:
    """The string that engines report while they hold that version."""
    return f"{lineage}.{number}"


def torn_name(name: str) -> str:
    """The string that engines report between the first and the last byte of an apply."""
    return f"torn:{name}"
