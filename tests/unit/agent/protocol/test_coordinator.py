"""The coordinator: one sync at a time, nobody waits for a failed engine, nothing committed before it is decided."""

from typing import Any, TypeVar

import pytest

from weightsync.announcement import SourceRank, TargetRank
from weightsync.digests import BucketDigest
from weightsync.plan import Engine, Plan, Rdma, Route, Source, Strategy, Target, Transfer
from weightsync.version import Version
from weightsync.wire.v1 import (
    AgentStatus,
    Capabilities,
    CommitAnswer,
    Decided,
    Grant,
    PublishOutcome,
    PublishRequest,
    Region,
    RouteEnd,
    RouteTransport,
    ShardDigests,
    Way,
    WriterId,
)
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol.coordinator import (
    COMMIT_GRACE,
    COMMIT_SECONDS,
    HANDSHAKE_SECONDS,
    Coordinator,
    CoordinatorState,
)
from weightsync_agent.protocol.gather import Gathered
from weightsync_agent.protocol.repair import REJOIN_FIRST
from weightsync_agent.protocol.reporting import report_of
from weightsync_agent.protocol.standing import SOURCE_SECONDS, WELCOME_SECONDS, Sealed, Standing

T = TypeVar("T")
HERE = Capabilities(mooncake="1", transport="tcp")
WRITER = WriterId(uid="src", rank=0)
LAYOUT, PROGRAM, LINEAGE = "1" * 32, "2" * 32, "3" * 16
BUCKETS = (BucketDigest(offset=0, nbytes=100, digest="4" * 32),)


def engine(name: str) -> Engine:
    rank = TargetRank(rank=0, layout=LAYOUT, program=PROGRAM)
    routes = (Route(stage=0, source="src", rank=0),)
    target = Target(uid=name, pod=name, address=name, rank=rank, routes=routes)
    return Engine(name=name, leader=name, address=name, incarnation="1", targets=(target,))


def plan(*names: str, deadline: int = 60, coordinator: str = "src", term: int = 1, **strategy: Any) -> Plan:
    ranks = (SourceRank(rank=0, world_size=1, nonce=LINEAGE),)
    return Plan(
        name="ns/x", term=term, generation=1, coordinator=coordinator,
        strategy=Strategy(deadline_seconds=deadline, **strategy),
        sources=(Source(uid="src", pod="src", address="src", ranks=ranks),), engines=tuple(map(engine, names)),
    )  # fmt: skip


def grant_of(name: str) -> str:
    return name.encode().hex().ljust(32, "0")


class World:
    """A coordinator, and everything that it asked for. Engines answer at once what they serve, but for ``silent``."""

    def __init__(self, *names: str, silent: tuple[str, ...] = (), **strategy: Any) -> None:
        self.machine = Coordinator("src", HERE, stall_seconds=5.0)
        self.now = 0.0
        self.asked: list[object] = []
        self.silent = silent
        self.serves: dict[str, str] = {}
        self.strategy = strategy
        self.feed(e.PlanChanged(self.plan(*names)))

    def plan(self, *names: str) -> Plan:
        return plan(*names, **self.strategy)

    def feed(self, *events: object) -> "World":
        waiting = list(events)
        while waiting:
            actions = self.machine.handle(waiting.pop(0), self.now)
            self.asked += actions
            waiting[:0] = [
                self.says(action.engine.name)
                for action in actions
                if isinstance(action, e.AskStatus) and action.engine.name not in self.silent
            ]
        return self

    def says(self, name: str, decided: Decided | None = None) -> e.StatusSeen:
        version = self.serves.get(name, "")
        status = AgentStatus(
            uid=name,
            term=1,
            incarnation="1",
            ready=True,
            version=version,
            journal="Current" if version else "",
            decided=decided,
        )
        return e.StatusSeen(f"{name}/1", status)

    def of(self, kind: type[T]) -> list[T]:
        """Every action of that kind since the last call."""
        found = [action for action in self.asked if isinstance(action, kind)]
        self.asked = [action for action in self.asked if not isinstance(action, kind)]
        return found

    @property
    def sync(self) -> str:
        assert self.machine.sync is not None
        return self.machine.sync.id

    def publish(self, number: int = 1, fills: tuple[str, ...] | None = None) -> "World":
        """All ranks published. fills: what the only one says that it fills; None: nothing, as older ones."""
        request = PublishRequest(
            writer=WRITER, world_size=1, stage=0, stages=1, nonce=LINEAGE, sequence=number, programs=fills
        )
        programs = frozenset(fills if fills is not None else (PROGRAM,))
        return self.feed(e.Published(Gathered(LINEAGE, number, "", {0: request}, self.now, programs)))

    def grant(self, *names: str) -> "World":
        for name in names:
            region = Region(session="s", address=1, nbytes=100)
            given = Grant(grant=grant_of(name), region=region, theirs=HERE)
            self.feed(e.GrantGiven(self.sync, f"{name}/1", engine(name).targets[0], given))
        return self

    def refuse(self, name: str) -> "World":
        return self.feed(e.GrantRefused(self.sync, f"{name}/1", 0, "Unreachable", "no answer"))

    def shard(self, digest: str = "4", writer: WriterId = WRITER, cut: int = 1) -> "World":
        """cut: into so many buckets."""
        nbytes = BUCKETS[0].nbytes // cut
        parts = ({"offset": BUCKETS[0].offset + n * nbytes, "nbytes": nbytes} for n in range(cut))
        buckets = tuple(BUCKETS[0].model_copy(update={"digest": digest * 32, **part}) for part in parts)
        shard = ShardDigests(term=1, sync=self.sync, writer=writer, stage=0, program=PROGRAM, buckets=buckets)
        return self.feed(e.ShardFilled(shard))

    def verify(self, *names: str, verified: bool = True) -> "World":
        for name in names:
            end = RouteEnd(
                term=1, sync=self.sync, writer=WRITER, target=name, rank=0, grant=grant_of(name), verified=verified,
                reason="" if verified else "Stalled", nbytes=100,
            )  # fmt: skip
            self.feed(e.RouteEnded(end))
        return self

    def decide(self) -> "World":
        return self.feed(e.DecisionPersisted(self.sync))

    def commit(self, *names: str) -> "World":
        for name in names:
            version = f"{LINEAGE}.{self.machine.sync.number}" if self.machine.sync else ""
            self.serves[name] = version
            answer = CommitAnswer(version=version, incarnation="1", pause_seconds=0.1, apply_seconds=0.1)
            self.feed(e.CommitDone(self.sync, f"{name}/1", answer))
        return self

    def whole(self, *names: str, number: int = 1) -> "World":
        """One sync from publish to commit."""
        return self.publish(number).grant(*names).shard().verify(*names).decide().commit(*names)

    def outcome(self) -> PublishOutcome:
        (found,) = self.of(e.Outcome)
        return found.outcome

    def outcomes(self) -> dict[str, str]:
        return {o.engine: o.outcome for o in self.outcome().engines}


def test_a_sync_goes_from_grants_to_orders_to_decision_to_commits() -> None:
    """Each step waits for all of the one before; every engine of the snapshot becomes current."""
    w = World("a", "b")
    w.publish()
    assert [ask.request.target for ask in w.of(e.AskGrant)] == ["a", "b"]
    assert w.grant("a").of(e.SendOrder) == []
    (order,) = w.grant("b").of(e.SendOrder)
    assert [r.engine for r in order.order.routes] == ["a", "b"]
    assert w.shard().verify("a").of(e.PersistDecision) == []
    assert len(w.verify("b").of(e.PersistDecision)) == 1
    assert w.of(e.SendCommit) == []
    assert [commit.request.target for commit in w.decide().of(e.SendCommit)] == ["a", "b"]
    assert w.commit("a", "b").outcomes() == {"a": "Current", "b": "Current"}
    assert w.machine.state is CoordinatorState.IDLE


def test_nothing_is_decided_before_the_shards_digests_are_known() -> None:
    """Verified routes alone do not tell what the version is."""
    w = World("a").publish().grant("a").verify("a")
    assert w.of(e.PersistDecision) == []
    assert len(w.shard().of(e.PersistDecision)) == 1


def test_a_failed_handshake_takes_out_that_engine_alone() -> None:
    """The other is staged and committed; the outcome says why the first is not."""
    w = World("a", "b").publish().refuse("a").grant("b").shard().verify("b").decide().commit("b")
    assert w.outcomes() == {"a": "Failed", "b": "Current"}


def test_a_failed_route_takes_out_that_engine_alone() -> None:
    """A stalled target does not keep the others from the barrier."""
    w = World("a", "b").publish().grant("a", "b").shard().verify("b").verify("a", verified=False)
    assert w.decide().commit("b").outcomes() == {"a": "Failed", "b": "Current"}


def test_the_deadline_takes_out_what_is_unfinished() -> None:
    """At the deadline the barrier opens for those that are staged."""
    w = World("a", "b", deadline=10).publish().grant("a", "b").shard().verify("b")
    w.now = 10.0
    w.feed(e.Tick()).decide().commit("b")
    outcome = w.outcome()
    assert [(o.engine, o.outcome, o.reason) for o in outcome.engines] == [
        ("a", "Failed", "DeadlineExceeded"),
        ("b", "Current", ""),
    ]


def test_an_engine_that_failed_does_not_hold_the_next_sync() -> None:
    """It is reported Behind at once, and repaired alone when the coordinator is idle and its backoff over."""
    w = World("a", "b").publish().refuse("a").grant("b").shard().verify("b").decide().commit("b")
    w.of(e.AskGrant), w.outcome()
    w.publish(2)
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["b/1"]
    assert w.grant("b").shard().verify("b").decide().commit("b").outcomes() == {"a": "Behind", "b": "Current"}
    w.now = 100.0
    assert [ask.engine for ask in w.feed(e.Tick()).of(e.AskGrant)] == ["a/1"]
    w.grant("a").shard().verify("a").decide().commit("a")
    assert w.machine.engines["a/1"].standing is Standing.CURRENT


@pytest.mark.parametrize("answers", [True, False])
def test_an_engine_that_answers_again_is_taken_in_though_publishes_leave_no_time_for_a_repair(answers: bool) -> None:
    """Each publish follows the one before at once: it is asked during the sync that it is left out of."""
    w = World("a", "b", silent=() if answers else ("a",))
    w.publish().refuse("a").grant("b").shard().verify("b").publish(2).decide().commit("b")
    w.now, _ = REJOIN_FIRST, w.of(e.AskStatus)
    assert [ask.engine.name for ask in w.feed(e.Tick()).of(e.AskStatus)] == ["a"]
    w.of(e.AskGrant), w.outcome()
    w.grant("b").shard().verify("b").publish(3).decide().commit("b")
    assert w.outcomes() == {"a": "Behind", "b": "Current"}
    taken = ["a/1", "b/1"] if answers else ["b/1"]
    assert sorted(ask.engine for ask in w.of(e.AskGrant)) == taken


def test_members_of_a_sync_are_not_asked_during_it() -> None:
    """Only one that failed and was left out: what the others say, one that joined among them, changes nothing."""
    w = World("a", "b").publish().refuse("a").grant("b").shard().verify("b").decide().commit("b")
    w.publish(2).feed(e.PlanChanged(plan("a", "b", "c")))
    w.now, _ = REJOIN_FIRST, w.of(e.AskStatus)
    assert [ask.engine.name for ask in w.feed(e.Tick()).of(e.AskStatus)] == ["a"]
    w.grant("b").shard().verify("b").decide().commit("b")
    w.publish(3)
    w.now, _ = 2 * REJOIN_FIRST, w.of(e.AskStatus)
    assert w.feed(e.Tick()).of(e.AskStatus) == []


def test_an_engine_that_joins_is_fed_the_last_version() -> None:
    """No publish is needed; its bytes are those that were decided."""
    w = World("a").whole("a")
    w.of(e.AskGrant)
    w.feed(e.PlanChanged(plan("a", "b")))
    (ask,) = w.of(e.AskGrant)
    assert (ask.engine, ask.request.number) == ("b/1", 1)
    w.grant("b").shard().verify("b").decide().commit("b")
    assert w.machine.engines["b/1"].standing is Standing.CURRENT


def test_a_repair_never_delivers_other_bytes_than_were_decided() -> None:
    """The source's arena has changed: the repair ends, nothing is committed."""
    w = World("a").whole("a").feed(e.PlanChanged(plan("a", "b")))
    w.of(e.SendCommit)
    w.grant("b").shard(digest="9")
    assert w.machine.sync is None
    assert w.of(e.SendCommit) == []


def test_a_publish_supersedes_an_undecided_repair_and_takes_its_engine_in() -> None:
    """The joiner becomes a member of the newer sync."""
    w = World("a").whole("a").feed(e.PlanChanged(plan("a", "b"))).grant("b")
    w.of(e.AskGrant), w.of(e.Outcome)
    w.publish(2)
    assert len(w.of(e.EndOrder)) == 2  # of the first sync, and of the repair
    assert sorted(ask.engine for ask in w.of(e.AskGrant)) == ["a/1", "b/1"]
    w.grant("a", "b").shard().verify("a", "b").decide().commit("a", "b")
    assert w.outcomes() == {"a": "Current", "b": "Current"}


def test_a_decided_sync_is_finished_before_the_next_begins() -> None:
    """A publish during the commits waits, then runs."""
    w = World("a").publish().grant("a").shard().verify("a").decide()
    w.of(e.AskGrant)
    w.publish(2)
    assert w.of(e.AskGrant) == []
    assert len(w.commit("a").of(e.AskGrant)) == 1


def test_a_commit_is_repeated_while_it_may_succeed() -> None:
    """A retryable failure is sent again after a backoff; the engine's outcome is the success."""
    w = World("a").publish().grant("a").shard().verify("a").decide()
    w.of(e.SendCommit)
    w.feed(e.CommitFailed(w.sync, "a/1", "Unreachable", "no answer", True))
    assert w.of(e.SendCommit) == []
    w.now = 1.0
    assert len(w.feed(e.Tick()).of(e.SendCommit)) == 1
    assert w.commit("a").outcomes() == {"a": "Current"}


def test_a_broken_publish_is_never_decided() -> None:
    """One rank's trouble ends the version for all, with its reason."""
    w = World("a").publish().grant("a")
    w.feed(e.PublishBroken(LINEAGE, 1, "InvalidInput", "rank 1: bad shape"))
    outcome = w.outcome()
    assert (outcome.reason, outcome.version) == ("InvalidInput", None)
    assert w.of(e.PersistDecision) == []


def test_a_broken_publish_is_no_fault_of_the_engines() -> None:
    """The next version is for them as if nothing had been."""
    w = World("a").publish().grant("a").feed(e.PublishBroken(LINEAGE, 1, "InvalidInput", "rank 1: bad shape"))
    w.outcome()
    assert w.whole("a", number=2).outcomes() == {"a": "Current"}


def test_ranks_that_publish_other_bytes_end_the_version() -> None:
    """Two data-parallel ranks of one stage must hold equal weights."""
    w = World("a").publish().grant("a").shard().shard(digest="9", writer=WriterId(uid="src", rank=1))
    outcome = w.outcome()
    assert outcome.reason == "RanksDiffer"
    assert "hold equal weights" in outcome.message


def test_ranks_that_cut_a_stage_differently_are_told_so() -> None:
    """Their bytes may be the same: agents of two releases."""
    w = World("a").publish().grant("a").shard().shard(cut=2, writer=WriterId(uid="src", rank=1))
    outcome = w.outcome()
    assert outcome.reason == "RanksDiffer"
    assert "cut it into 1 and 2 buckets" in outcome.message


def test_without_engines_a_publish_ends_at_once() -> None:
    """NoTargets."""
    assert World().publish().outcome().reason == "NoTargets"


def test_an_engine_that_leaves_the_plan_in_a_sync_is_gone() -> None:
    """The others are not held up."""
    w = World("a", "b").publish().grant("a", "b").shard().verify("b").feed(e.PlanChanged(plan("b")))
    assert w.decide().commit("b").outcomes() == {"a": "Gone", "b": "Current"}


def test_new_engines_are_welcomed_while_nothing_was_published() -> None:
    """Their initial gate may open; the welcome comes again, since an engine may have missed it."""
    w = World("a")
    assert [welcome.engine.name for welcome in w.of(e.SendWelcome)] == ["a"]
    w.feed(e.PlanChanged(plan("a", "b")), e.Tick())
    assert [welcome.engine.name for welcome in w.of(e.SendWelcome)] == ["b"]
    w.now = WELCOME_SECONDS
    assert len(w.feed(e.Tick()).of(e.SendWelcome)) == 2


def test_an_engine_that_serves_something_else_is_repaired() -> None:
    """A status that contradicts what was committed makes it behind."""
    w = World("a").whole("a")
    w.of(e.AskGrant)
    w.feed(e.StatusSeen("a/1", AgentStatus(uid="a", term=1, incarnation="1", version="")))
    assert len(w.of(e.AskGrant)) == 1


def test_late_messages_of_an_ended_sync_change_nothing() -> None:
    """Answers that come after the end are taken without effect."""
    w = World("a").publish().grant("a")
    old = w.sync
    w.feed(e.PublishBroken(LINEAGE, 1, "x", "y"))
    w.asked.clear()
    answer = CommitAnswer(version="v", incarnation="1", pause_seconds=0, apply_seconds=0)
    w.feed(
        e.CommitDone(old, "a/1", answer),
        e.CommitFailed(old, "a/1", "r", "m", True),
    )
    assert w.asked == []


def test_a_grant_without_an_order_is_void() -> None:
    """A sync that ends in its handshakes, or a grant that comes too late: nobody will write, and the target knows."""
    w = World("a", "b").publish().grant("a")
    old = w.sync
    w.feed(e.PublishBroken(LINEAGE, 1, "x", "y"))
    assert [void.target.uid for void in w.of(e.VoidGrant)] == ["a"]
    grant = Grant(grant="0" * 32, region=Region(session="s", address=1, nbytes=100), theirs=HERE)
    w.feed(e.GrantGiven(old, "b/1", engine("b").targets[0], grant))
    (void,) = w.of(e.VoidGrant)
    assert (void.target.uid, void.request.writers) == ("b", (WRITER,))


def test_a_refused_order_closes_its_part_of_the_grant() -> None:
    """Only a source that said no has certainly not begun to write."""
    for certain, count in ((True, 1), (False, 0)):
        w = World("a").publish().grant("a")
        w.feed(e.OrderRefused(w.sync, WRITER, certain, "NotFilled", "why"))
        assert len(w.of(e.VoidGrant)) == count
        assert w.outcomes() == {"a": "Failed"}


def test_an_order_that_a_source_refused_is_no_fault_of_the_engine() -> None:
    """Whatever its reason, as of a trainer that has just begun again: the next publish takes the engine in."""
    w = World("a", "b").whole("a", "b").publish(2).grant("a", "b")
    w.feed(e.OrderRefused(w.sync, WRITER, True, "UnknownRank", "source is not here"))
    assert w.machine.suspects == set()
    assert [(known.failures, known.retry_at) for known in w.machine.engines.values()] == [(0, SOURCE_SECONDS)] * 2
    w.of(e.AskGrant)
    w.publish(3)
    assert sorted(ask.engine for ask in w.of(e.AskGrant)) == ["a/1", "b/1"]


def test_a_commit_that_goes_on_failing_holds_the_next_version_for_seconds_only() -> None:
    """After COMMIT_SECONDS it is an outcome, and the engine is repaired."""
    w = World("a", "b").publish().grant("a", "b").shard().verify("a", "b").decide().commit("b")
    w.now = COMMIT_SECONDS
    w.feed(e.CommitFailed(w.sync, "a/1", "Unreachable", "no answer", True))
    assert w.outcomes() == {"a": "Failed", "b": "Current"}
    assert w.machine.engines["a/1"].failures == 1


def test_an_engine_that_leaves_the_plan_in_its_commit_is_gone() -> None:
    """Nobody waits for the answer of a pod that was deleted."""
    w = World("a", "b").publish().grant("a", "b").shard().verify("a", "b").decide().commit("b")
    w.feed(e.PlanChanged(plan("b")))
    assert w.outcomes() == {"a": "Gone", "b": "Current"}


def test_an_engine_that_failed_before_anything_was_decided_is_in_the_next_version() -> None:
    """No repair can help it, so nothing may exclude it."""
    w = World("a").publish().refuse("a")
    assert w.outcomes() == {"a": "Failed"}
    assert w.whole("a", number=2).outcomes() == {"a": "Current"}


def test_not_all_engines_are_left_to_repairs() -> None:
    """Where each of them failed, a publish asks all: else nothing would be decided again."""
    w = World("a").whole("a")
    w.outcome()
    w.publish(2).refuse("a")
    w.outcome()
    assert w.whole("a", number=3).outcomes() == {"a": "Current"}


def test_a_deposed_coordinator_never_uses_its_successors_term() -> None:
    """Undecided: it gives up. Decided: it finishes in its own term."""
    w = World("a").publish().grant("a")
    w.feed(e.PlanChanged(plan("a", coordinator="other", term=2)))
    assert w.outcome().reason == "NotCoordinator"
    w = World("a").publish().grant("a").shard().verify("a")
    w.feed(e.PlanChanged(plan("a", coordinator="other", term=2))).decide()
    (commit,) = w.of(e.SendCommit)
    assert commit.request.term == 1


def test_a_decision_that_cannot_be_written_ends_the_version() -> None:
    """A full volume: nothing is committed, and the next version has its chance."""
    w = World("a").publish().grant("a").shard().verify("a")
    w.feed(e.DecisionFailed(w.sync, "no room"))
    assert w.outcome().reason == "DecisionNotWritten"
    assert w.of(e.SendCommit) == []
    assert w.whole("a", number=2).outcomes() == {"a": "Current"}


def test_a_commit_without_any_answer_ends() -> None:
    """Neither done nor failed is heard of: after the grace it is an outcome."""
    w = World("a").publish().grant("a").shard().verify("a").decide()
    w.now = COMMIT_SECONDS + COMMIT_GRACE + 0.1
    assert w.feed(e.Tick()).outcomes() == {"a": "Failed"}


def test_commits_have_the_time_that_the_coordinator_is_given_for_them() -> None:
    """Each try what is left of it, as many tries as it holds, and an outcome when it is over."""
    w = World("a")
    w.machine.commit_seconds = 90.0
    w.publish().grant("a").shard().verify("a").decide()
    assert [commit.timeout for commit in w.of(e.SendCommit)] == [90.0]
    w.now = 60.0
    w.feed(e.CommitFailed(w.sync, "a/1", "Unreachable", "no answer", True))
    w.now = 70.0
    assert [commit.timeout for commit in w.feed(e.Tick()).of(e.SendCommit)] == [20.0]
    w.now = 90.0 + COMMIT_GRACE
    assert w.feed(e.Tick()).of(e.Outcome) == []
    w.now += 0.1
    assert w.feed(e.Tick()).outcomes() == {"a": "Failed"}


def test_a_repair_whose_shard_nobody_reports_ends_at_the_deadline() -> None:
    """One member late, the other staged: given up, nothing raised, and no engine is blamed."""
    w = World("a", deadline=10).whole("a").feed(e.PlanChanged(plan("a", "b", deadline=10)))
    w.grant("b").verify("b")
    w.of(e.SendCommit)
    w.now = 10.0
    w.feed(e.Tick())
    assert w.machine.sync is None
    assert w.of(e.SendCommit) == []
    assert w.machine.engines["b/1"].failures == 0


def test_after_a_restart_engines_are_asked_before_they_are_repaired() -> None:
    """They may serve the decided version, with a sealed arena that a repair would spoil."""
    before = World("a").whole("a")
    w = World()
    w.machine.sealed, w.silent = before.machine.sealed, ("a",)
    w.feed(e.PlanChanged(plan("a")), e.Tick())
    assert w.of(e.AskGrant) == []
    version = f"{LINEAGE}.1"
    w.feed(e.StatusSeen("a/1", AgentStatus(uid="a", term=1, incarnation="1", version=version, journal="Current")))
    assert w.machine.engines["a/1"].standing is Standing.CURRENT
    assert w.of(e.AskGrant) == []


def pulling(name: str, pulls: bool, decided: Decided | None = None) -> e.StatusSeen:
    status = AgentStatus(uid=name, term=1, incarnation="1", pulls=pulls, decided=decided)
    return e.StatusSeen(f"{name}/1", status)


def test_an_engine_that_reads_the_version_from_another_is_not_written_to() -> None:
    """Once it says that nobody has it, the sources write; what a publish brings it becomes a member of."""
    w = World("a", silent=("b",)).whole("a")
    w.of(e.AskGrant)
    w.feed(e.PlanChanged(w.plan("a", "b")), pulling("b", True))
    w.now += 5
    w.feed(e.Tick(), pulling("b", True), e.Tick())
    assert w.of(e.AskGrant) == []
    w.feed(pulling("b", False))
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["b/1"]
    joins = World("a", silent=("b",)).whole("a")
    joins.of(e.AskGrant)
    joins.feed(e.PlanChanged(joins.plan("a", "b")), pulling("b", True)).publish(2)
    assert [ask.engine for ask in joins.of(e.AskGrant)] == ["a/1", "b/1"]


def test_under_next_version_an_engine_that_comes_waits_for_the_next_publish() -> None:
    """One that had a version before gets the newest at once all the same: it is paused."""
    w = World("a", silent=("b", "c")).whole("a")
    w.of(e.AskGrant)
    waits = w.plan("a", "b", "c").model_copy(update={"join_policy": "NextVersion"})
    had = Decided(version=Version(lineage=LINEAGE, number=1, root="7" * 64), term=1)
    w.feed(e.PlanChanged(waits), pulling("b", False), pulling("c", False, had), e.Tick())
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["c/1"]
    w.publish(2)
    assert {ask.engine for ask in w.of(e.AskGrant)} >= {"a/1", "b/1"}


def test_under_next_version_a_publish_that_did_not_reach_a_new_engine_is_made_good() -> None:
    """It was to get that version, and does not wait for yet another publish."""
    w = World("a", silent=("b",)).whole("a")
    w.feed(e.PlanChanged(w.plan("a", "b").model_copy(update={"join_policy": "NextVersion"})), pulling("b", False))
    w.publish(2).grant("a").refuse("b").shard().verify("a").decide().commit("a")
    w.of(e.AskGrant)
    w.now += 60
    w.feed(e.Tick(), pulling("b", False), e.Tick())
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["b/1"]


def test_a_coordinator_that_begins_says_nothing_before_its_engines_have() -> None:
    """What was decided before its term is known once they answered, or had the time to."""
    w = World("a", silent=("a",))
    assert not w.machine.knows(0.0)
    assert w.machine.knows(5.0)
    w.feed(w.says("a"))
    assert w.machine.knows(0.0)


def test_a_version_that_waits_and_breaks_is_dropped() -> None:
    """While another is committed: the broken one is never begun."""
    w = World("a").publish().grant("a").shard().verify("a").decide().publish(2)
    w.feed(e.PublishBroken(LINEAGE, 2, "InvalidInput", "why"))
    assert w.outcome().reason == "InvalidInput"
    w.of(e.AskGrant)
    assert w.commit("a").of(e.AskGrant) == []


# --- a new term asks what is decided ---

COMMITTED = Decided(
    version=Version(lineage=LINEAGE, number=7, root="5" * 64), label="seven", term=1, programs={PROGRAM: "6" * 64}
)


def test_a_new_coordinator_finishes_what_one_engine_was_told_to_commit() -> None:
    """It learns the version from that engine, and brings it to the other; who serves it is left alone."""
    w = World("a", "b", silent=("a", "b"))
    assert len(w.of(e.AskStatus)) == 2
    w.serves["a"] = COMMITTED.version.name
    assert w.feed(w.says("a", COMMITTED)).of(e.AskGrant) == []
    (ask,) = w.feed(w.says("b")).of(e.AskGrant)
    assert (ask.engine, ask.request.lineage, ask.request.number) == ("b/1", LINEAGE, 7)
    assert w.machine.engines["a/1"].standing is Standing.CURRENT
    assert w.of(e.SendWelcome) == []


def test_a_new_coordinator_that_hears_of_no_commit_runs_it_again() -> None:
    """Nobody was told: engines are welcomed, and the next publish is the first."""
    w = World("a", silent=("a",))
    assert w.of(e.SendWelcome) == []
    w.feed(w.says("a"))
    assert len(w.of(e.SendWelcome)) == 1
    assert w.whole("a").outcomes() == {"a": "Current"}


def test_an_engine_that_does_not_answer_is_waited_for_one_stall_timeout() -> None:
    """Then the others are welcomed; it is asked again, and what it says later still counts."""
    w = World("a", "b", silent=("b",))
    assert w.of(e.SendWelcome) == []
    w.feed(e.StatusSeen("b/1", None))
    assert w.machine.engines["b/1"].reason == "Silent"
    w.now = 5.0
    assert {welcome.engine.name for welcome in w.feed(e.Tick()).of(e.SendWelcome)} == {"a", "b"}
    w.feed(w.says("b", COMMITTED))
    assert w.machine.sealed is not None
    assert w.machine.sealed.version == COMMITTED.version


@pytest.mark.parametrize(
    ("term", "number", "adopted"),
    [(1, 3, False), (1, 8, True), (2, 1, True), (0, 99, False)],
    ids=["an older one is not", "a newer one is", "a later term's is", "an earlier term's is not"],
)
def test_the_later_of_two_decided_versions_counts(term: int, number: int, adopted: bool) -> None:
    """By term, then by number: a new lineage begins in a new term."""
    w = World("a", silent=("a",))
    w.machine.sealed = Sealed(Version(lineage="9" * 16, number=7, root="0" * 64), "", {PROGRAM: "1" * 64}, 1)
    found = Decided(version=Version(lineage=LINEAGE, number=number, root="5" * 64), term=term, programs={})
    w.feed(w.says("a", found))
    assert (w.machine.sealed.version == found.version) is adopted


def test_a_version_that_no_source_holds_is_no_fault_of_the_engine() -> None:
    """A new coordinator's sources lack it: it is tried again, and the next publish takes the engine in."""
    w = World("a", silent=("a",))
    w.feed(w.says("a", COMMITTED)).grant("a")
    w.feed(e.OrderRefused(w.sync, WRITER, True, "NotFilled", "why"))
    known = w.machine.engines["a/1"]
    assert (known.failures, known.retry_at, known.reason) == (0, SOURCE_SECONDS, "NotFilled")
    assert w.whole("a", number=8).outcomes() == {"a": "Current"}


def test_a_route_that_ended_under_another_grant_verifies_nothing() -> None:
    """The report of a route counts for the grant that it was written under."""
    w = World("a").publish().grant("a").shard()
    end = RouteEnd(term=1, sync=w.sync, writer=WRITER, target="a", rank=0, grant="e" * 32, verified=True)
    w.feed(e.RouteEnded(end))
    assert w.of(e.PersistDecision) == []
    assert len(w.verify("a").of(e.PersistDecision)) == 1


def test_under_barrier_a_version_that_waits_is_not_dropped_for_a_newer_one() -> None:
    """Each of them is synced, in order; under Rolling the newest alone is."""
    for kind, outcomes in (("Barrier", []), ("Rolling", ["Superseded"])):
        w = World("a", type=kind).publish().publish(2).publish(3)
        assert [found.outcome.reason for found in w.of(e.Outcome)] == outcomes
        w.grant("a").shard().verify("a").decide().commit("a")
        assert w.machine.sync is not None
        assert w.machine.sync.number == (2 if kind == "Barrier" else 3)


def test_a_commit_that_another_life_answers_is_not_this_lifes() -> None:
    """The engine restarted: that life is gone, and the new one joins by itself."""
    w = World("a").publish().grant("a").shard().verify("a").decide()
    answer = CommitAnswer(version=f"{LINEAGE}.1", incarnation="2", pause_seconds=0.1, apply_seconds=0.1)
    assert w.feed(e.CommitDone(w.sync, "a/1", answer)).outcomes() == {"a": "Gone"}


# --- Rolling ---


def test_rolling_commits_each_engine_when_it_is_staged() -> None:
    """The decision waits for the sources' digests alone; an engine that is slow holds nobody."""
    w = World("a", "b", type="Rolling", max_unavailable=2).publish().grant("a", "b").verify("a")
    assert w.of(e.PersistDecision) == []
    assert len(w.shard().of(e.PersistDecision)) == 1
    assert [commit.engine.name for commit in w.decide().of(e.SendCommit)] == ["a"]
    w.commit("a")
    assert w.machine.state is CoordinatorState.COMMITTING
    assert [commit.engine.name for commit in w.verify("b").of(e.SendCommit)] == ["b"]
    assert w.commit("b").outcomes() == {"a": "Current", "b": "Current"}


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (3, 3), ("50%", 2), ("10%", 1), ("100%", 4)], ids=str)
def test_rolling_takes_no_more_engines_away_than_allowed(most: int | str, at_once: int) -> None:
    """A share is rounded down, and one always may; each that comes back lets the next go."""
    names = ("a", "b", "c", "d")
    w = World(*names, type="Rolling", max_unavailable=most).publish().grant(*names).shard().verify(*names).decide()
    told = [commit.engine.name for commit in w.of(e.SendCommit)]
    assert len(told) == at_once
    if at_once < len(names):
        assert len(w.commit(told[0]).of(e.SendCommit)) == 1


def test_rolling_goes_on_past_a_commit_that_is_not_answered() -> None:
    """One stall timeout later its place is another engine's, though its own commit may still end well."""
    w = World("a", "b", type="Rolling", max_unavailable=1).publish().grant("a", "b").shard().verify("a", "b").decide()
    (first,) = w.of(e.SendCommit)
    w.now = 4.9
    assert w.feed(e.Tick()).of(e.SendCommit) == []
    w.now = 5.0
    (second,) = w.feed(e.Tick()).of(e.SendCommit)
    assert {first.engine.name, second.engine.name} == {"a", "b"}
    assert w.commit("a", "b").outcomes() == {"a": "Current", "b": "Current"}


def test_rolling_leaves_out_a_handshake_that_takes_longer_than_the_others() -> None:
    """Half of the engines have granted: the others have HANDSHAKE_SECONDS, then the sources get their orders."""
    w = World("a", "b", type="Rolling").publish().grant("a")
    assert w.of(e.SendOrder) == []
    w.now = HANDSHAKE_SECONDS
    assert len(w.feed(e.Tick()).of(e.SendOrder)) == 1
    w.shard().verify("a").decide().commit("a")
    assert w.outcomes() == {"a": "Current", "b": "Failed"}


def test_rolling_drops_what_is_not_staged_by_the_deadline_and_waits_for_no_slot() -> None:
    """An engine that is staged and waits for its turn is no failure."""
    w = World("a", "b", "c", type="Rolling", max_unavailable=1, deadline=10).publish().grant("a", "b", "c")
    w.shard().verify("a", "b").decide()
    w.now = 10.0
    w.feed(e.Tick()).commit("a").commit("b")
    assert w.outcomes() == {"a": "Current", "b": "Current", "c": "Failed"}


def test_rolling_finishes_with_an_engine_whose_route_fails_after_the_decision() -> None:
    """The version stands; that engine is behind and repaired."""
    w = World("a", "b", type="Rolling", max_unavailable=2).publish().grant("a", "b").shard().decide()
    w.verify("a").commit("a").verify("b", verified=False)
    assert w.outcomes() == {"a": "Current", "b": "Failed"}
    w.now = 1.0
    assert [ask.engine for ask in w.feed(e.Tick()).of(e.AskGrant)][-1] == "b/1"


def test_a_repair_waits_for_no_other_joiner() -> None:
    """Two engines join: the one that is staged first commits first."""
    w = World("a").whole("a").feed(e.PlanChanged(plan("a", "b", "c")))
    w.grant(*(ask.engine.partition("/")[0] for ask in w.of(e.AskGrant) if ask.engine != "a/1"))
    w.of(e.SendCommit)
    assert w.machine.sync is not None
    first = next(iter(w.machine.sync.members.values())).engine.name
    w.shard().decide().verify(first)
    assert [commit.engine.name for commit in w.of(e.SendCommit)] == [first]


NEW = "5" * 32


def with_new(*names: str) -> Plan:
    """The last of them reads a program of its own."""
    known = plan(*names)
    *others, last = known.engines
    target = last.targets[0].model_copy(update={"rank": TargetRank(rank=0, layout="6" * 32, program=NEW)})
    return known.model_copy(update={"engines": (*others, last.model_copy(update={"targets": (target,)}))})


def test_an_engine_that_a_rank_did_not_know_waits_for_the_next_publish() -> None:
    """It is asked for nothing, is in no outcome, and is still joining; who was known becomes current."""
    w = World("a").feed(e.PlanChanged(with_new("a", "b")))
    w.publish(fills=(PROGRAM,))
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["a/1"]
    w.grant("a").shard().verify("a").decide().commit("a")
    assert w.outcomes() == {"a": "Current"}
    known = w.machine.engines["b/1"]
    assert (known.standing, known.failures, known.reason) == (Standing.JOINING, 0, "ProgramNotFilled")
    assert w.machine.engines["a/1"].reason == ""
    w.publish(2, fills=(PROGRAM, NEW))
    assert [ask.engine for ask in w.of(e.AskGrant)] == ["a/1", "b/1"]


def test_a_publish_for_which_no_engine_was_known_to_all_ranks_ends_at_once() -> None:
    """As one without engines: nobody is at fault."""
    w = World("a").publish(fills=())
    (end,) = w.of(e.Outcome)
    assert (end.outcome.reason, end.outcome.engines) == ("NoTargets", ())
    assert w.of(e.AskGrant) == []
    assert w.machine.state is CoordinatorState.IDLE


def test_an_engine_that_is_left_out_is_behind_once_others_have_the_version() -> None:
    """A rank learned late that it feeds it from now on."""
    w = World("a", "b").whole("a", "b")
    assert w.outcomes() == {"a": "Current", "b": "Current"}
    w.feed(e.PlanChanged(with_new("a", "b"))).publish(2, fills=(PROGRAM,))
    w.grant("a").shard().verify("a").decide().commit("a")
    assert w.outcomes() == {"a": "Current"}
    assert w.machine.engines["b/1"].standing is Standing.BEHIND


def test_the_outcome_says_what_each_route_went_over() -> None:
    """The transport that the source used, and the sums in the report; nothing of it is silent."""
    w = World("a")
    source = w.plan("a").sources[0].model_copy(update={"devices": ("rxe0",)})
    transfer = Transfer(protocol="Auto", rdma=Rdma(gid_index=1))
    w.feed(e.PlanChanged(w.plan("a").model_copy(update={"sources": (source,), "transfer": transfer})))
    (ask,) = w.publish().of(e.AskGrant)
    assert (ask.request.protocol, ask.request.devices) == ("Auto", {"src": ("rxe0",)})
    assert ask.request.rdma.gid_index == 1
    other = Region(session="over-rdma", address=2, nbytes=100)
    way = Way(transport="rdma", region=other, why="")
    given = Grant(
        grant=grant_of("a"), region=Region(session="s", address=1, nbytes=100), theirs=HERE, ways={WRITER.key: way}
    )
    (sent,) = w.feed(e.GrantGiven(w.sync, "a/1", engine("a").targets[0], given)).of(e.SendOrder)
    (route,) = sent.order.routes
    assert (route.transport, route.region, sent.order.rdma.gid_index) == ("rdma", other, 1)
    end = RouteEnd(
        term=1, sync=w.sync, writer=WRITER, target="a", rank=0, grant=grant_of("a"), verified=True, transport="rdma"
    )
    w.shard().feed(e.RouteEnded(end)).decide().commit("a")
    (found,) = w.outcome().engines
    assert found.routes == (RouteTransport(rank=0, source=WRITER.key, transport="rdma"),)
    last = report_of(w.machine).last_sync
    assert last is not None
    assert last.routes == {"rdma": 1}
