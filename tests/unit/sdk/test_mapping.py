"""Files mapped so that the kernel may serve them by huge pages."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weightsync.mapping import HUGE, address_of, collapse, map_shared, populate


@pytest.fixture
def memory_file() -> Iterator[int]:
    """An empty file in memory, of three huge pages and a bit."""
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 3 * HUGE + 4096)
    yield descriptor
    os.close(descriptor)


def maps() -> str:
    """What this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="ascii")


def test_two_mappings_of_a_file_are_the_same_memory(memory_file: int) -> None:
    """What one writes the other reads, and the file too."""
    one, other = map_shared(memory_file, 3 * HUGE), map_shared(memory_file, 4096)
    one[5] = 7
    assert (other[5], os.pread(memory_file, 6, 0)) == (7, b"\0\0\0\0\0\7")
    assert (len(one), len(other)) == (3 * HUGE, 4096)


@pytest.mark.parametrize("nbytes", [1, 4096, HUGE, 3 * HUGE + 4096])
def test_address_and_offset_agree_modulo_a_huge_page(memory_file: int, nbytes: int) -> None:
    """Else no kernel maps a huge page there."""
    assert address_of(map_shared(memory_file, nbytes)) % HUGE == 0


def test_memory_stays_mapped_for_whoever_still_looks_at_it(memory_file: int) -> None:
    """And is given back with the last of them: with the reserve around it."""
    view = map_shared(memory_file, HUGE)
    address = address_of(view)
    array = np.frombuffer(view[4096:], dtype=np.uint8)
    view[4096] = 9
    del view
    assert array[0] == 9
    assert f"{address:x}-" in maps()
    before = maps().count("\n")
    del array
    assert f"{address:x}-" not in maps()
    assert maps().count("\n") <= before - 1


def test_what_is_in_them_stays_when_small_pages_become_huge(memory_file: int) -> None:
    """Only whole huge pages within the range are asked for: the rest of the file stays a hole."""
    view = map_shared(memory_file, 3 * HUGE + 4096)
    view[HUGE + 3] = 5
    got = collapse(view, 4096, 2 * HUGE + 4096)  # one whole huge page, the second
    assert view[HUGE + 3] == 5
    assert bytes(view[HUGE + 4 : HUGE + 1000]) == bytes(996)
    if got == 0:
        pytest.skip("this kernel gives no huge pages to memory files")
    assert got == HUGE
    assert os.fstat(memory_file).st_blocks * 512 == HUGE


@pytest.mark.parametrize(("start", "stop"), [(0, HUGE - 1), (1, HUGE), (1, 2 * HUGE - 1), (4096, 4096)])
def test_a_range_without_a_whole_huge_page_is_left_as_it_is(memory_file: int, start: int, stop: int) -> None:
    """No byte of memory is taken beyond what is asked for."""
    assert collapse(map_shared(memory_file, 3 * HUGE), start, stop) == 0
    assert os.fstat(memory_file).st_blocks == 0


def test_pages_are_there_once_populated(memory_file: int) -> None:
    """From the page of the first byte to that of the last."""
    view = map_shared(memory_file, HUGE)
    assert populate(view, 4097, 3 * 4096 + 1)
    assert os.fstat(memory_file).st_blocks * 512 == 3 * 4096


def test_what_cannot_be_mapped_is_said() -> None:
    """A descriptor that is not open, and no byte at all; nothing stays reserved."""
    before = maps().count("\n")
    with pytest.raises(OSError, match="cannot be mapped: Bad file descriptor"):
        map_shared(10_000, 4096)
    with pytest.raises(OSError, match="at least one byte"):
        map_shared(0, 0)
    assert maps().count("\n") <= before
