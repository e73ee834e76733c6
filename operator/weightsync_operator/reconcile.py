"""One pass over one WeightSync: observe, plan, apply. Writes nothing when nothing changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from pydantic import ValidationError

from weightsync.api.v1alpha1.status import Head, WeightSyncStatus
from weightsync.api.v1alpha1.weightsync import WeightSyncSpec
from weightsync.errors import InputError, WeightSyncError
from weightsync.plan import Plan
from weightsync.records import first_problem
from weightsync_operator import cycles, observe
from weightsync_operator.kube import apply_slices, apply_status, events, paths
from weightsync_operator.kube.client import Kube
from weightsync_operator.kube.errors import Forbidden, KubeError, NotFound
from weightsync_operator.metrics import Metrics
from weightsync_operator.observe import Seen
from weightsync_operator.planning import changes, membership, notices, refusal, slicing, sources, startup, status
from weightsync_operator.planning.changes import Changes
from weightsync_operator.planning.compose import Wish, compose, left_out
from weightsync_operator.planning.facts import Facts, report_in_force
from weightsync_operator.planning.grouping import Grouping, group
from weightsync_operator.planning.memo import Memo
from weightsync_operator.planning.ownership import Claim, Owned, own
from weightsync_operator.planning.selectors import describe
from weightsync_operator.planning.series import Again, First, Told
from weightsync_operator.planning.slicing import Slice
from weightsync_operator.store import Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """The plan that the API holds, as this process last wrote or read it."""

    plan: Plan | None = None
    slices: tuple[Slice, ...] = ()
    lost: bool = False  # some of the head's slices are not there


class Reconciler:
    """clock: the present, timezone-aware; instance: who reports events."""

    def __init__(
        self, kube: Kube, store: Store, metrics: Metrics, clock: Callable[[], datetime], instance: str
    ) -> None:
        self._kube = kube
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._instance = instance
        self._published: dict[str, Published] = {}
        self._memos: dict[str, Memo] = {}
        self._told: dict[str, Told] = {}

    async def run(self, uid: str) -> bool:
        """One pass; True where it wrote a new plan.

        Raises KubeError where the API refuses, InputError where nothing can be planned: what no other try can help is
        told in the object's status as well.
        """
        seen = self._store.sync(uid)
        if seen is None or seen.deleting or not self._store.whole(seen.namespace):
            return False
        try:
            return await self._pass(seen)
        except ValidationError as error:
            # What pods announce is bounded one by one. What they make together may still be no plan: of a WeightSync
            # whose pods say what nobody could mean no other one may suffer.
            wrong = InputError(f"what the pods announce makes no plan: {first_problem(error)}")
            await self._refuse(seen, wrong)
            raise wrong from error
        except WeightSyncError as error:
            if not error.retryable:
                await self._refuse(seen, error)
            raise

    async def _pass(self, seen: Seen) -> bool:
        claim, spec = seen.claim, seen.spec
        if claim is None or spec is None:
            raise InputError(f"{seen.problem}: write it anew with a CRD of this release")
        with self._metrics.seconds.time():
            published = await self._known(seen, spec)
            with cycles.none_looked_for():
                facts, slices = self._plan(seen, claim, spec, published)
            published_once = seen.status.version or (facts.report is not None and facts.report.version)
            if spec.rollout.initial_gate == "Closed" and not published_once:
                facts = replace(facts, ordered=await self._ordered(seen, facts.owned))
            wanted = status.build(facts, slices, seen.status, rfc3339(self._clock()))
            todo = changes.between(slices, self._store.slices_of(seen), wanted, seen.status)
            accepted = await self._apply(seen, todo)
        if accepted is not None:
            await self._tell(seen, notices.notices(seen.status, accepted, _coordinator(facts.plan)))
        self._published[seen.uid] = Published(facts.plan, slices)
        self._metrics.passes.labels("done").inc()
        term = facts.plan.term if facts.plan else 0
        self._metrics.count(seen, wanted, term)
        return bool(todo.create)

    def forget(self, seen: Seen) -> None:
        """The WeightSync is gone."""
        self._memos.pop(seen.uid, None)
        self._told.pop(seen.uid, None)
        self._published.pop(seen.uid, None)
        if not any(other.key == seen.key for other in self._store.syncs):  # else one of that name was made meanwhile
            self._metrics.forget(seen.namespace, seen.name)

    async def _refuse(self, seen: Seen, error: WeightSyncError) -> None:
        """Say in the status what keeps the plan from being made or written."""
        seen = self._store.sync(seen.uid) or seen  # what the pass has written before it failed
        wanted = refusal.refused(seen.status, seen.generation, str(error), rfc3339(self._clock()))
        term = seen.status.head.term if seen.status.head else 0
        self._metrics.count(seen, wanted, term)
        todo = changes.between((), (), wanted, seen.status)
        try:
            accepted = await self._apply(seen, todo)
        except KubeError as refused:
            self._metrics.errors.labels(refused.reason).inc()
            log.warning("status not written", weightsync=seen.key, error=str(refused))
            return
        if accepted is not None:
            await self._tell(seen, notices.notices(seen.status, accepted, ""))

    async def _known(self, seen: Seen, spec: WeightSyncSpec) -> Published:
        """The published plan, read back after a restart, or where the head is not what this process wrote."""
        head = seen.status.head
        if head is None:
            return Published()
        known = self._published.get(seen.uid)
        if known is not None and known.plan is not None and status.head(known.plan, known.slices) == head:
            return known
        found = [await apply_slices.read(self._kube, seen, name) for name in head.slices]
        slices = tuple(part for part in found if part is not None)
        lost = len(slices) < len(head.slices)
        if lost:
            log.warning("slices are gone, their part is planned anew", weightsync=seen.key, head=head.slices)
        return Published(_reread(_wish(seen.key, spec), head, slices), slices, lost)

    async def _ordered(self, seen: Seen, owned: Owned) -> tuple[str, ...]:
        """What keeps StatefulSets from making engines' pods."""
        found = []
        for name, last in startup.suspects(owned.rollouts).items():
            try:
                raw = await self._kube.get(paths.statefulset(seen.namespace, name))
            except NotFound:  # made by something else, which only labels its pods so
                continue
            except Forbidden as error:
                # Only a sentence is missing then: a role of an older chart must not keep plans from being made.
                self._metrics.errors.labels(error.reason).inc()
                log.warning("a StatefulSet may not be read", weightsync=seen.key, error=str(error))
                break
            found.append(startup.stuck(raw, last))
        return tuple(sentence for sentence in found if sentence)

    def _plan(
        self, seen: Seen, claim: Claim, spec: WeightSyncSpec, published: Published
    ) -> tuple[Facts, tuple[Slice, ...]]:
        rivals = [other.claim for other in self._store.siblings(seen)]
        owned = own(claim, [rival for rival in rivals if rival is not None], self._store.pods_of(seen.namespace))
        trainers = sources.gather(owned.trainers, describe(claim.trainer), owned.absent_trainers)
        asked, memo = spec.rollout.group, self._memos.setdefault(seen.uid, Memo())
        engines = membership.judge(group(owned.rollouts, Grouping(asked.by, asked.key)), memo)
        changed = published.lost or seen.status.observed_generation != seen.generation
        wish = _wish(seen.key, spec, changed=changed)
        now, places = milliseconds(self._clock()), self._store.places()
        plan = compose(wish, trainers, engines.members, published.plan, now, places=places, memo=memo)
        engines = engines.without(left_out(engines.members, plan))
        slices = self._cut(seen, plan, published)
        report = report_in_force(owned, plan)
        rollout = describe(claim.rollout)
        facts = Facts(seen.generation, spec.suspend, rollout, owned, trainers, engines, plan, report)
        return facts, slices

    @staticmethod
    def _cut(seen: Seen, plan: Plan | None, published: Published) -> tuple[Slice, ...]:
        if plan is None:
            return ()
        if published.plan is not None and plan.generation == published.plan.generation:
            return published.slices
        return slicing.cut(plan, (seen.name, seen.uid), published.slices)

    async def _apply(self, seen: Seen, todo: Changes) -> WeightSyncStatus | None:
        """Slices before the head that names them, and away only after no head does. The status, if it was written."""
        for part in todo.create:
            made = await apply_slices.create(self._kube, seen, part)
            if made is not None:
                self._wrote("WeightSyncSlice", "create")
                self._store.slices.put(made["metadata"]["uid"], observe.version(made), observe.slice_of(made))
        if todo.status is not None:
            try:
                raw = await apply_status.apply(self._kube, seen, todo.status)
            except NotFound:
                log.info("gone before its status was written", weightsync=seen.key)
                return None
            self._wrote("WeightSync", "apply")
            # The watch will say the same later; a pass before that must not see the old status.
            self._store.syncs.put(seen.uid, observe.version(raw), observe.weightsync(raw))
        for name in todo.delete:
            if await apply_slices.delete(self._kube, seen, name):
                self._wrote("WeightSyncSlice", "delete")
        return todo.status

    async def _tell(self, seen: Seen, news: Sequence[notices.Notice]) -> None:
        for notice in news:
            log.info(notice.note, weightsync=seen.key, reason=notice.reason, kind=notice.type)
            try:
                await self._event(seen, notice)
            except KubeError as error:
                # The status says the same: an event is a convenience, and not worth another pass.
                self._metrics.errors.labels(error.reason).inc()
                log.warning("event not written", weightsync=seen.key, error=str(error))

    async def _event(self, seen: Seen, notice: notices.Notice) -> None:
        now = self._clock()
        stamp, told = rfc3339(now, micro=True), self._told.setdefault(seen.uid, Told())
        step = told.next(notice, now)
        if isinstance(step, Again):
            try:
                await events.count(self._kube, seen, step, stamp)
            except NotFound:
                told.lost(notice)
                step = First()
            else:
                self._wrote("Event", "patch")
        if isinstance(step, First):
            told.first(notice, await events.post(self._kube, seen, notice, stamp, self._instance), now)
            self._wrote("Event", "create")

    def _wrote(self, kind: str, verb: str) -> None:
        self._metrics.writes.labels(kind, verb).inc()


def _coordinator(plan: Plan | None) -> str:
    source = plan.source(plan.coordinator) if plan else None
    return source.pod if source else ""


def _wish(key: str, spec: WeightSyncSpec, *, changed: bool = False) -> Wish:
    return Wish(
        name=key,
        initial_gate=spec.rollout.initial_gate,
        suspend=spec.suspend,
        join_policy=spec.join_policy,
        transfer=spec.plan_transfer,
        strategy=spec.plan_strategy,
        changed=changed,
    )


def _reread(wish: Wish, head: Head, slices: Sequence[Slice]) -> Plan:
    """The plan in force from head and slices. wish: the spec's part of it; observedGeneration says if that is new.

    Not validated: with a slice lost, its routes may name sources that are lost with it.
    """
    return Plan.model_construct(
        name=wish.name,
        term=head.term,
        generation=head.generation,
        coordinator=head.coordinator,
        initial_gate=wish.initial_gate,
        suspend=wish.suspend,
        join_policy=wish.join_policy,
        transfer=wish.transfer,
        strategy=wish.strategy,
        sources=tuple(source for part in slices for source in part.spec.sources),
        engines=tuple(engine for part in slices for engine in part.spec.engines),
    )


def milliseconds(moment: datetime) -> int:
    """Since the epoch."""
    return int(moment.timestamp() * 1000)


def rfc3339(moment: datetime, *, micro: bool = False) -> str:
    """As the API writes times: UTC with a Z, whole seconds unless ``micro``."""
    return moment.isoformat(timespec="microseconds" if micro else "seconds").replace("+00:00", "Z")
