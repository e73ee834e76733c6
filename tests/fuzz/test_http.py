"""The agent's HTTP API under bad input: done, or refused by a Problem, in time, and then without effect."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import examples
from tests.fuzz.running import NONCE, PROGRAM, Running
from tests.fuzz.strategies import JSON, RAW, bodies, dumped

# The agent's thread may draw lots for its pauses while an input is made here.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

Json = dict[str, Any]

VERSION = {"lineage": "2" * 16, "number": 1, "root": "3" * 64}
WRITER = {"uid": "t0", "rank": 0}
GRANT = "4" * 32
OURS = {"mooncake": "0.3.13.post1", "transport": "tcp", "tcpProtocol": 2, "settings": {}}
BUCKETS = [{"offset": 0, "nbytes": 16, "digest": "0" * 32}]
RANK = {"rank": 0, "grant": GRANT, "program": PROGRAM.digest}
ROUTE = {
    "engine": "e0", "target": "e0", "rank": 0, "address": "127.0.0.1:1", "program": PROGRAM.digest,
    "layout": PROGRAM.layout.digest, "grant": GRANT,
    "region": {"session": "127.0.0.1:15000", "address": 4096, "nbytes": 16},
}  # fmt: skip
ORDER = {
    "sync": "s", "term": 1, "lineage": "2" * 16, "number": 1, "bucketSize": 4096, "deadlineSeconds": 0.1,
    "stallSeconds": 0.01, "programs": [PROGRAM.digest], "routes": [ROUTE],
}  # fmt: skip

ENGINE_BODIES: dict[str, Json] = {
    "/v1/grants": {
        "term": 1, "coordinator": "t0", "sync": "s", "rank": 0, "layout": PROGRAM.layout.digest,
        "program": PROGRAM.digest, "lineage": "2" * 16, "number": 1, "writers": [WRITER], "ours": OURS,
    },
    "/v1/void": {"term": 1, "coordinator": "t0", "rank": 0, "grant": GRANT, "writers": [WRITER]},
    "/v1/receipts": {"term": 1, "grant": GRANT, "rank": 0, "writer": WRITER, "buckets": BUCKETS, "last": True},
    "/v1/commits": {
        "term": 1, "coordinator": "t0", "sync": "s", "version": VERSION, "label": "x",
        "programs": {PROGRAM.digest: "5" * 64}, "ranks": [RANK], "strategy": {"pauseMode": "Abort"},
    },
    "/v1/welcome": {"term": 1, "coordinator": "t0", "initialGate": "Open"},
    "/v1/leases": {"reader": "t0", "version": VERSION, "programs": {"0": PROGRAM.digest}, "ours": OURS,
                   "waits": True},
    "/v1/leases/more": {"reader": "t0", "rank": 0, "grant": GRANT, "after": 0, "wait": 0.01, "ours": OURS},
    "/v1/leases/end": {"reader": "t0"},
    "/v1/relays": {
        "term": 1, "coordinator": "t0", "sync": "s", "turn": 1, "uid": "e1", "engine": "e1", "address": "127.0.0.1:1",
        "ranks": [{"rank": 0, "grant": GRANT, "parent": GRANT}], "deadlineSeconds": 0.1, "stallSeconds": 0.01,
    },
    "/v1/passes": {"reader": "t0", "term": 1, "rank": 0, "grant": GRANT, "after": 0, "wait": 0.01, "ours": OURS},
    "/v1/readback": {},
    "/v1/members": {
        "uid": "t0", "life": NONCE, "address": "127.0.0.1:1", "node": 1,
        "ranks": [{"rank": 1, "layout": PROGRAM.layout.digest, "program": PROGRAM.digest, "arenas": ["a"]}],
    },
}  # fmt: skip
CALL: Json = {"leader": "t0", "target": "t0", "life": NONCE}
SEALED: Json = {"rank": 0, "program": PROGRAM.digest, "arena": "a", "buckets": BUCKETS}
MEMBER_BODIES: dict[str, Json] = {
    "/v1/member/arenas": CALL,
    "/v1/member/recoveries": CALL | {"version": VERSION, "ranks": [SEALED]},
    "/v1/member/certificates": CALL | {"certificate": NONCE, "step": "Lend", "grants": {"0": GRANT}},
    "/v1/member/holds": CALL | {"version": VERSION, "grants": {"0": GRANT}},
    "/v1/member/releases": CALL,
    "/v1/member/asks": CALL | {"op": "apply", "ranks": [{"rank": 0, "arena": "a", "grant": GRANT}]},
    "/v1/member/results": CALL | {"ids": {"0": NONCE}},
    "/v1/member/withdrawals": CALL | {"ids": {"0": NONCE}},
}  # fmt: skip
TRAINER_BODIES: dict[str, Json] = {
    "/v1/publishes": {
        "writer": WRITER, "worldSize": 1, "stage": 0, "stages": 1, "nonce": NONCE, "sequence": 1, "label": "x",
    },
    "/v1/names": {"term": 1, "writer": WRITER, "stage": 0, "program": PROGRAM.digest, "names": ["w"]},
    "/v1/shards": {
        "term": 1, "sync": "s", "writer": WRITER, "stage": 0, "program": PROGRAM.digest, "buckets": BUCKETS,
    },
    "/v1/routes": {
        "term": 1, "sync": "s", "writer": WRITER, "target": "e0", "rank": 0, "grant": GRANT, "verified": True,
    },
    "/v1/trouble": {"writer": WRITER, "lineage": "2" * 16, "number": 1, "reason": "R", "message": "m"},
    "/v1/orders": {"writer": WRITER, "order": ORDER},
    "/v1/orders/end": {"sync": "s", "term": 1, "writer": WRITER, "version": VERSION},
    "/v1/quiet": {"grant": GRANT, "session": "10.0.0.9:15001"},
}  # fmt: skip


def sent(agent: Running, path: str, body: bytes) -> None:
    """One bad request: answered as it should be, and without effect where it was refused."""
    before = agent.seen()
    answer = agent.ask("POST", path, body)
    answer.check((path, body))
    if answer.refused and answer.status != 503:  # "ask again" may well begin what is waited for
        change = agent.unchanged(before)
        assert not change, f"{path} {body!r:.300}: refused with {answer.body!r:.200}, and yet {change}"


@pytest.mark.parametrize("path", ENGINE_BODIES)
@examples(40)
@given(data=st.data())
def test_an_engines_agent_refuses_or_does_what_it_is_asked(engine: Running, path: str, data: st.DataObject) -> None:
    """Each route, with bodies from nearly right to no document at all."""
    sent(engine, path, data.draw(bodies(ENGINE_BODIES[path])))
    engine.alive()


@pytest.mark.parametrize("path", TRAINER_BODIES)
@examples(40)
@given(data=st.data())
def test_a_trainers_agent_refuses_or_does_what_it_is_asked(trainer: Running, path: str, data: st.DataObject) -> None:
    """Each route, with bodies from nearly right to no document at all."""
    sent(trainer, path, data.draw(bodies(TRAINER_BODIES[path])))
    trainer.alive()


@pytest.mark.parametrize("path", MEMBER_BODIES)
@examples(15)
@given(data=st.data())
def test_a_members_agent_refuses_or_does_what_it_is_asked(member: Running, path: str, data: st.DataObject) -> None:
    """Each route of a pod that another leads, with bodies from nearly right to no document at all."""
    sent(member, path, data.draw(bodies(MEMBER_BODIES[path])))
    member.alive()


BEYOND = [
    pytest.param("/v1/publishes", {"worldSize": 10**12}, "worldSize", id="a world without end"),
    pytest.param("/v1/publishes", {"writer": {"uid": "t0", "rank": 1}}, "both count from 0", id="a rank of no world"),
    pytest.param("/v1/publishes", {"stage": 1}, "both count from 0", id="a stage of no trainer"),
    pytest.param("/v1/publishes", {"sequence": 2**63 - 1, "offset": 9}, "such a number", id="a number of no version"),
    pytest.param("/v1/publishes", {"sequence": 10**400}, "sequence", id="a number of four hundred digits"),
    pytest.param("/v1/orders/end", {"term": 2**63}, "term", id="a term that no header holds"),
    pytest.param(
        "/v1/orders", {"order": ORDER | {"stallSeconds": float("inf")}}, "stallSeconds", id="a wait for ever"
    ),
    pytest.param("/v1/orders", {"order": ORDER | {"stallSeconds": 1e300}}, "stallSeconds", id="a wait of ages"),
    pytest.param("/v1/orders", {"order": ORDER | {"bucketSize": 1}}, "bucketSize", id="buckets of a byte"),
    pytest.param("/v1/shards", {"buckets": [BUCKETS[0] | {"offset": 2**63}]}, "offset", id="a bucket beyond all"),
    pytest.param("/v1/commits", {"programs": {"x": "5" * 64}}, "programs", id="a digest that is none"),
    pytest.param(
        "/v1/commits", {"version": VERSION | {"number": 2**63}}, "number", id="a version that no header holds"
    ),
    pytest.param("/v1/grants", {"number": 0}, "number", id="a version before the first"),
    pytest.param("/v1/grants", {"writers": []}, "writers", id="a grant to nobody"),
    pytest.param("/v1/receipts", {"rank": -1}, "rank", id="a rank below all"),
]


@pytest.mark.parametrize(("path", "change", "words"), BEYOND)
def test_what_no_part_is_made_for_is_refused_where_it_is_read(
    engine: Running, trainer: Running, path: str, change: Json, words: str
) -> None:
    """400 that names the field: none of these may get as far as a header, a digest, a loop or a timer."""
    agent, known = (engine, ENGINE_BODIES) if path in ENGINE_BODIES else (trainer, TRAINER_BODIES)
    before = agent.seen()
    answer = agent.ask("POST", path, dumped(known[path] | change))
    answer.check(change)
    assert answer.status == 400
    assert words in answer.body.decode()
    assert not agent.unchanged(before)
    agent.alive()


WORDS = st.one_of(
    st.sampled_from(["nan", "inf", "-1", "1e400", "", "x", "0x10", "9" * 5000, "%00", "\u0661", "..", "%2e%2e"]),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30),
)


def quoted(word: str) -> str:
    """As a URL carries it."""
    return "".join(c if c.isalnum() and c.isascii() else "".join(f"%{b:02x}" for b in c.encode()) for c in word)


@examples(80)
@given(wait=WORDS, number=WORDS)
def test_questions_with_nonsense_in_their_address_are_refused(trainer: Running, wait: str, number: str) -> None:
    """Numbers that are none, that have no end, or that are in no alphabet of ours: 4xx."""
    for path in (
        f"/v1/outcomes/{'2' * 16}/{quoted(number)}?wait={quoted(wait)}",
        f"/v1/outcomes/{quoted(number)}/1",
        f"/v1/programs/{quoted(number)}",
        f"/{quoted(number)}",
    ):
        answer = trainer.ask("GET", path)
        if answer.status != 400 or answer.body.startswith(b"{"):  # else it was no HTTP, and no handler saw it
            answer.check(path)
        assert 400 <= answer.status < 500
    trainer.alive()


@examples(60)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]),
    path=st.sampled_from([*ENGINE_BODIES, *TRAINER_BODIES, "/", "//", "/v1", "/v2/grants", "/healthz", "/metrics"]),
    body=RAW,
    kind=st.sampled_from(
        ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a/b; charset=x"]
    ),
)
def test_wrong_methods_and_types_are_refused(engine: Running, method: str, path: str, body: bytes, kind: str) -> None:
    """A body is JSON whatever its type says; another method is 405, another path 404."""
    answer = engine.ask(method, path, body, {"Authorization": "Bearer x", "Content-Type": kind})
    answer.check((method, path, kind))
    assert answer.status in (200, 401, 404, 405)
    engine.alive()


@examples(60)
@given(header=st.binary(max_size=300).filter(lambda b: b"\r" not in b and b"\n" not in b and b"\x00" not in b))
def test_nobody_gets_in_by_a_strange_header(engine: Running, header: bytes) -> None:
    """Any bytes as a proof: 400 or 401, and nothing else."""
    answer = engine.raw(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + header + b"\r\n\r\n")
    assert answer.split(b" ", 2)[1] in (b"400", b"401")
    engine.alive()


@examples(60)
@given(data=st.one_of(st.binary(min_size=1, max_size=200), JSON.map(dumped)))
def test_what_is_no_http_is_refused(engine: Running, data: bytes) -> None:
    """A stranger's bytes on the port: an answer of 400, or the connection is closed; the agent goes on."""
    answer = engine.raw(data + b"\r\n\r\n")
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    engine.alive()
