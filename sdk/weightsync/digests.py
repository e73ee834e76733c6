"""What is hashed, and in which order. Pure.

bucket digest   xxh3-128 of the bucket's bytes
program root    blake2b-256 over each bucket of one replica: offset, bytes (8 bytes each, big endian), digest
root            blake2b-256 over lineage, number and, by rising program digest, program digest and program root
"""

import hashlib
from collections.abc import Iterable, Mapping

import xxhash

from weightsync.bounds import Offset, Size
from weightsync.records import Record
from weightsync.version import Hex32


class BucketDigest(Record):
    """A bucket of the payload, and the digest of its bytes."""

    offset: Offset
    nbytes: Size
    digest: Hex32


def digest_bytes(data: memoryview | bytes) -> str:
    """xxh3-128 in hex. Releases the GIL: call it from threads for large buckets."""
    return xxhash.xxh3_128_hexdigest(data)


def program_root(buckets: Iterable[BucketDigest]) -> str:
    """Root of one replica over its buckets, in the order of their offsets."""
    total = hashlib.blake2b(digest_size=32)
    for bucket in sorted(buckets, key=lambda b: b.offset):
        total.update(bucket.offset.to_bytes(8, "big") + bucket.nbytes.to_bytes(8, "big"))
        total.update(bytes.fromhex(bucket.digest))
    return total.hexdigest()


def version_root(lineage: str, number: int, programs: Mapping[str, str]) -> str:
    """Root of a version. programs: program digest -> program root."""
    total = hashlib.blake2b(digest_size=32)
    total.update(bytes.fromhex(lineage) + number.to_bytes(8, "big"))
    for digest in sorted(programs):
        total.update(bytes.fromhex(digest) + bytes.fromhex(programs[digest]))
    return total.hexdigest()
