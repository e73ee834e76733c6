"""The trainer's Unix socket under bad input: a broken trainer is told so, and its agent goes on."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.budget import examples
from tests.fuzz.running import NONCE, PROGRAM, Answer, Running
from tests.fuzz.strategies import bodies, dumped, mutated

# The agent's thread may draw lots for its pauses while an input is made here.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

CONNECT: dict[str, Any] = {"rank": 0, "worldSize": 1, "stage": 0, "stages": 1, "nonce": NONCE}
PUBLISHES: dict[str, dict[str, Any]] = {
    "names": {"names": ["w"]},
    "filled": {"program": PROGRAM.digest, "offsets": [0], "digests": ["0" * 32]},
    "copied": {"seconds": 1.0},
    "failed": {"reason": "Raised", "message": "m"},
}
_SEQUENCES = itertools.count(10**6)  # none that the cases themselves name


def connected(trainer: Running) -> None:
    """A Publisher whose life has begun."""
    assert trainer.ask_socket("POST", "/v1/connect", dumped(CONNECT)).status == 200


def begun(trainer: Running) -> str:
    """A publish that goes on."""
    body = {"rank": 0, "nonce": NONCE, "sequence": next(_SEQUENCES), "label": "x"}
    answer = trainer.ask_socket("POST", "/v1/publishes", dumped(body))
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["id"])


def ended(trainer: Running, id_: str) -> None:
    """Nothing waits for it any more."""
    trainer.ask_socket("POST", f"/v1/publishes/{id_}/failed", dumped(PUBLISHES["failed"]))


def checked(trainer: Running, path: str, body: bytes) -> Answer:
    """One bad request over the socket."""
    before = trainer.seen()
    answer = trainer.ask_socket("POST", path, body)
    answer.check((path, body))
    if answer.refused and answer.status != 503:  # "ask again" may well begin what is waited for
        change = trainer.unchanged(before)
        assert not change, f"{path} {body!r:.300}: refused with {answer.body!r:.200}, and yet {change}"
    return answer


@pytest.mark.parametrize("path", ["/v1/connect", "/v1/publishes"])
@examples(40)
@given(data=st.data())
def test_a_bad_beginning_is_refused(trainer: Running, path: str, data: st.DataObject) -> None:
    """A life or a publish that cannot be; one that can is ended again."""
    begin = {"rank": 0, "nonce": NONCE, "sequence": 1, "label": "x"}
    body = data.draw(bodies(CONNECT if path == "/v1/connect" else begin))
    connected(trainer)
    answer = checked(trainer, path, body)
    if not answer.refused and path == "/v1/publishes":
        ended(trainer, json.loads(answer.body)["id"])
    trainer.alive()


@pytest.mark.parametrize("kind", PUBLISHES)
@examples(40)
@given(data=st.data())
def test_a_publish_takes_no_nonsense(trainer: Running, kind: str, data: st.DataObject) -> None:
    """Names, offsets, digests and failures that cannot be: refused, and the publish can still be ended."""
    body = data.draw(bodies(PUBLISHES[kind]))
    connected(trainer)
    id_ = begun(trainer)
    try:
        checked(trainer, f"/v1/publishes/{id_}/{kind}", body)
    finally:
        ended(trainer, id_)
    trainer.alive()


STEP = st.sampled_from(list(PUBLISHES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.booleans(), mutated(PUBLISHES[kind], 1).map(dumped))
)


@examples(40)
@given(steps=st.lists(STEP, max_size=6))
def test_steps_in_any_order_are_done_or_refused(trainer: Running, steps: list[tuple[str, bool, bytes]]) -> None:
    """Filled before named, copied before filled, after a failure, twice, of a publish that is not known."""
    connected(trainer)
    id_ = begun(trainer)
    try:
        for kind, known, body in steps:
            path = f"/v1/publishes/{id_ if known else 'none'}/{kind}"
            trainer.ask_socket("POST", path, body).check((kind, body))
    finally:
        ended(trainer, id_)
    trainer.alive()


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "1e999", "", "x", "9" * 5000, "0"])
def test_a_wait_is_a_number_of_seconds(trainer: Running, wait: str) -> None:
    """What is none is refused, what is too long is cut short: the publish has ended, so nobody waits here."""
    connected(trainer)
    id_ = begun(trainer)
    ended(trainer, id_)
    answer = trainer.ask_socket("GET", f"/v1/publishes/{id_}/outcome?wait={wait}")
    answer.check(wait)
    assert answer.status == (400 if wait in ("nan", "", "x") else 200)
    trainer.alive()


def test_no_more_ranks_than_a_pod_can_announce(trainer: Running) -> None:
    """The 65th rank is refused; those that are there go on."""
    for rank in range(64):
        body = dumped(CONNECT | {"rank": rank, "worldSize": 100})
        assert trainer.ask_socket("POST", "/v1/connect", body).status == 200
    answer = checked(trainer, "/v1/connect", dumped(CONNECT | {"rank": 64, "worldSize": 100}))
    assert b"TooManyRanks" in answer.body
    connected(trainer)
    trainer.alive()
