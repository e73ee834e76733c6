"""Every route of an agent asks who calls, and whether it may: the agents as they are wired, over HTTP."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.fuzz.running import Running
from tests.fuzz.strategies import dumped
from tests.fuzz.test_http import ENGINE_BODIES, MEMBER_BODIES, TRAINER_BODIES, WRITER
from weightsync.errors import Refused
from weightsync.wire.v1 import Problem
from weightsync_agent.own_pod.no_pod import NoPod
from weightsync_agent.peers import members
from weightsync_agent.peers.auth import Caller, Verifier
from weightsync_agent.peers.heads import Head

ROLES = ("engine", "member", "trainer")
SPEAKS = {path: body for path, body in ENGINE_BODIES.items() if body}  # a readback speaks for nobody
NO_COORDINATORS = (
    *("/v1/receipts", "/v1/members", "/v1/passes"),
    *("/v1/leases", "/v1/leases/more", "/v1/leases/end"),
)
ASKED = (
    *("/v1/announcement", "/v1/status", "/v1/held", "/v1/report"),
    *(f"/v1/programs/{'0' * 32}", f"/v1/outcomes/{'0' * 16}/1"),
)


class Said(Verifier):
    """Lets in the pod whose uid the header X-Uid is, and nobody without one."""

    async def verify(self, headers: Mapping[str, str]) -> Caller:
        uid = headers.get("X-Uid")
        if not uid:
            raise Refused("no proof", reason="NoToken", status=401)
        return Caller(uid, f"pod-{uid}", "rl")


async def head() -> Head:
    """The operator made another pod coordinator."""
    return 7, "t7"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """One of each role, by the role."""
    patch = pytest.MonkeyPatch()
    patch.setattr(members, "WAIT_SECONDS", 0.01)
    found = {role: Running(tmp_path_factory.mktemp(role), role, Said(), head) for role in ROLES}
    yield found
    for one in found.values():
        one.close()
    patch.undo()


def answered(agent: Running, path: str, body: dict[str, Any] | None, uid: str) -> tuple[int, str]:
    """Status and reason."""
    headers = {"X-Uid": uid} if uid else {}
    data = None if body is None else dumped(body)
    answer = agent.ask("GET" if body is None else "POST", path, data, headers)
    return answer.status, Problem.model_validate_json(answer.body).reason if answer.refused else ""


@pytest.mark.parametrize("path", [*ENGINE_BODIES, *MEMBER_BODIES, *TRAINER_BODIES, *ASKED])
def test_nobody_is_answered_without_proof(agents: dict[str, Running], path: str) -> None:
    """401 on every route of either role; another role's are not there."""
    for agent in agents.values():
        body = (ENGINE_BODIES | MEMBER_BODIES | TRAINER_BODIES).get(path)
        assert answered(agent, path, body, "") in ((401, "NoToken"), (404, "HTTP"))


def test_every_route_is_among_these(agents: dict[str, Running]) -> None:
    """A route that is new must be named here, so that somebody thinks of who may call it."""
    open_to_all = {"/healthz", "/readyz", "/metrics"}
    known = {
        *ENGINE_BODIES,
        *MEMBER_BODIES,
        *TRAINER_BODIES,
        *open_to_all,
        *(path.rsplit("/0", 1)[0] for path in ASKED),
    }
    for agent in agents.values():
        for resource in agent.server.application.router.resources():
            assert resource.canonical.split("/{")[0] in known, resource.canonical


@pytest.mark.parametrize("path", [*SPEAKS, *MEMBER_BODIES, *TRAINER_BODIES])
def test_a_pod_speaks_for_itself_only(agents: dict[str, Running], path: str) -> None:
    """403 where the body names another pod than the token; of orders, where the caller does not coordinate."""
    agent = agents["engine" if path in SPEAKS else "member" if path in MEMBER_BODIES else "trainer"]
    body = (SPEAKS | MEMBER_BODIES | TRAINER_BODIES).get(path)
    assert answered(agent, path, body, "t1") == (403, "NotYou")


@pytest.mark.parametrize("path", sorted(set(TRAINER_BODIES) - {"/v1/orders", "/v1/orders/end", "/v1/quiet"}))
def test_a_pod_that_is_no_source_of_the_plan_is_refused(agents: dict[str, Running], path: str) -> None:
    """403, for all that it says of itself truly."""
    body = TRAINER_BODIES[path] | {"writer": WRITER | {"uid": "t9"}}
    assert answered(agents["trainer"], path, body, "t9") == (403, "NotInPlan")


@pytest.mark.parametrize("path", sorted(path for path in SPEAKS if path not in NO_COORDINATORS))
def test_a_coordinator_that_the_head_does_not_name_is_refused(agents: dict[str, Running], path: str) -> None:
    """403, though it says truly who it is; the one of the head is let in."""
    engine, body = agents["engine"], SPEAKS[path]
    assert answered(engine, path, body | {"term": 9, "coordinator": "t9"}, "t9") == (403, "NotCoordinator")
    assert answered(engine, path, body | {"term": 7, "coordinator": "t7"}, "t7")[1] != "NotCoordinator"


def test_a_readback_is_for_the_pod_itself_and_its_coordinator(agents: dict[str, Running]) -> None:
    """It makes the engine stand still: no other pod may ask for it, whatever its token proves."""
    engine = agents["engine"]
    assert answered(engine, "/v1/welcome", SPEAKS["/v1/welcome"] | {"term": 7, "coordinator": "t7"}, "t7")[0] == 200
    assert answered(engine, "/v1/readback", {}, "t9") == (403, "NotYou")
    for uid in ("t0", "t7"):  # the agent's own, and the coordinator's
        assert answered(engine, "/v1/readback", {}, uid) == (409, "NotCurrent")


@pytest.mark.parametrize("path", MEMBER_BODIES)
def test_a_pod_that_does_not_lead_is_refused_by_a_member(agents: dict[str, Running], path: str) -> None:
    """Whatever its token proves: a member obeys the pod that its own environment calls the leader."""
    life = agents["member"].agent.driver.life
    body = MEMBER_BODIES[path] | {"leader": "t9", "target": "t0", "life": life}
    assert answered(agents["member"], path, body, "t9") == (403, "NotLeader")


def test_a_writer_that_no_grant_names_is_refused(agents: dict[str, Running]) -> None:
    """A receipt closes parts of the grant that was given to its writer, and of no other."""
    body = SPEAKS["/v1/receipts"] | {"writer": WRITER | {"uid": "t9"}, "term": 7}
    status, reason = answered(agents["engine"], "/v1/receipts", body, "t9")
    assert (status, reason) in ((403, "NotAWriter"), (409, "GrantClosed"))


def test_an_agent_that_has_announced_nothing_yet_says_so(agents: dict[str, Running]) -> None:
    """No blank announcement, which would take the engine out of the plan: what is known of it stands."""
    pod = agents["engine"].common.own_pod
    assert isinstance(pod, NoPod)
    said, pod._announcement = pod._announcement, None
    try:
        assert answered(agents["engine"], "/v1/announcement", None, "t0") == (503, "NotAnnounced")
    finally:
        pod._announcement = said
