"""The pods of one engine, as its leader knows them. Pure. Rules:

- an engine is looked at, certified and committed to only while every pod of it is there: a place without a pod, or
  with one that has not been heard of for a while, is waited for;
- a place belongs to the pod that spoke last for it: one that was replaced has another uid and comes by itself;
- the same pod with another life of its agent has forgotten its grants: whatever was known of them is void.
"""

from dataclasses import dataclass

from weightsync.errors import Refused
from weightsync.wire.members import MemberHere

SILENT_SECONDS = 5.0  # members speak each second


def share(ranks: int, nodes: int, node: int) -> range:
    """The ranks of the pod at place ``node``: SGLang gives every node the next of equal shares."""
    each = ranks // nodes
    return range(node * each, (node + 1) * each)


@dataclass(frozen=True)
class Pod:
    """One pod of the engine in one life of its agent."""

    node: int
    uid: str
    life: str


class Crew:
    """nodes: of how many pods the engine is, 1 before it has said so; ranks: of the whole engine."""

    def __init__(self) -> None:
        self.nodes = 1
        self.ranks = 0
        self.members: dict[int, MemberHere] = {}
        self._heard: dict[int, float] = {}

    def is_of(self, ranks: int, nodes: int) -> None:
        """The engine has said of how many ranks and pods it is; members of other places are none."""
        self.ranks, self.nodes = ranks, nodes
        for node in [node for node in self.members if node >= nodes]:
            del self.members[node], self._heard[node]

    def share(self, node: int) -> range:
        """The ranks of that place; none before the engine has said anything."""
        return share(self.ranks, self.nodes, node) if node < self.nodes else range(0)

    def came(self, here: MemberHere, now: float) -> None:
        """A member speaks. Raises Refused where the engine has no such place."""
        if self.ranks and here.node >= self.nodes:
            raise Refused(
                f"pod {here.uid} says that it is pod {here.node} of this engine, which is of {self.nodes}: "
                "does WEIGHTSYNC_LEADER name its own engine's leader, and WEIGHTSYNC_NODE_RANK its --node-rank?",
                reason="NoSuchPlace",
                status=422,
            )
        self.members[here.node] = here
        self._heard[here.node] = now

    def lacking(self, now: float) -> str:
        """Which pod is waited for, in a sentence; "" where all are there with their ranks."""
        for node in range(1, self.nodes):
            here = self.members.get(node)
            if here is None or now - self._heard[node] > SILENT_SECONDS:
                return (
                    f"the engine is of {self.nodes} pods, and the agent of pod {node} has not said that it is there: "
                    "WEIGHTSYNC_LEADER in its environment must name this pod, WEIGHTSYNC_NODE_RANK its --node-rank"
                )
            if [rank.rank for rank in here.ranks] != list(self.share(node)):
                return f"pod {node} ({here.uid}) has no arenas for ranks {_listed(self.share(node))} yet"
        return ""

    def pods(self) -> frozenset[Pod]:
        """All members, each in the life of its agent that speaks."""
        return frozenset(Pod(node, here.uid, here.life) for node, here in self.members.items() if node < self.nodes)

    def uid_of(self, rank: int) -> str:
        """The member that holds the rank; "" where it is the leader's own."""
        return next((here.uid for here in self.members.values() if rank in {r.rank for r in here.ranks}), "")


def replaced(before: frozenset[Pod], now: frozenset[Pod]) -> bool:
    """Whether another pod took a member's place, and not only another life of its agent."""
    return {(pod.node, pod.uid) for pod in before} != {(pod.node, pod.uid) for pod in now}


def _listed(ranks: range) -> str:
    return f"{ranks.start} to {ranks.stop - 1}" if len(ranks) > 1 else str(ranks.start)
