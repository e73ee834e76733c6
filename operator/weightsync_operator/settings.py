"""What the operator is told: flag, environment (WEIGHTSYNC_OPERATOR_*), default, in this order. Nothing is opened."""

import os
import socket
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Port = Annotated[int, Field(ge=0, le=65535)]


def _pod_namespace() -> str:
    return os.environ.get("POD_NAMESPACE", "")


def _identity() -> str:
    # A container that restarts in its pod goes on with its own Lease at once.
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


class Settings(BaseSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(
        env_prefix="WEIGHTSYNC_OPERATOR_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        cli_prog_name="weightsync-operator",
        cli_kebab_case=True,
        cli_implicit_flags=True,
    )

    namespaces: Annotated[
        tuple[str, ...], NoDecode, Field(description="Namespaces to serve, comma-separated; empty: all.")
    ] = ()
    pod_selector: Annotated[str, Field(description="Only pods with these labels are watched; empty: all.")] = ""
    topology_labels: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Labels of nodes, comma-separated, the nearest first, such as kubernetes.io/hostname,"
            "topology.kubernetes.io/zone: engines are fed from near trainer pods where that costs no evenness. Needs "
            "the right to list and watch nodes; empty: nodes are not looked at.",
            max_length=8,  # as many as a plan carries of a pod's place
        ),
    ] = ()
    health_host: Annotated[str, Field(description="Where /healthz, /readyz and /metrics listen.")] = ""
    health_port: Annotated[Port, Field(description="Their port; 0 takes a free one.")] = 8080
    debounce_seconds: Annotated[
        float, Field(ge=0, le=10, description="How long a pass waits for more changes of the same WeightSync.")
    ] = 0.1
    resync_seconds: Annotated[
        float, Field(ge=5, description="How often everything is listed anew, against events that were lost.")
    ] = 300.0
    leader_election: Annotated[bool, Field(description="Work only while holding a Lease.")] = False
    lease_name: Annotated[str, Field(description="The Lease's name.")] = "weightsync-operator"
    lease_namespace: Annotated[str, Field(description="The Lease's namespace; default: the pod's own.")] = Field(
        default_factory=_pod_namespace
    )
    identity: Annotated[str, Field(description="Who holds the Lease and reports events; default: the pod.")] = Field(
        default_factory=_identity
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="Least level logged.")] = (
        "info"
    )
    log_format: Annotated[Literal["json", "console"], Field(description="json for machines.")] = "json"

    @field_validator("namespaces", "topology_labels", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """``a,b`` from flag or environment."""
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            return value
        return tuple(name.strip() for part in parts for name in str(part).split(",") if name.strip())

    @model_validator(mode="after")
    def _lease_has_a_place(self) -> "Settings":
        if self.leader_election and not self.lease_namespace:
            raise ValueError(
                "leader election needs a namespace for its Lease: set POD_NAMESPACE or --lease-namespace"
            )
        return self
