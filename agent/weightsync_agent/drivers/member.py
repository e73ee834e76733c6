"""The agent beside a pod of an engine that another pod leads: owns its ranks' arenas, obeys the leader.

Runs protocol.engine_member.EngineMember. Grants and receipts come from coordinator and sources as to any engine; what
is sealed, applied and certified is the leader's to say.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from weightsync.announcement import Announcement
from weightsync.errors import Refused, WeightSyncError
from weightsync.wire import members as w
from weightsync.wire.v1 import Accepted, AgentStatus, Grant, GrantRequest, Receipts, ReceiptsAnswer, VoidRequest
from weightsync_agent import failpoints
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.kept import Kept
from weightsync_agent.drivers.kept_term import KeptTerm
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.base import Description, description_problem
from weightsync_agent.engines.hook_files import HookFiles
from weightsync_agent.engines.hook_post import LocalPost
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import BASE, JournalRank, Written
from weightsync_agent.own_pod.base import OwnPod
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import engine_member as m
from weightsync_agent.volume import Volume

log = structlog.get_logger(__name__)

WRITTEN = "written"  # the file of records.Written in the volume


class MemberDriver:
    """node: this pod's place in its engine; leader: host:port of the leader's agent."""

    def __init__(
        self,
        uid: str,
        address: str,
        *,
        node: int,
        leader: str,
        client: PeerClient,
        volume: Volume,
        own_pod: OwnPod,
        make_ranks: Callable[[Callable[[], Any]], EngineRanks],
        probe_seconds: float,
        stall_seconds: float,
        side: Side,
    ) -> None:
        self.uid = uid
        self.life = secrets.token_hex(8)  # of this agent: another knows nothing of its grants
        self.machine = m.EngineMember(uid, self.life)
        self._term = KeptTerm(volume.directory, "engine")
        self.fence = self._term.fence()
        self._address = address
        self._node = node
        self._leader = leader
        self._client = client
        self._volume = volume
        self._own_pod = own_pod
        self._ranks = make_ranks(lambda: self.machine.engine.version if self.machine.engine is not None else None)
        self._post = LocalPost(HookFiles(volume.directory))
        self._written = Kept(StateFile(volume.directory / WRITTEN, Written), "which processes were written to")
        self._opened = range(0)
        self._missing = ""
        self._problems: dict[int, str] = {}  # by rank, why the engine's process here cannot be fed
        self._side = side
        self._probe = probe_seconds
        self._stall = stall_seconds
        self._silent = ""  # what was last said of a leader that does not answer
        self._holding = asyncio.Lock()  # one hold, release, certificate or answer of the leader at a time
        self._background = Background("member")

    @property
    def targets(self) -> dict[int, RankTarget]:
        """Every rank of this pod, by rank."""
        return self._ranks.targets

    # --- being there ---

    async def run(self) -> None:
        """Until cancelled: tell the leader that this pod is there, and learn what it is part of."""
        self._tell()
        while True:
            await self._tell_leader()
            await asyncio.sleep(self._probe)

    async def _tell_leader(self) -> None:
        asked_at = time.monotonic()
        try:
            engine = await self._client.call(
                self._leader, "/v1/members", w.EngineOf, self._here(), seconds=self._stall
            )
        except WeightSyncError as error:
            if str(error) != self._silent:
                log.info("the engine's leader does not answer (yet)", leader=self._leader, why=str(error))
            self._silent = str(error)
            return
        self._silent = ""
        async with self._holding:  # what it gives free must not be what a hold takes up meanwhile
            await self._feed(m.LeaderAnswered(engine, asked_at))
        share = range(engine.ranks[0], engine.ranks[-1] + 1) if engine.ranks else range(0)
        if share and share != self._opened:
            self._opened = share
            self._background.spawn(self._open(share))

    def _here(self) -> w.MemberHere:
        written = self._written.value
        return w.MemberHere(
            uid=self.uid,
            life=self.life,
            address=self._address,
            node=self._node,
            ranks=tuple(
                w.MemberRank(
                    rank=rank,
                    layout=target.program.layout.digest,
                    program=target.program.digest,
                    arenas=tuple(arena.path.name for arena in target.arenas),
                )
                for rank, target in sorted(self.targets.items())
                if rank in self._opened
            ),
            written=written.processes if written is not None else {},
        )

    async def _open(self, share: range) -> None:
        """Arenas for these ranks, once their copy programs are there. A failure is tried again."""
        try:
            await self._ranks.open(await self._volume.wait_for_programs(share, self._lacks))
        except WeightSyncError as error:
            self._lacks(str(error))
            self._opened = range(0)
            raise
        self._missing = ""
        self._announce()

    def _lacks(self, sentence: str) -> None:
        log.warning("the engine cannot be fed", why=sentence)
        self._missing = sentence
        self._announce()

    async def _feed(self, event: object) -> None:
        before = self.machine.state
        for action in self.machine.handle(event, time.monotonic()):
            match action:
                case m.LetGo(grants):
                    for rank, grant in grants:
                        await self._let_go(rank, grant)
                case m.TakeBack():
                    for target in self.targets.values():
                        if target.is_lent:
                            await target.returned()
                case m.Tell():
                    self._tell()
                case _:
                    raise TypeError(f"no such action: {action!r}")
        if self.machine.state is not before:
            log.info("member", was=before.name, now=self.machine.state.name, on=type(event).__name__)

    async def _let_go(self, rank: int, grant: str) -> None:
        await self._post.withdraw({rank: ""})  # a call that the engine runs late must not find it
        target = self.targets.get(rank)
        if target is not None:
            await target.release(grant)

    def _tell(self) -> None:
        """Announce; what the agent before this one announced stands until ranks are known (drivers.engine)."""
        if self.targets or self._own_pod.announcement is not None or not self.fence.term:
            self._announce()

    def _announce(self) -> None:
        engine, ranks = self.machine.engine, self._ranks
        there = engine is not None and bool(self.targets) and set(engine.ranks) == set(self.targets)
        if engine is not None:
            self._own_pod.set_gate(engine.gate, "Current" if engine.gate else "EngineNotCurrent")
        self._own_pod.announce(
            Announcement(
                address=self._address,
                incarnation=engine.incarnation if engine is not None else "",
                ready=engine is not None and engine.ready and there,
                targets=ranks.announced(),
                engine_ranks=engine.engine_ranks if engine is not None else 0,
                checkpoint=ranks.checkpoint,
                replica_bytes=ranks.replica_bytes,
                devices=self._side.devices,
                no_device=self._side.why[:512],
                refused=(next(iter(self._problems.values()), "") or self._missing)[:1024],
            )
        )

    # --- what coordinator and sources ask ---

    def _obey(self, term: int, coordinator: str) -> None:
        self.fence.raise_to(term, coordinator)
        self._term.keep(self.fence)

    async def grant(self, request: GrantRequest) -> Grant:
        """A coordinator's handshake with one rank."""
        if request.target not in ("", self.uid):
            raise Refused(f"pod {request.target} is meant, and this is {self.uid}", reason="WrongPod")
        self._obey(request.term, request.coordinator)
        self.fence.hear(request.sync)
        self.machine.check_grantable()
        grant = await self._target(request.rank).grant(request, self.fence)
        await failpoints.reach("target", "handshake")
        return grant

    def _target(self, rank: int) -> RankTarget:
        found = self.targets.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    async def void(self, request: VoidRequest) -> Accepted:
        """Writers of a grant never got an order."""
        self.fence.check(request.term, request.coordinator)
        await self._target(request.rank).void(request)
        return Accepted()

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """A writer's buckets are terminal."""
        self.fence.check(request.term)
        return await self._target(request.rank).receipts(request)

    def status(self) -> AgentStatus:
        """What this pod's ranks are part of, as its leader said last."""
        engine = self.machine.engine
        return AgentStatus(
            uid=self.uid,
            term=self.fence.term,
            incarnation=engine.incarnation if engine is not None else "",
            ready=engine is not None and engine.ready,
            version=engine.version.name if engine is not None and engine.version is not None else "",
            gate=engine is not None and engine.gate,
            ranks=tuple(target.status() for target in self.targets.values()),
        )

    # --- what the leader asks ---

    async def hold(self, request: w.Hold) -> w.Held:
        """Seal, where it was decided, and keep. The certificate echoes the decision."""
        self.machine.check_call(request)
        commit = request.commit
        if commit is not None:
            self._obey(commit.term, commit.coordinator)
        async with self._holding:
            if set(request.grants) != set(self.targets):
                raise Refused(
                    f"ranks {sorted(request.grants)} are to be held, here are {sorted(self.targets)}",
                    reason="RanksDiffer",
                )
            await self._feed(m.Released())  # of a commit, or a certificate, that the leader has given up
            held = await self._hold(request)
            return w.Held(
                uid=self.uid,
                life=self.life,
                term=commit.term if commit is not None else self.fence.term,
                coordinator=commit.coordinator if commit is not None else self.fence.coordinator,
                version=request.version,
                ranks=held,
            )

    async def _hold(self, request: w.Hold) -> tuple[w.SealedRank, ...]:
        """To be called with ``_holding`` held. Either all ranks are kept, or none."""
        kept: list[tuple[int, str]] = []
        try:
            for rank, grant in request.grants.items():
                target, held = self.targets[rank], grant
                if request.commit is not None:
                    held = await target.seal(request.commit)
                else:
                    await target.keep(grant)
                kept.append((rank, held))
                if target.granted(grant).machine.version != request.version or held != grant:
                    raise Refused(
                        f"rank {rank}: grant {grant} is not sealed as {request.version.name}", reason="WrongVersion"
                    )
        except BaseException:
            for rank, grant in kept:
                await self._let_go(rank, grant)
            raise
        await self._feed(m.HoldAsked(request.version, tuple(sorted(request.grants.items()))))
        return tuple(
            w.SealedRank.model_validate(self.targets[rank].granted(grant).journal_rank().model_dump())
            for rank, grant in sorted(request.grants.items())
        )

    async def release(self, request: w.Release) -> Accepted:
        """The commit has ended."""
        self.machine.check_call(request)
        async with self._holding:
            await self._feed(m.Released(tuple(sorted(request.grants.items()))))
        return Accepted()

    def arenas(self, request: w.AskArenas) -> w.Arenas:
        """What every arena's header says."""
        self.machine.check_call(request)
        found = []
        for rank, target in sorted(self.targets.items()):
            for each in target.arenas:
                h = each.arena.header
                found.append(
                    w.ArenaOf(rank=rank, arena=each.path.name, state=h.state, nbytes=h.nbytes, layout=h.layout,
                              program=h.program, grant=h.grant, version=h.version)
                )  # fmt: skip
        return w.Arenas(arenas=tuple(found))

    async def recover(self, request: w.Recover) -> w.Recovered:
        """Take over what an agent before this one left, where it is equal."""
        self.machine.check_call(request)
        grants: dict[int, str] = {}
        for sealed in request.ranks:
            rank = JournalRank.model_validate(sealed.model_dump())
            target = self._target(rank.rank)
            if not await target.recover(rank, request.version):
                return w.Recovered(equal=False)
            found = target.named(rank.arena)
            grants[rank.rank] = found.arena.header.grant if found is not None else ""
        return w.Recovered(equal=True, grants=grants)

    async def certify(self, request: w.Certify) -> Accepted:
        """One step of a certification of the engine on its own checkpoint."""
        self.machine.check_call(request)
        async with self._holding:
            self.machine.check_certificate(request.certificate, request.step)
            if request.step == "Lend":
                await self._feed(m.LendAsked(request.certificate))
            elif request.step == "Return":
                await self._feed(m.Released())
            for rank, target in self.targets.items():
                match request.step:
                    case "Lend":
                        await target.lend()
                    case "Fill":
                        self._lent(target).fill(request.grants[rank])
                    case "Seal":
                        self._lent(target).seal(request.grants[rank], BASE)
        return Accepted()

    @staticmethod
    def _lent(target: RankTarget) -> Any:
        first = target.arenas[0]
        if not target.is_lent:
            raise Refused(f"rank {target.program.rank}: its arena is not lent", reason="NotHeld")
        return first.arena

    # --- the hook ---

    async def ask(self, request: w.HookAsk) -> w.HookAsked:
        """Leave the leader's requests, with this pod's own paths; into memory only from what is held or lent."""
        self.machine.check_call(request)
        fields = {each.rank: self._fields(request.op, each) for each in request.ranks}
        if request.op == "apply" and self._check_apply(request.ranks):
            known = self._written.value.processes if self._written.value is not None else {}
            self._written.keep(Written(processes=known | {each.rank: each.incarnation for each in request.ranks}))
        return w.HookAsked(ids=await self._post.ask(request.op, fields))

    def _check_apply(self, ranks: tuple[w.HookRank, ...]) -> bool:
        """Whether it is a version; else the engine's own checkpoint, for its certificate. Raises Refused: neither."""
        for root in {each.root for each in ranks}:
            self.machine.check_apply(root, {each.rank: each.grant for each in ranks})
        return any(each.root != BASE.root for each in ranks)

    def _fields(self, op: str, asked: w.HookRank) -> Mapping[str, Any]:
        target = self._target(asked.rank)
        if op == "describe":
            return {}
        arena = target.named(asked.arena)
        if arena is None or asked.program != target.program.digest or asked.layout != target.program.layout.digest:
            raise Refused(
                f"rank {asked.rank} has no arena {asked.arena!r} of program {asked.program}", reason="LayoutMismatch"
            )
        path = self._ranks.program_path(target.program.digest)
        found: dict[str, Any] = asked.model_dump(include={"layout", "grant", "root", "incarnation"})
        found |= {"arena": str(arena.path), "program": str(path)}
        if op == "readback":
            found |= {"digests": asked.digests, "parameters": list(asked.parameters)}
        return found

    async def withdraw(self, request: w.HookIds) -> Accepted:
        """It is too late for these."""
        self.machine.check_call(request)
        await self._post.withdraw(request.ids)
        return Accepted()

    async def results(self, request: w.HookIds) -> w.HookResults:
        """What came of them. Of a description the parameters are compared here, and stay here."""
        self.machine.check_call(request)
        found = await self._post.answers(request.ids)
        records = {rank: self._compared(rank, record) for rank, record in found.records.items()}
        failures = {
            rank: w.HookFailure(reason=error.reason, message=str(error), retryable=error.retryable)
            for rank, error in found.failures.items()
        }
        return w.HookResults(records=records, failures=failures)

    def _compared(self, rank: int, record: dict[str, Any]) -> dict[str, Any]:
        if record.get("op") != "describe":
            return record
        found = Description.model_validate(record)
        problem = description_problem(found.model_copy(update={"repacked": ""}), self._target(rank).program.layout)
        before = dict(self._problems)
        self._problems.pop(rank, None)
        if problem:
            self._problems[rank] = problem
        if self._problems != before:
            self._announce()
        return {**record, "parameters": [], "problem": problem}

    async def close(self) -> None:
        """End the workers; arenas and journal stay."""
        await self._background.close()
        await self._ranks.close()
