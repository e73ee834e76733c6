"""An engine: answers from its memory unless it is paused; control calls are taken one after the other.

A call may fail without or after having had its effect; the process may fall silent (calls wait, callers time out) or
end, and another begins with the base checkpoint, unpaused.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Future, Life, Loop
from tools.simulate.memory import BASE, ArenaFile, Content
from weightsync.arena import ArenaState
from weightsync.errors import EngineError
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.protocol.engine_leader import ANOTHER_LIFE

if TYPE_CHECKING:
    from tools.simulate.world import World

BASE_NAME = "default"
CALL = 0.003
HOOK = frozenset({"apply", "snapshot", "readback"})
COPY = 0.004  # seconds that one rank's copy takes, at most


class EngineMemory:
    """One rank's parameters, for others to write to, and what the world knows of them. Stands for an arena's file."""

    def __init__(self, engine: Serving, rank: int) -> None:
        self.engine = engine
        self.rank = rank
        self.grant = ""  # the last that was given
        self.verified: set[int] = set()  # buckets, in that grant

    @property
    def content(self) -> list[Content]:
        """What stands in it."""
        return self.engine.memory[self.rank]

    def put(self, bucket: int, piece: int, step: int) -> None:
        """A piece's bytes come in."""
        engine, old = self.engine, self.content[bucket]
        engine.in_place = engine.mode == "InPlace"
        self.content[bucket] = (*old[:piece], step, *old[piece + 1 :])
        engine.ledger.engine_changed(engine)


class Serving:
    """One engine's processes, life after life. direct: it registers its parameters, to be written to."""

    def __init__(self, name: str, world: World, ranks: int, *, direct: bool = False) -> None:
        self.name = name
        self.direct = direct
        self.wires = world.wires
        self.process: Any = None  # that receives, where it is direct
        self.loop: Loop = world.loop
        self.rng = world.rng
        self.ledger = world.ledger
        self.blank: Content = (BASE,) * world.pieces
        self.ranks = ranks
        self.buckets = len(world.owners)
        self.number = 0
        self.alive = False
        self.silent_until = 0.0
        self.slow_until = 0.0  # its calls take nearly as long as their callers wait
        self.repacks = False  # what was applied is not what can be read back
        self.fail_calls: deque[tuple[str, bool]] = deque()  # (operation, "" any; whether it has its effect)
        self.free_at = 0.0
        self.agent: Any = None  # the agent beside it, for the ledger
        self.begin_life()

    # --- its processes ---

    def begin_life(self) -> None:
        """A process starts."""
        self.number += 1
        self.alive = True
        self.paused = False
        self.mode = ""
        other = self.number > 1 and self.rng.random() < 0.3  # it was started from another checkpoint
        self.name_shown = self.ledger.base(f"base-{self.number}" if other else BASE_NAME)
        self.memory: list[list[Content]] = [[self.blank] * self.buckets for _ in range(self.ranks)]
        self.cached: int | None = BASE  # what the KV cache was computed with; None: it is empty
        self.in_place = False
        self.free_at = 0.0
        self.applying = False
        if self.direct:
            self.process = self.wires.worker([EngineMemory(self, rank) for rank in range(self.ranks)])
            self.process.dead.then(lambda _, number=self.number: self._receiver_killed(number))
        self.ledger.engine_begins(self)

    def end_life(self) -> None:
        """Kill -9."""
        self.alive = False
        if self.process is not None:
            self.process.kill()
        self.number += 1  # what waits for the old one finds another
        self.loop.note(self.name, "engine dies")

    def _receiver_killed(self, number: int) -> None:
        """Whoever kills what receives the bytes kills the engine; it is started again."""
        if self.alive and number == self.number:
            self.end_life()
            self.loop.at(3.5, self.agent.start_engine)

    @property
    def incarnation(self) -> str:
        """As the hook would describe it."""
        return f"{self.name}.{self.number}"

    @property
    def answers(self) -> bool:
        """A request would be answered from its memory."""
        return self.alive and not self.paused

    # --- control calls ---

    def call(self, caller: Life, operation: str, argument: Any = None, *, seconds: float = 1.0) -> Future:
        """One call: EngineError where it failed or took too long; then it may have had its effect, or will have."""
        loop, answer = self.loop, Future(self.loop)
        if not self.alive:
            loop.at(CALL, self._gone, answer)
            return answer
        delay = 0.4 + 0.5 * self.rng.random() if loop.now < self.slow_until else self.rng.random() * CALL
        at = max(loop.now + 0.0005 + delay, self.free_at, self.silent_until)
        self.free_at = at
        loop.at(at - loop.now, self._run, self.number, answer, operation, argument)
        loop.at(seconds, self._expire, answer, caller, operation)
        return answer

    @staticmethod
    def _gone(answer: Future) -> None:
        answer.fail(EngineError("connection refused"))

    def _expire(self, answer: Future, caller: Life, operation: str) -> bool:
        if answer.done or not caller.alive:
            return False
        self.loop.note(self.name, "engine call timed out", operation)
        answer.fail(EngineError(f"{operation} was not answered in time"))
        return True

    def _run(self, number: int, answer: Future, operation: str, argument: Any) -> bool:
        if number != self.number or not self.alive:
            if answer.done:
                return False
            answer.fail(EngineError("connection reset"))
            return True
        effect, works = True, True
        if self.fail_calls and self.fail_calls[0][0] in {"", operation}:
            works = False
            effect = self.fail_calls.popleft()[1]
        if operation in HOOK and argument.life not in {"", self.incarnation}:
            answer.fail(engine_error(ANOTHER_LIFE, f"{argument.life} was meant, {self.incarnation} is here"))
            return True
        if operation == "apply":
            self._apply(number, answer, argument, effect, works)
            return True
        result: Any = None
        if effect:
            if operation not in {"name", "describe", "seed", "snapshot", "readback"}:
                self.loop.note(self.name, operation, argument if isinstance(argument, str) else "")
            try:
                result = getattr(self, f"_{operation}")(argument)
            except EngineError as error:
                answer.fail(error)
                return True
            self.ledger.engine_changed(self)
        if works:
            answer.set(result)
        else:
            self.loop.note(self.name, "engine call fails", (operation, "with effect" if effect else "without"))
            answer.fail(EngineError(f"{operation} failed"))
        return True

    def _name(self, _: Any) -> str:
        return self.name_shown

    def _describe(self, _: Any) -> str:
        return self.incarnation

    def _seed(self, _: Any) -> list[str]:
        """By rank, the session behind which its parameters are."""
        return list(self.process.arenas)

    def _ready(self, _: Any) -> None:
        if self.paused:
            raise EngineError("no token: it is paused")

    def _pause(self, mode: str) -> None:
        self.paused, self.mode = True, mode
        if mode == "Abort":
            self.cached = None  # nothing waits, and the pause's own flush has dropped the rest

    def _resume(self, _: Any) -> None:
        self.paused = False

    def _set_version(self, name: str) -> None:
        self.name_shown = name

    def _begin(self, _: Any) -> None:
        return None

    def _end(self, _: Any) -> None:
        return None

    def _flush(self, _: Any) -> None:
        self.cached = None

    # --- the hook ---

    def _snapshot(self, refs: Any) -> None:
        """The parameters go into the arenas."""
        for arena, rank, _, _ in refs.arenas:
            arena.content[:] = self.memory[rank]

    def _readback(self, refs: Any) -> bool:
        """Whether the parameters are the arenas, byte for byte."""
        return not self.repacks and all(self.memory[rank] == arena.content for arena, rank, _, _ in refs.arenas)

    def _apply(self, number: int, answer: Future, refs: Any, effect: bool, works: bool) -> None:
        """Each rank checks its arena's header, then copies; nobody can stop it."""
        todo: deque[tuple[ArenaFile, int, tuple[int, int]]] = deque()
        arenas = [ref for ref in refs.arenas if self.agent.finds(ref[1])]
        for arena, rank, grant, root in arenas:
            header = arena.header
            if header.state is not ArenaState.SEALED or header.grant != grant or header.version.root != root:
                answer.fail(EngineError(f"rank {rank}: the arena is not sealed as asked"))
                return
        if effect:
            self.loop.note(self.name, "apply")
            self.ledger.apply_begins(self, arenas)
            self.in_place = self.mode == "InPlace"
            for arena, rank, _, _ in arenas:
                parts = [(b, b + 1) for b in range(self.buckets)] if self.ranks == 1 else [(0, self.buckets)]
                todo.extend((arena, rank, part) for part in parts)
        end = len(todo) if works else self.rng.randint(0, len(todo))
        self.free_at = self.loop.now + COPY * (end + 1)
        self._next(number, answer, todo, end, works)

    def _next(self, number: int, answer: Future, todo: Any, left: int, works: bool) -> bool:
        if number != self.number or not self.alive:
            if answer.done:
                return False
            answer.fail(EngineError("connection reset"))
            return True
        if left == 0:
            if works:
                for rank in range(self.ranks):
                    self.agent.hook_done(rank)
                answer.set(None)
            else:
                self.loop.note(self.name, "engine call fails", "apply")
                answer.fail(EngineError("apply failed"))
            return True
        self._copy(*todo.popleft())
        self.ledger.engine_changed(self)
        self.loop.at(self.rng.random() * COPY, self._next, number, answer, todo, left - 1, works)
        return True

    def _copy(self, arena: ArenaFile, rank: int, part: tuple[int, int]) -> None:
        self.ledger.engine_written(self, arena)
        self.memory[rank][slice(*part)] = arena.content[slice(*part)]
