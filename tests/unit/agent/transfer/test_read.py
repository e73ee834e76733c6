"""Reading memory back: digests over runs and padding, in a buffer of bounded size."""

import ctypes

import pytest
import xxhash

from weightsync.errors import TransferError
from weightsync_agent.transfer.read import AT_ONCE, Reader
from weightsync_agent.transfer.runs import Placed


class Memory:
    """A peer's memory, and Mooncake's calls on it. fail: the next read fails after its bytes came."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.registered: list[int] = []
        self.calls: list[int] = []
        self.fail = False

    def batch_register_memory(self, addresses: list[int], lengths: list[int], /) -> int:
        self.registered += lengths
        return 0

    def batch_transfer_sync_read(
        self, session: str, buffers: list[int], addresses: list[int], lengths: list[int], /
    ) -> int:
        self.calls.append(len(lengths))
        for buffer, address, nbytes in zip(buffers, addresses, lengths, strict=True):
            ctypes.memmove(buffer, self.content[address : address + nbytes], nbytes)
        return -1 if self.fail else 0


CONTENT = bytes(range(1, 201))
RUNS = [Placed(0, 50, 100), Placed(64, 50, 0)]  # 14 bytes of padding between them
PAYLOAD = CONTENT[100:150] + bytes(14) + CONTENT[:50]


@pytest.mark.parametrize("size", [4, 17, 4096])
@pytest.mark.parametrize("bucket", [(0, 114), (0, 50), (48, 20), (64, 50), (63, 1)])
def test_a_digest_is_that_of_the_bytes_with_zeros_for_padding(size: int, bucket: tuple[int, int]) -> None:
    """However small the buffer; twice the same, though the buffer holds what was read before."""
    reader = Reader(Memory(CONTENT), size)
    expected = xxhash.xxh3_128_hexdigest(PAYLOAD[bucket[0] : sum(bucket)])
    assert reader.digest("s", [(0, 114), bucket, bucket], RUNS)[1:] == [expected, expected]


def test_the_buffer_is_made_once() -> None:
    """And is as large as it was said to be."""
    memory = Memory(CONTENT)
    reader = Reader(memory, 32)
    for _ in range(3):
        reader.digest("s", [(0, 114)], RUNS)
    assert memory.registered == [32]


def test_many_runs_go_in_several_calls() -> None:
    """Far more at once can break the path to a peer for good."""
    memory = Memory(bytes(3 * AT_ONCE))
    runs = [Placed(2 * i, 1, i) for i in range(AT_ONCE + 1)]
    Reader(memory, 4096).digest("s", [(0, 2 * AT_ONCE + 2)], runs)
    assert memory.calls == [AT_ONCE, 1]


def test_after_a_failed_read_nothing_is_digested_any_more() -> None:
    """Its bytes may come late, into the buffer."""
    memory = Memory(CONTENT)
    reader = Reader(memory, 4096)
    memory.fail = True
    with pytest.raises(TransferError, match="reading 100 bytes back"):
        reader.digest("s", [(0, 114)], RUNS)
    memory.fail = False
    with pytest.raises(TransferError, match="start another"):
        reader.digest("s", [(0, 114)], RUNS)
