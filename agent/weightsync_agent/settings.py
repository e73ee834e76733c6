"""What an agent is told by its environment (WEIGHTSYNC_*, POD_*), checked once, with errors as sentences.

Nothing here opens a file or asks the network: ``Settings`` says where things are, others read them.
"""

import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightsync import names
from weightsync.errors import InputError
from weightsync.units import parse_bytes

PREFIX = "WEIGHTSYNC_"

Auth = Literal["token", "secret", "none"]


def _quantity(value: object) -> object:
    """``512Mi`` or plain digits, as a Kubernetes resource field reference gives them."""
    try:
        return parse_bytes(value) if isinstance(value, str) else value
    except InputError as error:
        raise ValueError(str(error)) from error


Bytes = Annotated[int, Field(ge=1), BeforeValidator(_quantity)]
Port = Annotated[int, Field(ge=1, le=65535)]
_DEVICES = r"^([A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*)?$"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _pod(name: str) -> Any:
    """A field that the downward API fills, under its customary name."""
    return Field(default="", validation_alias=f"POD_{name}")


class Settings(BaseSettings):
    """All of an agent's settings; each is the environment variable WEIGHTSYNC_<NAME> unless its comment says so."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, env_ignore_empty=True, extra="ignore", validate_by_name=True
    )

    role: Literal["trainer", "engine"]
    plan: Annotated[str, Field(pattern=r"^(cluster|file:.+)$", description="cluster or file:/path")] = "cluster"

    # Where the agent is, and who it is.
    directory: Path = Field(default=Path(names.DIRECTORY), validation_alias=names.DIRECTORY_ENV)
    port: Port = names.AGENT_PORT
    bind: str = ""  # empty: all addresses
    advertise: str = ""  # the host that peers dial; empty: the pod's IP, else this host's name
    pod_ip: str = _pod("IP")
    pod_name: str = _pod("NAME")
    pod_namespace: str = _pod("NAMESPACE")
    pod_uid: str = _pod("UID")
    own_uid: str = Field(default="", validation_alias=f"{PREFIX}UID")  # in place of a pod's, with a file

    # The engine beside it.
    engine_url: Annotated[str, Field(pattern=r"^https?://[^/\s]+$", description="http://host:port")] = (
        "http://127.0.0.1:30000"
    )
    engine_admin_key_file: Path | None = None
    engine_api_key_file: Path | None = None
    # Of an engine of several pods: the pod of its node 0, as host or host:port of the agent there, and which node
    # this pod is (SGLang's --node-rank). Node 0 leads, whatever the first says.
    leader: Annotated[str, Field(pattern=r"^[^/\s]*$", description="<host> or <host>:<port>")] = ""
    node_rank: Annotated[int, Field(ge=0, lt=65536)] = 0
    probe_seconds: Seconds = 1.0  # between two looks at the engine's incarnation
    programs: Path | None = None  # the folder of its ranks' copy programs; unset: layouts in the volume

    # How agents know one another.
    auth: Auth | None = None  # unset: token in a cluster, secret with a plan file
    secret_file: Path | None = None  # unset with a plan file: the one that the plan file names
    token_file: Path = Path("/var/run/secrets/weightsync/token")  # audience names.AUDIENCE

    # Memory and transfer.
    mode: Literal["Auto", "Staged", "Direct"] | None = None  # unset: as the WeightSync says, Auto with a plan file
    memory_limit: Bytes | None = None  # unset: what the control group says
    source_arenas: Annotated[int, Field(ge=1, le=2)] = 2
    # With two, the version that is served stays for an engine that restarts while the next one is written.
    target_arenas: Annotated[int, Field(ge=1, le=2)] = 1
    stall_seconds: Seconds = 5.0  # a route without progress for so long is given up
    # Of a trainer's agent, for all tries of one engine's commit: longer than its pause, copy and, the first time, two
    # comparisons take there. The next version waits for it as long.
    commit_seconds: Seconds = 15.0
    worker_start_seconds: Seconds = 30.0  # a transfer worker that is not ready after so long is ended
    # A source's worker that waits so long for a peer which it meets first is ended: it writes to nobody meanwhile.
    contact_seconds: Seconds = 5.0
    io_threads: Annotated[int, Field(ge=1, le=64)] = 4  # MC_NUM_TCP_IO_THREADS: alike on all agents
    slice_bytes: Annotated[Bytes, Field(ge=65536, le=2**30)] = 2**20  # MC_TCP_SLICE_SIZE: alike on all agents
    transfer_ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$", description="<lowest>-<highest>")] = (
        "15000-17000"
    )

    # What may carry the bytes to and from this pod. auto: what its WeightSync says, RDMA only where this pod has a
    # device that it can use; tcp: devices are not looked at; rdma never becomes TCP.
    transport: Literal["auto", "rdma", "tcp"] = "auto"
    devices: Annotated[str, Field(pattern=_DEVICES, description="<device>[,<device>...]")] = ""  # empty: all usable
    device_port: Annotated[int, Field(ge=1, le=255)] | None = None  # MC_IB_PORT
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None  # MC_GID_INDEX: alike in kind on all nodes
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = None  # MC_IB_TC
    service_level: Annotated[int, Field(ge=0, le=15)] | None = None  # MC_IB_SL
    rdma_mtu: Annotated[int, Field(description="512, 1024, 2048 or 4096")] | None = None  # MC_MTU: alike on all nodes
    queue_pairs: Annotated[int, Field(ge=1, le=255)] | None = None  # MC_NUM_QP_PER_EP
    retries: Annotated[int, Field(ge=1, le=127)] | None = None  # MC_RETRY_CNT

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    _host: str = PrivateAttr(default_factory=socket.gethostname)

    @field_validator("port", mode="before")
    @classmethod
    def _not_a_service_link(cls, value: object) -> object:
        """A Service named ``weightsync`` makes the kubelet set WEIGHTSYNC_PORT=tcp://... in every pod beside it."""
        return names.AGENT_PORT if isinstance(value, str) and value.startswith("tcp://") else value

    @field_validator("log_level", "log_format", "transport", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("transfer_ports")
    @classmethod
    def _port_range(cls, value: str) -> str:
        low, high = (int(part) for part in value.split("-"))
        if not 1024 <= low < high <= 65535:
            raise ValueError(f"{value} is no range of ports: write <lowest>-<highest> between 1024 and 65535")
        # Two ports per worker, and a port just closed cannot be bound again for 60 s.
        if high - low < 19:
            raise ValueError(f"{value} holds {high - low + 1} ports: give at least 20, or a worker cannot restart")
        return value

    @field_validator("rdma_mtu")
    @classmethod
    def _mtu(cls, value: int | None) -> int | None:
        if value is not None and value not in {512, 1024, 2048, 4096}:
            raise ValueError("an RDMA packet has 512, 1024, 2048 or 4096 bytes")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.directory.is_absolute():
            raise ValueError(f"{names.DIRECTORY_ENV} is {self.directory}: give an absolute path")
        if self.in_cluster:
            wanted = {"POD_NAME": self.pod_name, "POD_NAMESPACE": self.pod_namespace, "POD_UID": self.pod_uid}
            missing = [name for name, value in wanted.items() if not value]
            if missing:
                raise ValueError(
                    f"{', '.join(missing)} not set, which a plan from the cluster needs: fill them by fieldRef "
                    f"(metadata.name, metadata.namespace, metadata.uid), or set {PREFIX}PLAN=file:/path"
                )
        elif not self.uid:
            raise ValueError(
                f"{PREFIX}UID is not set: with a plan file each agent needs the uid that the plan gives it"
            )
        if self.node_rank and not self.leader:
            raise ValueError(
                f"{PREFIX}NODE_RANK is {self.node_rank} and {PREFIX}LEADER is not set: name the pod of the engine's "
                "node 0 there"
            )
        if self.auth_mode == "token" and not self.in_cluster:
            raise ValueError(
                f"{PREFIX}AUTH=token needs the cluster's keys, but the plan comes from a file: use secret or none"
            )
        if self.auth_mode == "secret" and self.in_cluster and self.secret_file is None:
            raise ValueError(f"{PREFIX}AUTH=secret needs {PREFIX}SECRET_FILE, the path of the shared secret")
        return self

    @property
    def in_cluster(self) -> bool:
        """The plan comes from the API, and the agent has a pod of its own."""
        return self.plan == "cluster"

    @property
    def plan_path(self) -> Path | None:
        """The plan file, None in a cluster."""
        return None if self.in_cluster else Path(self.plan.removeprefix("file:"))

    @property
    def auth_mode(self) -> Auth:
        """How agents know one another, defaults filled in."""
        return self.auth or ("token" if self.in_cluster else "secret")

    @property
    def uid(self) -> str:
        """Who this agent is in plans: the pod's uid, or the one given in its place."""
        return self.pod_uid if self.in_cluster else self.own_uid or self.pod_uid

    @property
    def leader_address(self) -> str:
        """host:port of the agent that leads this pod's engine; "" where it is this one."""
        if not self.leader or not self.node_rank:
            return ""
        bare = self.leader.rpartition("]")[2] if self.leader.startswith("[") else self.leader
        return self.leader if ":" in bare else f"{self.leader}:{self.port}"

    @property
    def name(self) -> str:
        """For messages: the pod's name, else the uid."""
        return self.pod_name or self.uid

    @property
    def address(self) -> str:
        """host:port of the agent's API, as peers dial it; IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host(self) -> str:
        """The host that peers dial, without brackets."""
        return self.advertise or self.pod_ip or self._host

    @property
    def device_names(self) -> tuple[str, ...]:
        """The only devices that may be used; empty for all."""
        return tuple(self.devices.split(",")) if self.devices else ()

    @property
    def ports(self) -> tuple[int, int]:
        """Lowest and highest port that transfer workers may bind."""
        low, high = self.transfer_ports.split("-")
        return int(low), int(high)

    @classmethod
    def from_environment(cls, **overrides: Any) -> Self:
        """Read the environment. Raises InputError with one sentence for each wrong variable.

        overrides: by field name; they win over the environment.
        """
        try:
            return cls(**overrides)
        except ValidationError as error:
            problems = [_sentence(cls, problem) for problem in error.errors(include_url=False)]
            raise InputError("; ".join(problems)) from error


def _sentence(kind: type[Settings], problem: Any) -> str:
    """One of pydantic's problems, with the variable to change in front."""
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(message)
    variable = _variable(kind, str(problem["loc"][0]))
    if problem["type"] == "missing":
        return f"{variable} is not set"
    if problem["type"] == "string_pattern_mismatch":
        return f"{variable}={problem['input']}: write {kind.model_fields[str(problem['loc'][0])].description}"
    return f"{variable}={problem['input']}: {message[0].lower()}{message[1:]}"


def _variable(kind: type[Settings], location: str) -> str:
    """The environment variable of a location, which is a field's name or its alias."""
    if re.match(r"^(POD_|WEIGHTSYNC_)", location):
        return location
    return PREFIX + location.upper()
