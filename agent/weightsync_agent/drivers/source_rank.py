"""One trainer rank: what its Publisher and the coordinator ask of it. Arenas and orders are SourceRunner's."""

import asyncio
import time
from collections.abc import Callable, Container

import structlog

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.buckets import Bucket, assign
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, WeightSyncError
from weightsync.plan import Plan
from weightsync.wire import local
from weightsync.wire.v1 import Accepted, OrderEnd, PublishAnswer, PublishOutcome, SyncOrder, WriterId
from weightsync_agent import failpoints
from weightsync_agent.arenas.files import SourceArenas
from weightsync_agent.arenas.record import SealedRecord
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.kept_term import KeptTerm
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.drivers.source_coordinator import SourceCoordinator
from weightsync_agent.drivers.source_publish import Part, Publish, Publishes, Shard, cut_part, told
from weightsync_agent.drivers.source_runner import SourceRunner
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Pairing
from weightsync_agent.observability import metrics
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import source_events as s

log = structlog.get_logger(__name__)


class SourceRank:
    """See the module. plan: the newest plan, None before the first, which ``planned`` tells of; count: arenas per
    program.
    """

    def __init__(
        self,
        who: SourceRankRecord,
        uid: str,
        *,
        plan: Callable[[], Plan | None],
        planned: asyncio.Event,
        client: PeerClient,
        programs: Programs,
        arenas: SourceArenas,
        pairing: StateFile[Pairing],
        count: int,
        start: StartWorker,
        term: KeptTerm,
        void: Container[str] = frozenset(),
    ) -> None:
        self.who = who
        self.writer = WriterId(uid=uid, rank=who.rank)
        self.publishes = Publishes()
        self._planned = planned
        self._patience = ("", 0.0)  # a Publisher's nonce, and until when its publishes wait for the first plan
        self._programs = programs
        self._arenas = arenas
        self._coordinator = SourceCoordinator(self.writer, plan, client, pairing)
        self.runner = SourceRunner(
            self.writer,
            lambda: self.who,
            arenas=arenas,
            count=count,
            publishes=self.publishes,
            coordinator=self._coordinator,
            client=client,
            start=start,
            term=term,
            void=void,
        )
        self._shards: dict[str, Shard] = {}
        self._background = Background(f"source {who.rank}")

    def recover(self, records: list[SealedRecord]) -> None:
        """Once, before anything else: what a former life of the agent sealed for this rank."""
        self.runner.recover(records)

    async def renew(self, who: SourceRankRecord) -> None:
        """Another Publisher took the rank over: what the former one said of its names holds no longer.

        What the former one began and did not end is given up: nobody will fill those arenas any more.
        """
        if who.nonce != self.who.nonce:
            self._shards.clear()
        self.who = who
        for publish in self.publishes.all():
            if publish.request.nonce != who.nonce and not publish.copied and publish.trouble is None:
                message = f"the trainer ended in publish {publish.request.sequence}, before all was copied"
                self._break(publish, "TrainerRestarted", message)
                self._background.spawn(self._tell_trouble(publish))

    # --- the Publisher's side ---

    async def begin(self, request: local.BeginRequest) -> local.BeginAnswer:
        """publish() was called: choose arenas, join the other ranks in the background."""
        while (again := self.publishes.begun(request)) is not None:  # the answer was lost, not the call
            await again.begun.wait()
            if self.publishes.get(again.id) is again:
                again.check()
                return local.BeginAnswer(id=again.id, replicas=await self._replicas(again))
        self._void_former(request.nonce)
        publish = Publish(request)
        self.publishes.keep(publish)
        try:
            replicas = await self._take(publish)
        except BaseException:
            self.publishes.drop(publish)
            self.runner.feed(s.Broken(publish.id, "NotBegun", f"publish {request.sequence} was not begun"))
            publish.begun.set()
            raise
        publish.begun.set()
        self._background.spawn(self._join(publish))
        return local.BeginAnswer(id=publish.id, replicas=replicas)

    def _void_former(self, nonce: str) -> None:
        """What a former Publisher copied, and has no name yet, will get none: its partners began anew with us.

        The coordinator voids it when it hears of our publish; which may be waiting for the very arena that it holds.
        """
        for publish in self.publishes.all():
            over = publish.trouble is not None or publish.outcome.done()
            if publish.request.nonce != nonce and publish.version is None and not over:
                self._break(publish, "TrainerRestarted", "another Publisher published before all ranks had")

    async def _take(self, publish: Publish) -> tuple[local.Replica, ...]:
        for digest in self._coordinator.wanted():
            publish.parts[digest] = Part(await self._programs.get(digest))
        publish.check()
        publish.ready()  # where nothing is served, nothing is waited for
        self.runner.feed(s.Begin(publish.id, tuple(publish.parts)))
        await publish.changed.wait()
        publish.check()
        return await self._replicas(publish)

    async def _replicas(self, publish: Publish, *, empty: bool = False) -> tuple[local.Replica, ...]:
        """empty: also those of which nothing is to be filled, since their arenas were named before."""
        replicas = []
        for digest, part in publish.parts.items():
            known = self._shards.get(digest)
            if known is not None:
                await self._cut(publish, part, known)
            if part.replica is None or (part.buckets == () and not empty):
                continue  # this stage owns nothing of the program: there is nothing to fill
            replicas.append(
                local.Replica(
                    program=digest,
                    program_path=str(self._programs.path(digest)),
                    arena_path=str(self._arenas.path(part.replica.key)),
                    buckets=part.buckets or (),
                    owned=tuple(sorted(part.owned)),
                )
            )
        return tuple(replicas)

    async def _cut(self, publish: Publish, part: Part, known: Shard) -> None:
        limit = self._coordinator.bucket_limit(part.program.layout.nbytes)
        first = await cut_part(part, known, limit, self._arenas)
        publish.check()  # it may be over by now
        if first:
            self.runner.feed(s.Cut(publish.id, part.program.digest, part.buckets or ()))

    async def names(self, id_: str, report: local.NamesReport) -> local.NamesReply:
        """The first publish of a life told which names the stage has: it learns which of them it owns.

        Several stages meet over that. A program which some of them do not fill, since their plan is another, is left
        out: nobody would come, and the version serves no engine with it.
        """
        publish = self.publishes.find(id_)
        names = frozenset(report.names)
        for digest, part in publish.parts.items():
            if digest in self._shards:
                continue
            if self.who.stages > 1:
                await publish.named.wait()
                if publish.version is None or not publish.version.holds(digest):
                    self._leave_out(publish, part)
                    continue
            life = publish.version.life if publish.version is not None else ""
            self._shards[digest] = await self._tell_names(part.program, names, life)
        publish.check()
        return local.NamesReply(replicas=await self._replicas(publish, empty=True))

    def _leave_out(self, publish: Publish, part: Part) -> None:
        part.buckets = ()
        digest = part.program.digest
        self.runner.feed(s.Broken(publish.id, "ProgramNotFilled", "not every stage fills it", program=digest))

    async def _tell_names(self, program: CopyProgram, names: frozenset[str], life: str) -> Shard:
        """Which of the stage's names it owns of a program: a trainer's only stage owns all."""
        mine, stage = names & {tensor.name for tensor in program.tensors}, self.who.stage
        if self.who.stages == 1:
            return Shard(assign(program, {stage: mine})[stage], names)
        return Shard(await self._coordinator.names(self.who, program.digest, mine), names, life)

    async def _retell(self, version: PublishAnswer) -> None:
        """The coordinator began a new life: it knows no names, and a source that restarts needs everybody's."""
        for digest, shard in list(self._shards.items()):
            if shard.life == version.life or not version.holds(digest):
                continue  # told before; or not all stages would come
            before, shard.life = shard.life, version.life
            try:
                again = await self._tell_names(await self._programs.get(digest), shard.names, version.life)
            except BaseException:
                shard.life = before  # the next publish tells them
                raise
            if self._shards.get(digest) is shard:
                self._shards[digest] = again

    def filled(self, id_: str, report: local.Filled) -> None:
        """Buckets are full: digest them, and write them as soon as an order is there."""
        publish = self.publishes.find(id_)
        known, unread = told(publish, report)
        part = publish.part(report.program)
        owned = self.runner.machine.shelf.owned(publish.id, report.program)
        if not owned or (not known and not unread):
            return  # told before, or of a publish that is over: its arena may be filled with another by now
        task = asyncio.create_task(self._digest(publish, part, known, unread))
        publish.digesting.add(task)
        task.add_done_callback(publish.digesting.discard)

    async def _digest(self, publish: Publish, part: Part, known: list[BucketDigest], unread: list[Bucket]) -> None:
        """Take the Publisher's digests; have the worker read what came in another order than the arena's."""
        found = list(known)
        if unread and part.replica is not None:
            try:
                found += await self.runner.digest(part.replica, unread)
            except BaseException:  # told again, they are tried again
                part.told -= {bucket.offset for bucket in known} | {bucket.offset for bucket in unread}
                raise
        metrics.BYTES_FILLED.inc(sum(bucket.nbytes for bucket in found))
        self.runner.feed(s.Digested(publish.id, part.program.digest, tuple(found)))

    async def copied(self, id_: str) -> None:
        """Everything is full: the trainer may change its tensors. Bytes go on being written from the arenas."""
        publish = self.publishes.find(id_)
        if publish.digesting:
            await asyncio.gather(*publish.digesting)
        lacking = self.runner.machine.lacks(publish.id)
        if lacking:
            raise InputError(f"publish {id_}: program {lacking} has buckets that were never filled")
        if not publish.copied:  # it may be told twice
            metrics.FILL_SECONDS.observe(time.monotonic() - publish.called)
        publish.copied = True
        self.runner.feed(s.Copied(publish.id))

    async def failed(self, id_: str, failure: local.PublishFailure) -> None:
        """The trainer's part is wrong: that version will never be whole, for nobody."""
        publish = self.publishes.find(id_)
        self._break(publish, failure.reason, failure.message)
        await self._tell_trouble(publish)

    def _break(self, publish: Publish, reason: str, message: str) -> None:
        publish.trouble = (reason, message)
        publish.ready()
        self.runner.feed(s.Broken(publish.id, reason, message))

    async def _tell_trouble(self, publish: Publish) -> None:
        if publish.version is not None and publish.trouble is not None:
            await self._coordinator.trouble(publish.version, *publish.trouble)

    async def outcome(self, id_: str, wait: float) -> PublishOutcome:
        """Long poll: ended False where it has not ended within ``wait`` seconds."""
        publish = self.publishes.find(id_)
        try:
            return await asyncio.wait_for(asyncio.shield(publish.outcome), wait)
        except TimeoutError:
            return PublishOutcome(ended=False)

    # --- joining the other ranks ---

    async def _join(self, publish: Publish) -> None:
        """Register with the coordinator, learn the version, then wait for its outcome."""
        outcome = PublishOutcome(ended=True, reason="SourceFailed", message="the agent's own error; see its log")
        try:
            outcome = await self._follow(publish)
        except (WeightSyncError, TimeoutError) as error:
            reason = error.reason if isinstance(error, WeightSyncError) else "DeadlineExceeded"
            log.warning("publish without an outcome", rank=self.who.rank, why=str(error))
            outcome = PublishOutcome(ended=True, reason=reason, message=str(error))
        finally:  # whatever else was raised: the trainer and the next publish wait for an outcome
            publish.outcome.set_result(outcome)
            publish.named.set()
            self.runner.feed(s.Settled(publish.id, None if outcome.reason else outcome.version))

    async def _follow(self, publish: Publish) -> PublishOutcome:
        await self._first_plan(publish.request.nonce)
        plan = self._coordinator.plan()
        if plan is None or not plan.coordinator:
            rank = f"rank {self.who.rank} of {self.who.world_size}, pod {self.writer.uid}"
            message = f"{rank}: no plan names it: no WeightSync selects the pod, or its agent could not read it yet"
            return PublishOutcome(ended=True, reason="NoTargets", message=message)
        answer = await self._coordinator.publish(self.who, publish.request, publish.parts)
        publish.version = answer
        publish.named.set()
        self.runner.feed(s.Named(publish.id, answer.lineage, answer.number))
        if self.who.stages > 1 and any(shard.life != answer.life for shard in self._shards.values()):
            self._background.spawn(self._retell(answer))
        if publish.trouble is not None:
            await self._tell_trouble(publish)
        return await self._coordinator.outcome(answer, self._seen)

    async def _first_plan(self, nonce: str) -> None:
        """Until there is one, as long as other ranks wait for this one, which may have theirs: they come one by one.

        Only from a Publisher's first call on: where nobody plans for it, its steps are not held up.
        """
        if self.who.world_size == 1 or self._planned.is_set():
            return
        now = asyncio.get_running_loop().time()
        if self._patience[0] != nonce:
            self._patience = nonce, now + self._coordinator.deadline()
        if now >= self._patience[1]:
            return
        try:
            async with asyncio.timeout_at(self._patience[1]):
                await self._planned.wait()
        except TimeoutError:
            log.warning("no plan names this trainer; its publishes end at once", rank=self.who.rank)

    def _seen(self, outcome: PublishOutcome) -> None:
        """A coordinator may name the decided version before every engine has its outcome."""
        if outcome.version is not None and not outcome.reason:
            self.runner.feed(s.Decided(outcome.version))

    # --- the coordinator's side ---

    async def order(self, order: SyncOrder) -> Accepted:
        """Take an order: write the routes from arenas that hold, or will hold, that version. Raises Refused."""
        await failpoints.reach("source", "handshake")
        return await self.runner.order(order)

    async def end(self, end: OrderEnd) -> Accepted:
        """The sync is over: stop what still runs; the bytes have a name now, or never will. Raises Refused."""
        return self.runner.end(end)

    async def close(self) -> None:
        """End the worker; arenas stay in the volume."""
        await self._background.close()
        await self.runner.close()
