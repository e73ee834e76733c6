"""Shared memory, mapped so that the kernel may serve it by huge pages, and asked for them. Linux only; no torch.

With pages of 4 KiB each byte that is copied, sent or digested also pays for the walk to its page (a fifth of xxh3
over memory, 2 to 7 % of the others), every further process that maps them pays 0.2 s a GiB, and each of them is an
entry of its own for whoever pins or registers the memory. A memory volume gives huge pages to nobody who does not ask
(its default is huge=never), and serves them only where a mapping's address and the file's offset agree modulo 2 MiB,
which mmap by itself does not see to.
"""

import ctypes
import errno
import mmap
import os
import weakref

HUGE = 2 << 20  # bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: Linux 5.14
_COLLAPSE = 25  # MADV_COLLAPSE: Linux 6.1
_PRIVATE, _ANONYMOUS, _SHARED, _FIXED, _NORESERVE = 0x02, 0x20, 0x01, 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value
# There are none to give (just now), this kernel or this memory has none, or the volume is full, which whoever needs
# the bytes meets next: small pages are as right, and slower.
_NO_HUGE_PAGES = frozenset({errno.EINVAL, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOSPC, errno.EFAULT})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_shared(descriptor: int, nbytes: int) -> memoryview:
    """The file's first ``nbytes``, readable, writable and shared with whoever else maps them.

    They stay mapped for as long as the view, or any view or array made of it, lives. Raises OSError.
    """
    if nbytes < 1:
        raise OSError(errno.EINVAL, "a mapping has at least one byte")
    # Room for an aligned address is reserved first, so that nothing else can be where the file is put.
    reserved = nbytes + HUGE
    base = _mmap(None, reserved, 0, _PRIVATE | _ANONYMOUS | _NORESERVE, -1)
    address = -(-base // HUGE) * HUGE
    try:
        _mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED | _FIXED, descriptor)
    except OSError:
        _libc.munmap(base, reserved)
        raise
    array = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(array, _libc.munmap, base, reserved)
    return memoryview(array).cast("B")


def _mmap(address: int | None, nbytes: int, protection: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, nbytes, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{nbytes} bytes cannot be mapped: {os.strerror(code)}")
    return int(found)


def address_of(view: memoryview) -> int:
    """Where a writable view's first byte is mapped. The view is not kept."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


def populate(view: memoryview, start: int, stop: int) -> bool:
    """Map bytes [start, stop) of the mapping, page for page, now rather than at their first use.

    False where the kernel does not know how (before 5.14): slower, and as right. The GIL is released meanwhile.
    Raises OSError where they cannot be had.
    """
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    return _advise(address_of(view) + first, stop - first, _POPULATE_WRITE, frozenset({errno.EINVAL}))


def collapse(view: memoryview, start: int, stop: int) -> int:
    """Have the whole huge pages within bytes [start, stop) of a map_shared() be such; what is in them stays.

    Bytes of them: all, or 0 where the kernel refuses (before Linux 6.1, or where memory is short; some may be huge
    all the same). For new memory 0.2 to 1.1 s a GiB, as the kernel has huge pages at hand or makes them, against
    0.6 s for small ones; without the GIL. Nothing for what is huge already.
    """
    first, last = -(-start // HUGE) * HUGE, stop // HUGE * HUGE
    base = address_of(view)
    # A hole does not collapse, so one small page of each is made first.
    made = all(_advise(base + at, mmap.PAGESIZE, _POPULATE_WRITE, _NO_HUGE_PAGES) for at in range(first, last, HUGE))
    huge = made and first < last and _advise(base + first, last - first, _COLLAPSE, _NO_HUGE_PAGES)
    return last - first if huge else 0


def _advise(address: int, nbytes: int, advice: int, refusals: frozenset[int]) -> bool:
    if nbytes < 1 or _libc.madvise(address, nbytes, advice) == 0:
        return True
    code = ctypes.get_errno()
    if code in refusals:
        return False
    raise OSError(code, f"madvise({advice}) of {nbytes} bytes: {os.strerror(code)}")
