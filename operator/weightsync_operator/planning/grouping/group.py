"""One engine as pods: the value that every way of grouping ends in. Pure."""

from dataclasses import dataclass

from weightsync_operator.planning.pods import Pod


@dataclass(frozen=True, slots=True)
class Group:
    """An engine's pods, by their place in it.

    size: of how many pods it is, 0 where nothing says so; missing: the places without a pod, where places are known;
    problem: why these pods cannot be taken for an engine, though somebody asked for it.
    """

    name: str
    pods: tuple[Pod, ...]
    size: int = 1
    missing: tuple[int, ...] = ()
    problem: str = ""

    @property
    def first(self) -> Pod:
        """The pod that is asked first; which one leads is known when one of them announces rank 0."""
        return self.pods[0]
