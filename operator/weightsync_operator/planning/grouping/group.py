"""One engine as pods: the value that every kind of workload ends in. Pure."""

from dataclasses import dataclass

from weightsync_operator.planning.pods import Pod


@dataclass(frozen=True, slots=True)
class Group:
    """An engine's pods. leader: the pod whose agent drives the engine; it is one of ``pods``, the first."""

    name: str
    pods: tuple[Pod, ...]

    @property
    def leader(self) -> Pod:
        """The pod that holds rank 0."""
        return self.pods[0]
