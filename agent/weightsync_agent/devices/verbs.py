"""What only libibverbs and this process's limits tell: whether a device can be opened here, and memory locked."""

import ctypes
import ctypes.util
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

from weightsync_agent.devices.records import Device

DEV = Path("/dev/infiniband")
_CAP_IPC_LOCK = 14
_MAX_MR_SIZE_AT = 80  # of struct ibv_device_attr: behind fw_ver[64], node_guid and sys_image_guid
_ATTRIBUTES_BYTES = 1024  # the struct has 232; newer ones may be longer


@dataclass(frozen=True)
class Lockable:
    """How much memory this process may lock. nbytes: None for any amount."""

    nbytes: int | None

    @classmethod
    def of_this_process(cls) -> "Lockable":
        """The memlock limit, which CAP_IPC_LOCK lifts."""
        if _capable(Path("/proc/self/status").read_text(encoding="ascii"), _CAP_IPC_LOCK):
            return cls(None)
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return cls(None if soft == resource.RLIM_INFINITY else soft)

    def covers(self, nbytes: int) -> bool:
        """Whether an arena of that size can be registered."""
        return self.nbytes is None or self.nbytes >= nbytes


def _capable(status: str, number: int) -> bool:
    """Whether a capability is effective. status: a /proc/<pid>/status."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> number & 1)
    return False


def opened(devices: tuple[Device, ...], dev: Path = DEV) -> tuple[Device, ...]:
    """Each device, with max_mr_bytes, or with the problem that kept this pod from opening it."""
    library = _library()
    return tuple(_opened(device, dev, library) for device in devices)


def _library() -> "ctypes.CDLL | None":
    name = ctypes.util.find_library("ibverbs") or "libibverbs.so.1"
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError:
        return None
    pointer = ctypes.c_void_p
    library.ibv_get_device_list.restype = ctypes.POINTER(pointer)
    library.ibv_get_device_list.argtypes = [ctypes.POINTER(ctypes.c_int)]
    library.ibv_free_device_list.argtypes = [ctypes.POINTER(pointer)]
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_get_device_name.argtypes = [pointer]
    library.ibv_open_device.restype = pointer
    library.ibv_open_device.argtypes = [pointer]
    library.ibv_close_device.argtypes = [pointer]
    library.ibv_query_device.argtypes = [pointer, ctypes.c_void_p]
    return library


def _opened(device: Device, dev: Path, library: "ctypes.CDLL | None") -> Device:
    problem = _file_problem(device, dev)
    if not problem and library is None:
        problem = "libibverbs is not installed (Debian: libibverbs1, ibverbs-providers)"
    if problem or library is None:
        return replace(device, problems=(*device.problems, problem))
    return _asked(device, library)


def _file_problem(device: Device, dev: Path) -> str:
    """Empty where the device's file can be opened. A pod sees all devices in /sys, and files of its own ones only."""
    if not device.uverbs:
        return "the kernel has no uverbs file for it: module ib_uverbs is not loaded on the node"
    path = dev / device.uverbs
    if not path.exists():
        return f"{path} is not in this container: its pod has not asked for the device (resources.limits)"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"{path} cannot be opened for reading and writing by this user"
    return ""


def _asked(device: Device, library: ctypes.CDLL) -> Device:
    count = ctypes.c_int()
    found = library.ibv_get_device_list(ctypes.byref(count))
    try:
        for at in range(count.value):
            if library.ibv_get_device_name(found[at]) == device.name.encode():
                return _queried(device, library, found[at])
    finally:
        if found:
            library.ibv_free_device_list(found)
    return replace(
        device,
        problems=(*device.problems, "libibverbs does not list it: its provider (ibverbs-providers) is missing"),
    )


def _queried(device: Device, library: ctypes.CDLL, handle: int) -> Device:
    context = library.ibv_open_device(handle)
    if not context:
        why = os.strerror(ctypes.get_errno())
        return replace(device, problems=(*device.problems, f"libibverbs cannot open it: {why}"))
    try:
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        if library.ibv_query_device(context, attributes) != 0:
            return replace(device, problems=(*device.problems, "libibverbs cannot query it"))
        size = int.from_bytes(attributes.raw[_MAX_MR_SIZE_AT : _MAX_MR_SIZE_AT + 8], "little")
        return replace(device, max_mr_bytes=size)
    finally:
        library.ibv_close_device(context)
