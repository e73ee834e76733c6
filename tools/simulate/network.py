"""Messages between agents. One exchange: a request goes, an answer comes back; each may be late, lost or doubled.

A caller that times out knows nothing: the callee may have done it, or may still do it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import GeneratorType
from typing import Any, Protocol

from tools.simulate.clock import Future, Life, Loop, Task, Work
from weightsync.errors import PeerError, Refused, WeightSyncError
from weightsync_agent.peers.client import Unreachable

FAST = 0.004  # seconds of a usual one-way trip, at most
REFUSED_AFTER = 0.002
RETRY_AFTER = 0.15
TRIES = 4


class Host(Protocol):
    """An agent that listens."""

    life: Life

    def serve(self, path: str, body: Any) -> Any:
        """The answer, or a task's work that returns it."""


@dataclass(slots=True)
class Weather:
    """How bad the network is now. Chances per message; slow: seconds that a slow one takes, at most."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    slow: float = 0.0


CALM = Weather()


class Exchange(Future):
    """One request and its answer."""

    __slots__ = ("address", "body", "caller", "path", "seconds", "source")

    def __init__(self, loop: Loop, caller: Life, source: str, address: str) -> None:
        super().__init__(loop)
        self.caller = caller
        self.source = source
        self.address = address
        self.path = ""
        self.body: Any = None
        self.seconds = 0.0


class Network:
    """All hosts by address."""

    def __init__(self, loop: Loop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.hosts: dict[str, Host] = {}
        self.weather = CALM
        self.cut: set[frozenset[str]] = set()  # pairs of addresses; "*" stands for all others
        self.slow: dict[str, float] = {}  # by path: seconds that a request, and its answer, take beyond the usual
        self.refuse: tuple[Host, str] | None = None  # who refuses requests of which path for now

    def _lost(self, one: str, other: str) -> bool:
        cut = self.cut
        if cut and (frozenset((one, other)) in cut or frozenset((one, "*")) in cut or frozenset((other, "*")) in cut):
            return True
        loss = self.weather.loss
        return loss > 0 and self.rng.random() < loss

    def _delay(self) -> float:
        rng = self.rng
        weather = self.weather
        if weather.late and rng.random() < weather.late:
            return rng.random() * weather.slow
        return 0.0005 + rng.random() * FAST

    def call(self, way: tuple[Life, str, str], path: str, body: Any, seconds: float) -> Future:
        """The answer; Unreachable, Refused or PeerError where there is none. way: who asks, from where, whom."""
        loop = self.loop
        asked = Exchange(loop, *way)
        asked.path, asked.body, asked.seconds = path, body, seconds
        if not self._lost(asked.source, asked.address):
            loop.at(self._delay() + self.slow.get(path, 0.0), self._arrive, asked)
            if self.weather.twice and self.rng.random() < self.weather.twice:
                loop.at(self._delay(), self._arrive, asked)
        loop.at(seconds, self._expire, asked)
        return asked

    def _expire(self, asked: Exchange) -> bool:
        if asked.done or not asked.caller.alive:
            return False
        self.loop.note(asked.caller.name, "timeout", asked.path)
        asked.fail(Unreachable(f"{asked.address}{asked.path} did not answer within {asked.seconds:.1f} s"))
        return True

    def _arrive(self, asked: Exchange) -> None:
        host = self.hosts.get(asked.address)
        if host is None or not host.life.alive:
            self.loop.at(REFUSED_AFTER, self._refuse, asked)
            return
        life = host.life
        if life.frozen_until > self.loop.now:
            self.loop.at(life.frozen_until - self.loop.now, self._arrive, asked)
            return
        self.loop.note(life.name, asked.path, asked.body)
        life.serving[asked] = asked.path
        try:
            if self.refuse == (host, asked.path):
                raise Refused("a newer term has begun", reason="StaleTerm")
            result = host.serve(asked.path, asked.body)
        except WeightSyncError as error:
            self._back(life, asked, None, error)
            return
        if isinstance(result, GeneratorType):
            task = Task(self.loop, life, result)
            task.then(lambda done: self._back(life, asked, done.value, done.error))
        else:
            self._back(life, asked, result, None)

    def reset(self, life: Life) -> None:
        """The host's process ended: its connections are reset."""
        for asked in life.serving:
            self.loop.at(REFUSED_AFTER, self._refuse, asked)
        life.serving.clear()

    @staticmethod
    def _refuse(asked: Exchange) -> bool:
        if asked.done:
            return False
        asked.fail(Unreachable(f"{asked.address}{asked.path}: connection refused"))
        return True

    def _back(self, life: Life, asked: Exchange, value: Any, error: BaseException | None) -> None:
        life.serving.pop(asked, None)
        if asked.done or not asked.caller.alive or self._lost(asked.address, asked.source):
            return
        if error is not None and not isinstance(error, PeerError):
            error = PeerError(f"{asked.address}: {error}")
        self.loop.at(self._delay() + self.slow.get(asked.path, 0.0), self._answered, asked, value, error)

    def deliver(self, address: str, path: str, body: Any) -> None:
        """One more copy of a request; nobody waits for the answer."""
        host = self.hosts.get(address)
        if host is not None and host.life.alive and host.life.frozen_until <= self.loop.now:
            self.loop.note(host.life.name, path, body)
            with suppress(WeightSyncError):
                work = host.serve(path, body)
                if isinstance(work, GeneratorType):
                    Task(self.loop, host.life, work)

    @staticmethod
    def _answered(asked: Exchange, value: Any, error: BaseException | None) -> bool:
        if asked.done:
            return False
        if error is not None:
            asked.fail(error)
        else:
            asked.set(value)
        return True

    def persist(self, way: tuple[Life, str, str], path: str, body: Any, seconds: float) -> Work:
        """call(), again while the peer is unreachable, as PeerClient.persist."""
        until = self.loop.now + seconds
        tries = 0
        while True:
            tries += 1
            try:
                return (yield self.call(way, path, body, seconds))
            except Unreachable:
                if tries >= TRIES or self.loop.now >= until:
                    raise
                yield self.loop.sleep(RETRY_AFTER)
