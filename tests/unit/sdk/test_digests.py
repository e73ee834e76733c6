"""What is hashed, and that every bit of it counts."""

import hashlib

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from weightsync.digests import BucketDigest, digest_bytes, program_root, version_root

HEX32 = st.binary(min_size=16, max_size=16).map(bytes.hex)
BUCKETS = st.lists(
    st.builds(BucketDigest, offset=st.integers(0, 2**40), nbytes=st.integers(1, 2**30), digest=HEX32),
    min_size=1,
    max_size=5,
    unique_by=lambda bucket: bucket.offset,
)


def test_the_published_recipe() -> None:
    """Each digest by the libraries themselves: other implementations must be able to follow the description."""
    assert digest_bytes(b"abc") == xxhash.xxh3_128(b"abc").hexdigest()
    bucket = BucketDigest(offset=256, nbytes=4096, digest="0f" * 16)
    root = hashlib.blake2b((256).to_bytes(8, "big") + (4096).to_bytes(8, "big") + b"\x0f" * 16, digest_size=32)
    assert program_root([bucket]) == root.hexdigest()
    lineage, number = "00000000000000aa", 3
    whole = bytes.fromhex(lineage) + number.to_bytes(8, "big")
    whole += bytes.fromhex("11" * 16) + b"\x01" * 32 + bytes.fromhex("22" * 16) + b"\x02" * 32
    programs = {"22" * 16: "02" * 32, "11" * 16: "01" * 32}
    assert version_root(lineage, number, programs) == hashlib.blake2b(whole, digest_size=32).hexdigest()


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_flipped_bit_is_seen(data: bytes, draw: st.DataObject) -> None:
    """Of a bucket's bytes; and a view is hashed as bytes are."""
    at = draw.draw(st.integers(0, len(data) * 8 - 1))
    flipped = bytearray(data)
    flipped[at // 8] ^= 1 << at % 8
    assert digest_bytes(memoryview(data)) == digest_bytes(data)
    assert digest_bytes(memoryview(flipped)) != digest_bytes(data)


@given(BUCKETS, st.randoms())
def test_a_root_does_not_depend_on_the_order_of_buckets(buckets: list[BucketDigest], order: object) -> None:
    """They are sorted by offset: sources finish them in any order."""
    shuffled = list(buckets)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert program_root(shuffled) == program_root(buckets)


@given(BUCKETS, st.data())
def test_a_root_sees_every_field(buckets: list[BucketDigest], data: st.DataObject) -> None:
    """Another offset, length or digest of any bucket, or a bucket less, is another root."""
    at = data.draw(st.integers(0, len(buckets) - 1))
    bucket = buckets[at]
    for changed in (
        bucket.model_copy(update={"offset": bucket.offset + 2**41}),
        bucket.model_copy(update={"nbytes": bucket.nbytes + 1}),
        bucket.model_copy(update={"digest": f"{int(bucket.digest, 16) ^ 1:032x}"}),
    ):
        assert program_root([*buckets[:at], changed, *buckets[at + 1 :]]) != program_root(buckets)
    assert program_root(buckets[:at] + buckets[at + 1 :]) != program_root(buckets)
