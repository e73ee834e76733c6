"""Who is still connected to a port of this network namespace: what the kernel's tables say.

A connection that its other end has closed stays in the table for as long as bytes of it may be unread here: what is
in it no more brings no byte, also of a peer whose process is gone.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_OVER = frozenset({0x06, 0x07, 0x0A})  # TIME_WAIT, CLOSE, LISTEN: nothing more is read from these

Address = IPv4Address | IPv6Address


class Connection(NamedTuple):
    """One row. state: the kernel's number."""

    port: int
    peer: Address
    state: int


def parse(table: str) -> list[Connection]:
    """The rows of /proc/net/tcp or tcp6. Raises ValueError where a row is none."""
    rows = []
    for line in table.splitlines()[1:]:
        if line.strip():
            fields = line.split()
            peer = _address(fields[2].partition(":")[0])
            rows.append(Connection(int(fields[1].partition(":")[2], 16), peer, int(fields[3], 16)))
    return rows


def _address(text: str) -> Address:
    """The kernel prints words of four bytes, each in the order of a little-endian machine."""
    packed = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    if len(packed) == 4:
        return IPv4Address(packed)
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def connected(rows: Iterable[Connection], port: int, host: str) -> bool:
    """Whether bytes from ``host`` may still come in at ``port``; a host that is no address may be any."""
    peer = _known(host)
    return any(row.port == port and row.state not in _OVER and peer in (None, row.peer) for row in rows)


def _known(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def current() -> list[Connection]:
    """All connections now. Raises OSError where the kernel shows none."""
    paths = [Path(path) for path in TABLES]
    return [row for path in paths if path.exists() or path == paths[0] for row in parse(path.read_text())]
