"""Kernel, modules and first stage of the guests, made from Debian's kernel package and cached by content."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.guest.errors import GuestError
from tools.setup import cache, commands

STAGES = Path(__file__).resolve().parent / "stages"
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "modprobe", "depmod", "rdma", "ip", "dpkg-deb", "apt-get")
# Loaded by the first stage: the disk and the wire, then soft-RoCE and what user space reaches it through.
MODULES = (
    "virtio_pci", "virtio_net", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay", "crc32_generic",
    "rdma_rxe", "rdma_ucm",
)  # fmt: skip
# Half of the package is drivers that no emulated machine has.
DRIVERS = (
    "gpu", "media", "staging", "usb", "iio", "hid", "input", "scsi", "ata", "mmc", "mtd", "hwmon", "platform", "edac",
    "leds", "isdn", "firewire", "thunderbolt", "bluetooth", "target", "net/wireless", "net/ethernet", "net/usb",
    "net/wan", "net/can",
)  # fmt: skip
LEFT_OUT = (*(f"*/kernel/drivers/{each}" for each in DRIVERS), "*/kernel/sound")


@dataclass(frozen=True)
class Boot:
    """What QEMU starts. modules: the folder that is /lib/modules in the guest."""

    kernel: Path
    initrd: Path
    modules: Path


def boot() -> Boot:
    """Make what is not in the cache. Raises GuestError or SetupError with what is missing."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        raise GuestError(f"{', '.join(absent)} not found; `python3 tools/setup guest` installs them (Debian, root)")
    name, digest = _package()
    kernel = cache.entry("guest-kernel", cache.key(digest, *LEFT_OUT), partial(_unpack, name))
    first = (STAGES / "first.sh").read_bytes()
    busybox = Path(shutil.which("busybox") or "")
    initrd = cache.entry(
        "guest-initrd",
        cache.key(kernel.name, first, busybox.read_bytes(), *MODULES),
        partial(_initrd, kernel, first, busybox),
    )
    return Boot(kernel / "vmlinuz", initrd / "initrd.gz", kernel / "lib" / "modules")


def _package() -> tuple[str, str]:
    """Debian's current kernel package, and the hash that its package lists give for it."""
    depends = commands.output(["apt-cache", "depends", "linux-image-amd64"])
    found = re.search(r"^\s*Depends: (linux-image-\S+)$", depends, re.MULTILINE)
    if found is None:
        raise GuestError("apt knows no kernel package: `apt-get update` first, on Debian for amd64")
    shown = commands.output(["apt-cache", "show", "--no-all-versions", found[1]])
    digest = re.search(r"^SHA256: ([0-9a-f]{64})$", shown, re.MULTILINE)
    if digest is None:
        raise GuestError(f"apt gives no SHA256 of {found[1]}: `apt-get update` first")
    return found[1], digest[1]


def _unpack(package: str, folder: Path) -> None:
    log = cache.log_file("guest-kernel")
    fetched = folder / "package"
    fetched.mkdir()
    # apt's own user may not write below a home folder; as root it then says so and goes on.
    commands.run(["apt-get", "download", "-o", "APT::Sandbox::User=root", package], log, cwd=fetched)
    (archive,) = fetched.glob("*.deb")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as opened:
        subprocess.run(
            ["tar", "-x", "-C", folder, "--wildcards", *(f"--exclude={each}" for each in LEFT_OUT),
             "./boot/vmlinuz-*", "./lib/modules/*"],
            stdin=opened.stdout, check=True,
        )  # fmt: skip
    shutil.rmtree(fetched)
    version = _version(folder)
    (folder / "boot" / f"vmlinuz-{version}").rename(folder / "vmlinuz")
    commands.run(["depmod", "-b", folder, version], log)


def _version(kernel: Path) -> str:
    (only,) = (kernel / "lib" / "modules").iterdir()
    return only.name


def _initrd(kernel: Path, first: bytes, busybox: Path, folder: Path) -> None:
    tree = folder / "tree"
    for part in ("bin", "modules"):
        (tree / part).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin" / "busybox")
    (tree / "init").write_bytes(first)
    (tree / "init").chmod(0o755)
    order = _load_order(kernel)
    for module in order:
        shutil.copy(module, tree / "modules")
    (tree / "modules" / "order").write_text("".join(f"{module.name}\n" for module in order))
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input="\n".join(names).encode(), capture_output=True,
        check=True,
    )  # fmt: skip
    (folder / "initrd.gz").write_bytes(gzip.compress(packed.stdout, compresslevel=1, mtime=0))
    shutil.rmtree(tree)


def _load_order(kernel: Path) -> list[Path]:
    """Files of MODULES and what they need, each behind what it needs. Those that are built in have no file."""
    version = _version(kernel)
    found: dict[Path, None] = {}
    for module in MODULES:
        lines = commands.output(["modprobe", "-d", kernel, "-S", version, "--show-depends", module]).splitlines()
        found.update({Path(line.split()[1]): None for line in lines if line.startswith("insmod ")})
    return list(found)
