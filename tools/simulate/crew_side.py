"""The leader's side of an engine of two pods: thin, as drivers/crew.py. Who is there, protocol.crew knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Work
from tools.simulate.memory import ArenaFile
from weightsync.arena import Header
from weightsync.errors import EngineError, PeerError, Refused
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire.v1 import CommitRequest
from weightsync_agent.drivers.crew import check_certificate
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.protocol.crew import Crew

if TYPE_CHECKING:
    from tools.simulate.target_side import EngineAgent

ANSWER = 1.0  # seconds for one


class CrewSide:
    """here: the member as it was looked at, None before; sealed: by grant, what stands in its arena."""

    def __init__(self, agent: EngineAgent) -> None:
        self.agent = agent
        self.crew = Crew()
        self.here: w.MemberHere | None = None
        self.sealed: dict[str, w.SealedRank] = {}
        self.certificate = ""

    @property
    def ranks(self) -> frozenset[int]:
        """Those of the other pod."""
        return frozenset(rank.rank for rank in self.here.ranks) if self.here is not None else frozenset()

    def muster(self) -> None:
        """Go on with the member as it is now. Raises PeerError while it is not there."""
        pod = self.agent.pod
        self.crew.is_of(pod.ranks, pod.nodes)
        lacking = self.crew.lacking(self.agent.loop.now)
        if lacking:
            raise PeerError(lacking)
        now = self.crew.members.get(1)
        if now is None or self.here is None or (now.uid, now.life) != (self.here.uid, self.here.life):
            self.sealed = {}
        self.here = now

    def arena(self, name: str) -> ArenaFile:
        """The file as the engine's process in that pod finds it."""
        member = self.agent.pod.member
        files = [file for each in member.volume.arenas.values() for file in each] if member is not None else []
        found = next((file for file in files if file.name == name), None)
        if found is None:
            raise EngineError(f"arena {name} is not there")
        return found

    def granted(self, grant: str) -> w.SealedRank:
        """What stands under that grant."""
        found = self.sealed.get(grant)
        if found is None:
            raise Refused(f"grant {grant} is not held", reason="GrantClosed")
        return found

    def call(self, path: str, kind: type[w.Call], **fields: Any) -> Work:
        """One request to the member; PeerError where it was not answered, or refused."""
        if self.here is None:
            raise PeerError("no member is known")
        agent, here = self.agent, self.here
        body = kind.model_validate({"leader": agent.pod.uid, "target": here.uid, "life": here.life, **fields})
        way = (agent.life, agent.pod.address, here.address)
        return (yield agent.world.network.call(way, f"/v1/member/{path}", body, ANSWER))

    def holding(self, version: Version, grants: Any, commit: CommitRequest | None, work: Callable[[], Work]) -> Work:
        """Do it while the member keeps its arena sealed as the version, certified."""
        mine = {rank: grant for rank, grant in grants if rank in self.ranks}
        if not mine or self.here is None:
            yield from work()
            return
        try:
            held = yield from self.call("holds", w.Hold, version=version, grants=mine, commit=commit)
            check_certificate(self.here, held, version, mine, commit)
            for sealed in held.ranks:
                self.sealed = {mine[sealed.rank]: sealed}
            yield from work()
        finally:
            self.agent.spawn(self._release(mine))

    def _release(self, grants: dict[int, str]) -> Work:
        try:
            yield from self.call("releases", w.Release, grants=grants)
        except PeerError:
            return

    def certify(self, step: str, grants: dict[int, str]) -> Work:
        """One step of a certification; a new one begins with its first."""
        if self.ranks:
            if step == "Lend":
                self.certificate = self.agent.world.nonce(16)
            mine = {rank: grant for rank, grant in grants.items() if rank in self.ranks}
            yield from self.call("certificates", w.Certify, certificate=self.certificate, step=step, grants=mine)

    def headers(self, journal_ranks: Any) -> dict[int, Header]:
        """Of the arenas that a journal names."""
        found = {}
        for rank in journal_ranks:
            if rank.rank in self.ranks:
                try:
                    found[rank.rank] = self.arena(rank.arena).header
                except EngineError:
                    continue
        return found

    def recovered(self, version: Version, ranks: list[JournalRank]) -> Work:
        """The member's part holds the version, byte for byte."""
        mine = [w.SealedRank.model_validate(rank.model_dump()) for rank in ranks if rank.rank in self.ranks]
        if not self.ranks:
            return True
        if not mine:
            return False
        answer = yield from self.call("recoveries", w.Recover, version=version, ranks=mine)
        for sealed in mine if answer.equal else ():
            self.sealed = {answer.grants[sealed.rank]: sealed}
        return answer.equal

    def apply(self, life: str, refs: Any) -> Work:
        """The hook of all ranks, by one call; what came of the member's its agent says."""
        agent, ids = self.agent, {}
        for arena, rank, grant, root in refs.arenas:
            if rank in self.ranks:
                asked = w.HookRank(rank=rank, arena=arena.name, grant=grant, root=root, incarnation=life)
                answer = yield from self.call("asks", w.HookAsk, op="apply", ranks=(asked,))
                ids = answer.ids
        yield agent.engine.call(agent.life, "apply", refs)
        if not ids:
            return
        try:
            answer = yield from self.call("results", w.HookIds, ids=ids)
        except PeerError as error:
            raise engine_error("MemberSilent", str(error), retryable=True) from error
        if not answer.records:
            raise engine_error("HookSilent", "the member's rank has no result")

    def written(self, life: str) -> bool:
        """A version was let into this process of the member's by a leader that is gone."""
        return self.here is not None and life in self.here.written.values()
