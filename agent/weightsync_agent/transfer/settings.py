"""What a transfer worker is told at its start, and the environment of MC_* that Mooncake reads of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weightsync.errors import InputError
from weightsync.plan import Rdma
from weightsync.wire.v1 import Transport

MIB = 1 << 20
MIN_PORTS = 20  # a worker takes two, and a restarted one must not wait for the old one's

# Settings of Mooncake that both ends must hold alike: of the slice size and the I/O threads one end alone
# brings nothing, the others change what is spoken.
SHARED = ("MC_TCP_SLICE_SIZE", "MC_NUM_TCP_IO_THREADS", "MC_USE_IPV6", "MC_USE_TENT", "MC_USE_TEV1")
SHARED_OVER_RDMA = (*SHARED, "MC_MTU")

# With neither of the two Mooncake chooses by itself, and falls back to TCP without a word where it finds no device.
_FORCE: dict[Transport, str] = {"tcp": "MC_FORCE_TCP", "rdma": "MC_FORCE_HCA"}


@dataclass(frozen=True)
class Carrier:
    """What a route is written over. transport: None for the agent's own choice; rdma: how devices are used."""

    transport: Transport | None = None
    rdma: Rdma = field(default_factory=Rdma)

    @classmethod
    def of(cls, transport: Transport | None, rdma: Rdma) -> "Carrier":
        """Over TCP it is all the same how devices are used."""
        return cls(transport, rdma) if transport == "rdma" else cls(transport)


OWN = Carrier()


@dataclass(frozen=True)
class Verbs:
    """Which RDMA devices a worker uses, and how. None, or no device named: Mooncake's own choice.

    gid_index: of the GID table, alike in kind (IPv4, IPv6, RoCE version) on all nodes; mtu: bytes of a packet, alike
    on all nodes; queue_pairs: to one peer's device; retries: of a packet, before the peer counts as lost.
    """

    devices: tuple[str, ...] = ()
    port: int | None = None
    gid_index: int | None = None
    traffic_class: int | None = None
    service_level: int | None = None
    mtu: int | None = None
    queue_pairs: int | None = None
    retries: int | None = None

    def environment(self) -> dict[str, str]:
        """The MC_* of what is set."""
        given = {
            "MC_IB_PORT": self.port,
            "MC_GID_INDEX": self.gid_index,
            "MC_IB_TC": self.traffic_class,
            "MC_IB_SL": self.service_level,
            "MC_MTU": self.mtu,
            "MC_NUM_QP_PER_EP": self.queue_pairs,
            "MC_RETRY_CNT": self.retries,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class TransferSettings:
    """One worker's settings. Sizes in bytes, times in seconds.

    io_threads, slice_bytes: of Mooncake's TCP transport, alike on all agents (io_threads is read by Mooncake from
    0.3.14 on; 0.3.13 has one thread). lanes: connections to one peer. piece_bytes: a bucket is written in pieces
    of at most this. peer_pieces, peer_bytes: outstanding to one peer at a time, at most: pieces and what is
    outstanding begin smaller and grow while the peer takes them fast (pace.py). digest_threads: 0 is one per core,
    at most 8. transport: this one and no other; a worker that cannot have it does not start.
    """

    io_threads: int = 4
    slice_bytes: int = MIB
    lanes: int = 4
    min_port: int = 15000
    max_port: int = 17000
    transport: Transport = "tcp"
    verbs: Verbs = field(default_factory=Verbs)
    piece_bytes: int = 64 * MIB
    peer_pieces: int = 64
    peer_bytes: int = 256 * MIB
    poll_seconds: float = 0.002
    digest_threads: int = 0
    start_seconds: float = 30.0
    call_seconds: float = 120.0
    contact_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Raises InputError that names the setting."""
        if self.max_port - self.min_port < MIN_PORTS:
            raise InputError(
                f"ports {self.min_port} to {self.max_port}: give at least {MIN_PORTS}, since a restarted worker "
                "cannot take the ports of the one before it for a minute"
            )
        if not 1 <= self.peer_pieces <= 1000:
            raise InputError(f"peer_pieces {self.peer_pieces}: 1 to 1000; more can break Mooncake's path to a peer")
        if min(self.piece_bytes, self.peer_bytes, self.slice_bytes, self.io_threads, self.lanes) < 1:
            raise InputError("io_threads, lanes, slice_bytes, piece_bytes and peer_bytes must be at least 1")
        if self.poll_seconds <= 0:
            raise InputError(f"poll_seconds {self.poll_seconds}: must be over 0, a busy poll takes the wire's core")

    def environment(self) -> dict[str, str]:
        """The MC_* of these settings. Mooncake reads them once, when its library is loaded."""
        return {
            "MC_NUM_TCP_IO_THREADS": str(self.io_threads),
            "MC_TCP_SLICE_SIZE": str(self.slice_bytes),
            "MC_TCP_LANES_PER_PEER": str(self.lanes),
            "MC_MIN_RPC_PORT": str(self.min_port),
            "MC_MAX_RPC_PORT": str(self.max_port),
            _FORCE[self.transport]: "1",
            **(self.verbs.environment() if self.transport == "rdma" else {}),
        }


def child_environment(settings: TransferSettings, host: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a worker: the inherited one (an operator's MC_* among it), ours over it.

    Raises InputError for MC_TCP_PROTO=1: that protocol calls a write done while its bytes are still on the way.
    """
    if inherited.get("MC_TCP_PROTO", "") == "1":
        raise InputError(
            "MC_TCP_PROTO=1 is set: Mooncake would report writes done before their bytes have landed; unset it"
        )
    ipv6 = {"MC_USE_IPV6": "1"} if ":" in host else {}
    kept = {name: value for name, value in inherited.items() if name not in _FORCE.values()}
    return {"MC_LOG_LEVEL": "WARNING", **kept, **settings.environment(), **ipv6}
