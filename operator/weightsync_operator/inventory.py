"""The inventory file: which agents there are where no Kubernetes says so. Pure but for reading the file."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from weightsync.announcement import Announcement
from weightsync.errors import InputError
from weightsync.plan import JoinPolicy, Name, Plan, Strategy, Transfer, Uid
from weightsync.records import Record, first_problem
from weightsync_operator.planning import membership, sources
from weightsync_operator.planning.compose import Wish, compose, left_out
from weightsync_operator.planning.grouping import Grouping, group
from weightsync_operator.planning.membership import Membership
from weightsync_operator.planning.pods import Pod
from weightsync_operator.planning.sources import Sources

_ENGINE = "engine"  # stands for a label of pods


class Agent(Record):
    """One agent. uid: as the agent itself was told; address: host:port of its HTTP API; engine: the name that all
    agents of one engine share, where it is of several pods."""

    uid: Uid
    engine: Annotated[str, Field(max_length=253)] = ""
    address: Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$", max_length=256)]
    role: Literal["trainer", "engine"]


class Inventory(Record):
    """All agents, in the order that stands for their age, and what a WeightSync's spec would say."""

    name: Name = "inventory"
    agents: tuple[Agent, ...] = ()
    initial_gate: Literal["Open", "Closed"] = "Open"
    suspend: bool = False
    join_policy: JoinPolicy = "Peer"
    transfer: Transfer = Transfer()
    strategy: Strategy = Strategy()

    @model_validator(mode="after")
    def _unique(self) -> Self:
        uids = [agent.uid for agent in self.agents]
        twice = next((uid for uid in uids if uids.count(uid) > 1), None)
        if twice is not None:
            raise ValueError(f"agent {twice} stands twice in the list: give each agent a uid of its own")
        return self

    @classmethod
    def load_yaml(cls, path: Path) -> Self:
        """Read the file. Raises InputError that names it and the first wrong field."""
        try:
            document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise InputError(f"{path}: {first_problem(error)}") from error


@dataclass(frozen=True, slots=True)
class Draft:
    """What planning an inventory came to. plan: None while there are no usable sources and never were."""

    plan: Plan | None
    trainers: Sources
    engines: Membership


def draft(inventory: Inventory, heard: dict[str, Announcement], previous: Plan | None) -> Draft:
    """Plan an inventory as the operator plans pods. heard: uid -> the newest announcement."""
    pods = {role: _pods(inventory, role, heard) for role in ("trainer", "engine")}
    trainers = sources.gather(pods["trainer"], "role: trainer of the inventory")
    engines = membership.judge(group(pods["engine"], Grouping("Label", _ENGINE)))
    wish = Wish(
        name=inventory.name,
        initial_gate=inventory.initial_gate,
        suspend=inventory.suspend,
        join_policy=inventory.join_policy,
        transfer=inventory.transfer,
        strategy=inventory.strategy,
    )
    # The term of a plan file is ignored: its coordinator takes one by itself.
    plan = compose(wish, trainers, engines.members, previous, now=0)
    engines = engines.without(left_out(engines.members, plan))
    return Draft(plan=plan, trainers=trainers, engines=engines)


def _pods(inventory: Inventory, role: str, heard: dict[str, Announcement]) -> list[Pod]:
    together = Counter(agent.engine or agent.uid for agent in inventory.agents if agent.role == role)
    return [
        Pod(
            namespace="", name=agent.uid, uid=agent.uid, created=f"{index:09d}",
            # The inventory's address is the one that is known to answer from here.
            announcement=heard[agent.uid].model_copy(update={"address": agent.address})
            if agent.uid in heard else None,
            labels={_ENGINE: agent.engine or agent.uid}, size=together[agent.engine or agent.uid],
        )
        for index, agent in enumerate(inventory.agents) if agent.role == role
    ]  # fmt: skip
