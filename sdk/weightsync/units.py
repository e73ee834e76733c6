"""Quantities as Kubernetes writes them, read and printed: bytes only. Pure."""

import re

from weightsync.errors import InputError

_FACTORS = {
    "": 1,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]{1,15})(|k|M|G|T|Ki|Mi|Gi|Ti)")
QUANTITY_PATTERN = r"^[1-9][0-9]{0,14}(k|M|G|T|Ki|Mi|Gi|Ti)?$"


def parse_bytes(text: str) -> int:
    """Bytes of a quantity such as ``512Mi``. Raises InputError for anything else."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a number of bytes: write digits and one of k M G T Ki Mi Gi Ti")
    return int(match[1]) * _FACTORS[match[2]]


def format_bytes(count: int) -> str:
    """A count of bytes for people: ``1.5 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
