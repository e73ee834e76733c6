"""The leader's side of an engine of several pods: what it asks the others' agents. Who they are: protocol.crew.

A request that a pod did not answer may have had its effect; each can be asked again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import structlog

from weightsync.arena import Header
from weightsync.errors import PeerError, Refused, WeightSyncError
from weightsync.records import WireRecord
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire.v1 import Accepted, CommitRequest
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.hook_post import HookAnswers, LocalPost
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol.crew import Crew

log = structlog.get_logger(__name__)

A = TypeVar("A", bound=WireRecord)
DIGEST_SECONDS = 120.0  # for a member to compare its arenas with what was verified
FIELDS = ("layout", "grant", "root", "incarnation", "digests", "parameters")  # of a request, as the hook names them


class RemoteRank:
    """One rank of another pod. sealed: by grant, what stands in which of its arenas."""

    def __init__(self, here: w.MemberHere, rank: w.MemberRank) -> None:
        self.here = here
        self.rank = rank
        self.sealed: dict[str, w.SealedRank] = {}
        self.versions: dict[str, Version] = {}

    def granted(self, grant: str) -> w.SealedRank:
        """The replica under that grant. Raises Refused where the pod has not said that it holds one."""
        found = self.sealed.get(grant)
        if found is None:
            raise Refused(f"grant {grant} is not held by pod {self.here.uid}", reason="GrantClosed")
        return found

    def grant_of(self, version: Version) -> str:
        """Under which its arena is sealed as that version, as far as is known; "" none."""
        return next((grant for grant, of in self.versions.items() if of == version and grant in self.sealed), "")

    def journal_rank(self, grant: str) -> JournalRank:
        """What a journal must hold of it."""
        return JournalRank.model_validate(self.granted(grant).model_dump(by_alias=True))


class CrewCalls:
    """uid: of the leader's pod; seconds: for one answer."""

    def __init__(self, uid: str, client: PeerClient, seconds: float) -> None:
        self.crew = Crew()
        self.uid = uid
        self._client = client
        self._seconds = seconds
        self.ranks: dict[int, RemoteRank] = {}

    def came(self, here: w.MemberHere) -> None:
        """A member speaks."""
        self.crew.came(here, time.monotonic())

    def lacking(self) -> str:
        """Which pod is waited for; "" none."""
        return self.crew.lacking(time.monotonic())

    def take(self) -> None:
        """Go on with the members as they are now: those that are new know of nothing yet."""
        found: dict[int, RemoteRank] = {}
        for here in self.crew.members.values():
            for rank in here.ranks:
                known = self.ranks.get(rank.rank)
                if known is None or known.rank != rank or (known.here.uid, known.here.life) != (here.uid, here.life):
                    known = RemoteRank(here, rank)
                known.here = here
                found[rank.rank] = known
        self.ranks = found

    def written(self, rank: int) -> str:
        """The process of that rank into which a version was let, as its pod's own journal says; "" none."""
        return self.ranks[rank].here.written.get(rank, "") if rank in self.ranks else ""

    # --- what is asked ---

    def _pods(self, ranks: Mapping[int, Any]) -> list[w.MemberHere]:
        found = {self.ranks[rank].here.uid: self.ranks[rank].here for rank in ranks if rank in self.ranks}
        return list(found.values())

    @staticmethod
    def _of(here: w.MemberHere, values: Mapping[int, Any]) -> dict[int, Any]:
        own = {rank.rank for rank in here.ranks}
        return {rank: value for rank, value in values.items() if rank in own}

    async def _call(
        self, here: w.MemberHere, path: str, answer: type[A], kind: type[w.Call], *, seconds: float = 0, **fields: Any
    ) -> A:
        body = kind.model_validate({"leader": self.uid, "target": here.uid, "life": here.life, **fields})
        return await self._client.call(
            here.address, f"/v1/member/{path}", answer, body, seconds=seconds or self._seconds
        )

    @contextlib.asynccontextmanager
    async def holding(
        self, version: Version, grants: Mapping[int, str], commit: CommitRequest | None = None
    ) -> AsyncIterator[None]:
        """Meanwhile every member keeps these grants' arenas sealed as ``version``.

        commit: the decision by which they are sealed first. Raises PeerError, before anything is entered, where one
        member does not answer with its certificate of that very decision.
        """
        pods = self._pods(grants)
        try:
            await _all(*(self._hold(here, version, self._of(here, grants), commit) for here in pods))
            yield
        finally:
            await self._release(pods, grants)

    async def _hold(
        self, here: w.MemberHere, version: Version, grants: Mapping[int, str], commit: CommitRequest | None
    ) -> None:
        held = await self._call(here, "holds", w.Held, w.Hold, version=version, grants=grants, commit=commit)
        check_certificate(here, held, version, grants, commit)
        for sealed in held.ranks:
            rank = self.ranks[sealed.rank]
            rank.sealed, rank.versions = {grants[sealed.rank]: sealed}, {grants[sealed.rank]: version}

    async def _release(self, pods: list[w.MemberHere], grants: Mapping[int, str]) -> None:
        """A pod that does not answer learns it from the next answer to its own question."""
        for here in pods:
            try:
                await self._call(here, "releases", Accepted, w.Release, grants=self._of(here, grants))
            except WeightSyncError as error:
                log.info("a pod of the engine was not told that the commit has ended", pod=here.uid, why=str(error))

    async def certify(self, certificate: str, step: str, grants: Mapping[int, str]) -> None:
        """One step of a certification, in all members."""
        for here in self._pods(self.ranks):
            mine = self._of(here, grants)
            await self._call(
                here, "certificates", Accepted, w.Certify, certificate=certificate, step=step, grants=mine
            )

    async def headers(self) -> dict[tuple[int, str], Header]:
        """By rank and file, what every member's arenas hold."""
        found: dict[tuple[int, str], Header] = {}
        for here in self._pods(self.ranks):
            answer = await self._call(here, "arenas", w.Arenas, w.AskArenas)
            for a in answer.arenas:
                found[a.rank, a.arena] = Header(a.state, a.nbytes, a.layout, a.program, a.grant, a.version)
        return found

    async def recovered(self, version: Version, ranks: Mapping[int, JournalRank]) -> bool:
        """Every member's part of these holds the version, byte for byte."""
        for here in self._pods(ranks):
            mine = [w.SealedRank.model_validate(rank.model_dump()) for rank in self._of(here, ranks).values()]
            answer = await self._call(
                here, "recoveries", w.Recovered, w.Recover, seconds=DIGEST_SECONDS, version=version, ranks=mine
            )
            if not answer.equal:
                return False
            for sealed in mine:
                grant = answer.grants.get(sealed.rank, "")
                rank = self.ranks[sealed.rank]
                rank.sealed, rank.versions = {grant: sealed}, {grant: version}
        return True

    # --- the hook ---

    async def ask(self, op: str, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """As engines.hook_post: leave requests in the members' volumes."""
        ids: dict[int, str] = {}
        try:
            for here in self._pods(requests):
                mine = [_hook_rank(rank, fields) for rank, fields in self._of(here, requests).items()]
                asked = await self._call(here, "asks", w.HookAsked, w.HookAsk, op=op, ranks=mine)
                ids |= asked.ids
        except BaseException:
            await self.withdraw(dict.fromkeys(requests, ""))  # who did not answer may have it all the same
            raise
        return ids

    async def withdraw(self, ids: Mapping[int, str]) -> None:
        """As engines.hook_post. A request that stays is for a call that is over: the next one replaces it."""
        for here in self._pods(ids):
            try:
                await self._call(here, "withdrawals", Accepted, w.HookIds, ids=self._of(here, ids))
            except WeightSyncError as error:
                log.info("a pod of the engine was not told that a request is over", pod=here.uid, why=str(error))

    async def answers(self, ids: Mapping[int, str]) -> HookAnswers:
        """As engines.hook_post."""
        found = HookAnswers({}, {})
        for here in self._pods(ids):
            mine = self._of(here, ids)
            try:
                answer = await self._call(here, "results", w.HookResults, w.HookIds, ids=mine)
            except PeerError as error:
                sentence = f"pod {here.uid} does not say what came of it: {error}"
                found.failures.update({rank: engine_error("MemberSilent", sentence, retryable=True) for rank in mine})
                continue
            found.records.update(answer.records)
            for rank, failure in answer.failures.items():
                found.failures[rank] = engine_error(failure.reason, failure.message, retryable=failure.retryable)
            for rank in mine.keys() - answer.records.keys() - answer.failures.keys():
                found.failures[rank] = engine_error("HookSilent", f"pod {here.uid} says nothing of rank {rank}")
        return found


class CrewPost:
    """The hook of all ranks, in this pod and in the others."""

    def __init__(self, local: LocalPost, calls: CrewCalls) -> None:
        self._local = local
        self._calls = calls

    def _parts(self, values: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        there = self._calls.ranks
        return {r: v for r, v in values.items() if r not in there}, {r: v for r, v in values.items() if r in there}

    async def ask(self, op: str, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """See engines.hook_post.HookPost. The others' first: they are what may fail."""
        here, there = self._parts(requests)
        ids = await self._calls.ask(op, there)
        try:
            return ids | await self._local.ask(op, here)
        except BaseException:
            await self._calls.withdraw(ids)
            raise

    async def withdraw(self, ids: Mapping[int, str]) -> None:
        """See HookPost."""
        here, there = self._parts(ids)
        await self._local.withdraw(here)
        await self._calls.withdraw(there)

    async def answers(self, ids: Mapping[int, str]) -> HookAnswers:
        """See HookPost."""
        here, there = self._parts(ids)
        mine, theirs = await self._local.answers(here), await self._calls.answers(there)
        return HookAnswers(mine.records | theirs.records, mine.failures | theirs.failures)


def check_certificate(
    here: w.MemberHere, held: w.Held, version: Version, grants: Mapping[int, str], commit: CommitRequest | None
) -> None:
    """Raises Refused unless this is that pod's certificate, of that decision, for all of its ranks."""
    said = (held.uid, held.life, held.version, {rank.rank for rank in held.ranks})
    asked = (here.uid, here.life, version, set(grants))
    decided = commit is None or (held.term, held.coordinator) == (commit.term, commit.coordinator)
    if said != asked or not decided:
        raise Refused(
            f"pod {here.uid} was asked to seal {version.name} and certifies {held.version.name}, of ranks "
            f"{sorted(said[3])}, by {held.coordinator or 'nobody'} in term {held.term}",
            reason="WrongCertificate",
        )


def _hook_rank(rank: int, fields: Mapping[str, Any]) -> w.HookRank:
    """Paths mean something in one pod only: the member puts its own in the place of names."""
    named = {name: fields[name] for name in FIELDS if name in fields}
    for name in ("arena", "program"):
        if name in fields:
            named[name] = str(fields[name])
    return w.HookRank(rank=rank, **named)


async def _all(*work: Any) -> None:
    """Wait for all, also where one fails; then raise the first failure."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
