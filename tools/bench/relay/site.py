"""One trainer and several engines with real agents, each in a network namespace whose link has a known speed."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from reference.checkpoint import initial_state, write_checkpoint
from tools.bench.agents import config
from tools.bench.relay import said
from tools.chaos.records import Records
from tools.world.network import Network
from tools.world.pod import Pod
from tools.world.processes import WorldError, stands_still, wait
from tools.world.world import World
from weightsync import Publisher, PublishHandle
from weightsync.publisher.outcome import Outcome

TRAINER = "trainer"
START_SECONDS = 300.0
JOIN_SECONDS = 120.0
# Eight engines share the trainer's link: each of several writes that are under way to one of them takes longer than
# the agents' default of 5 s.
STALL_SECONDS = 30.0


@dataclass(frozen=True)
class Links:
    """What was asked for. nbytes: of a version, about; rate: bytes a second of each pod's link, each way.

    fanout: others that each engine, and the trainer, feeds; 0: the trainer feeds all.
    """

    nbytes: int
    bucket: int
    rate: int
    fanout: int = 0


@dataclass(frozen=True)
class Sync:
    """One version. seconds: to verified, of each engine that got it; sent: by the trainer's pod, headers and all."""

    outcome: Outcome
    seconds: Mapping[str, float]
    sent: int

    @property
    def slowest(self) -> float:
        """Seconds until the last engine had it."""
        return max(self.seconds.values())


class Site:
    """Use as a context manager."""

    def __init__(self, links: Links, *, deadline: int = 120) -> None:
        self._stack = ExitStack()
        self.links = links
        self.network = self._stack.enter_context(Network(links.rate))
        plan: dict[str, Any] = {
            "transfer": {"bucketSize": str(links.bucket), "relay": {"fanout": links.fanout}},
            # Each engine on its own: an engine that is stopped is not waited for.
            "strategy": {"type": "Rolling", "maxUnavailable": "100%", "deadlineSeconds": deadline},
        }
        self.world = self._stack.enter_context(
            World(
                plan,
                # Two arenas: the version that is served can be read from while the next one is written.
                {"WEIGHTSYNC_STALL_SECONDS": str(STALL_SECONDS), "WEIGHTSYNC_TARGET_ARENAS": "2"},
                network=self.network,
            )
        )
        self.world.start_seconds = START_SECONDS
        self._deadline = deadline
        self._model = self.world.folder / "model"
        self.engines: dict[str, Pod] = {}
        self._records: dict[str, Records] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self) -> None:
        shape = config(self.links.nbytes)
        self._state: dict[str, torch.Tensor] = dict(initial_state(shape, seed=0))
        write_checkpoint(self._model, shape, self._state)
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in self._state.values())
        trainer = self.world.trainer(TRAINER)
        self._publisher = Publisher(rank=0, world_size=1, directory=trainer.volume)
        self._stack.callback(self._publisher.close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    # --- engines ---

    def add(self, *names: str) -> None:
        """Engines' pods; returns when the coordinator knows all that there are."""
        for name in names:
            self.engines[name] = self.world.engine(name, self._model)
        self.world.wait_for_engines(len(self.engines), seconds=START_SECONDS)

    def remove(self, name: str) -> None:
        """The pod is deleted."""
        del self.engines[name]
        self._records.pop(name, None)
        self.world.remove(name)
        self.world.wait_for_engines(len(self.engines), seconds=START_SECONDS)

    def add_waiting(self, *names: str) -> None:
        """Engines' pods whose agents stand still until release(): so all of them begin to join at once."""
        for name in names:
            pod = self.engines[name] = self.world.engine(name, self._model)
            # It has given the engine all that it needs once it listens.
            wait(
                f"the agent of {name}", partial(_answers, partial(self.world.status, pod)), START_SECONDS, [pod.agent]
            )
            os.killpg(pod.agent.pid, signal.SIGSTOP)
        for name in names:
            asked = partial(self.world.ask_engine, self.engines[name], "/get_model_info", seconds=1.0)
            wait(f"the engine of {name}", partial(_answers, asked), START_SECONDS)

    def release(self, *names: str) -> float:
        """Let them join. When: seconds since 1970."""
        for name in names:
            os.killpg(self.engines[name].agent.pid, signal.SIGCONT)
        return time.time()

    def joined(self, names: Sequence[str], since: float, *, serves: bool = True) -> list[said.Join]:
        """Wait until all of these engines have joined, by themselves or by the trainer.

        serves: and serve what was published last.
        """
        found: dict[str, said.Join] = {}

        def all_there() -> bool:
            for name in set(names) - found.keys():
                records = self._records.setdefault(name, Records(self.engines[name].agent.log))
                one = said.join(records.lines(), since)
                if one is None and self._serves(self.engines[name]):
                    one = said.Join(since, time.time())  # the trainer was faster than its own search
                if one is not None:
                    found[name] = one
            return len(found) == len(names)

        wait(f"the joins of {', '.join(names)}", all_there, JOIN_SECONDS)
        for name in names if serves else ():
            self.world.wait_for_version(self.engines[name], self.version, seconds=START_SECONDS)
        return list(found.values())

    def _serves(self, pod: Pod) -> bool:
        try:
            status = self.world.status(pod)
        except WorldError:
            return False
        return status.journal == "Current" and status.gate

    def remove_trainer(self) -> None:
        """The trainer's pod is deleted, with the process that published."""
        self._publisher.close()
        self.world.remove(TRAINER)

    def add_without_trainer(self, name: str) -> float:
        """An engine's pod, while there is nobody who coordinates. When: seconds since 1970."""
        since = time.time()
        self.engines[name] = self.world.engine(name, self._model)
        return since

    def _fed(self) -> dict[str, str]:
        trainer = self.world.pods[TRAINER]
        return said.fed(self._records.setdefault(TRAINER, Records(trainer.agent.log)).lines())

    def below(self, name: str) -> set[str]:
        """The engines that this one feeds in the last sync, directly or not."""
        return {self.world.name_of(uid) for uid in said.below(self._fed(), self.engines[name].uid)}

    def victim(self) -> str:
        """An engine that fed some of the others in the last sync, the first by name; else one that fed nobody."""
        feeders = sorted({self.world.name_of(uid) for uid in self._fed().values()})
        able = [name for name in feeders if len(self.below(name)) + 1 < len(self.engines)]
        return (able or [name for name in sorted(self.engines, reverse=True) if name not in feeders])[0]

    def stop(self, name: str) -> None:
        """The pod's processes stand still: agent, transfer workers, engine; its connections stay open."""
        for child in self.engines[name].children:
            os.killpg(child.pid, signal.SIGSTOP)
            stands_still(child.pid)

    def wake(self, name: str) -> None:
        """They go on."""
        for child in self.engines[name].children:
            os.killpg(child.pid, signal.SIGCONT)

    def settle(self) -> None:
        """Until every engine serves what was published last, so that nothing of it disturbs the next trial."""
        for pod in self.engines.values():
            self.world.wait_for_version(pod, self.version, seconds=START_SECONDS)

    # --- versions ---

    def wait_for_bytes(self, name: str, nbytes: int) -> None:
        """Until so many more have reached the pod."""
        before = self.network.received(name)
        wait(f"{nbytes} bytes at {name}", lambda: self.network.received(name) - before >= nbytes, self._deadline)

    def begin(self) -> PublishHandle:
        """A version, other bytes than the last one's. Returns when the trainer may go on."""
        for tensor in self._state.values():
            tensor.add_(1)
        handle = self._publisher.publish(self._state)
        handle.copied()
        return handle

    def publish(self) -> Sync:
        """A version, to the end. Raises WorldError where an engine did not get it."""
        before = self.network.sent(TRAINER)
        sync = self.end(self.begin(), before)
        if sync.outcome.status != "Current":
            raise WorldError(f"an undisturbed sync of {len(self.engines)} engines: {sync.outcome.describe()}")
        return sync

    def end(self, handle: PublishHandle, before: int) -> Sync:
        """Wait for every engine's outcome. Raises WorldError where the whole publish failed."""
        outcome = handle.outcome(2 * self._deadline)
        if outcome.status == "Failed" or outcome.version is None:
            raise WorldError(f"the publish failed: {outcome.describe()}")
        self.version = outcome.version.name
        seconds = {
            self.world.name_of(engine.engine): engine.staged_seconds
            for engine in outcome.engines
            if engine.outcome == "Current"
        }
        return Sync(outcome, seconds, self.network.sent(TRAINER) - before)


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except WorldError:
        return False
    return True
