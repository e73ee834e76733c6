"""Numbers as they may come from outside: within what headers, digests and lists are made for. Pure.

Python's integers have no end: a rank of a thousand digits, or a world of 10^12 ranks, is refused where it is read and
not where it would be packed, multiplied or counted to.
"""

from typing import Annotated

from pydantic import FailFast, Field

LARGEST = 2**63 - 1  # what a header's and a digest's eight bytes hold, and what the API server's integers do
MOST_RANKS = 2**16

Rank = Annotated[int, Field(ge=0, le=MOST_RANKS - 1)]  # also a stage
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]  # how many there are; also stages
Offset = Annotated[int, Field(ge=0, le=LARGEST)]  # bytes; also elements along a dimension
Size = Annotated[int, Field(ge=1, le=LARGEST)]  # bytes
Number = Annotated[int, Field(ge=1, le=LARGEST)]  # of a version, of a publish
Term = Annotated[int, Field(ge=0, le=LARGEST)]  # also a generation
MANY = FailFast()  # of a list that may be long: one wrong item is enough, a million errors would fill the memory
DIMENSIONS = 16  # of a tensor, at most
PROGRAM = (
    32 * 2**20
)  # bytes of a copy program: 138,000 tensors, each written out by itself, have 28 MB; as series 0.15
