"""Tokens: which are taken, for whom, and why others are not."""

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from weightsync.errors import InputError, Refused
from weightsync_agent.peers.tokens import Caller, Key, check, key_id, read_keys

POD = {
    "namespace": "rl",
    "node": {"name": "n", "uid": "u-n"},
    "pod": {"name": "rollout-1", "uid": "uid-1"},
    "serviceaccount": {"name": "agent", "uid": "u-s"},
}
ISSUER = "https://kubernetes.default.svc"
PRIVATE = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def public(private: Any, kid: str, algorithm: str) -> dict[str, Any]:
    """The public half as the API server publishes it."""
    kind = jwt.algorithms.RSAAlgorithm if algorithm.startswith("RS") else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(private.public_key()))
    return found | {"use": "sig", "kid": kid, "alg": algorithm}


KEYS = read_keys(ISSUER, {"keys": [public(PRIVATE, "k1", "RS256"), public(CURVE, "k2", "ES256")]})


def claims(**changes: Any) -> dict[str, Any]:
    """Claims as the API server makes them for a projected token. exp, nbf: seconds from now; None takes one away."""
    now = int(time.time())
    found: dict[str, Any] = {
        "aud": ["weightsync"],
        "exp": 3600,
        "iat": now,
        "nbf": 0,
        "iss": ISSUER,
        "jti": "x",
        "sub": "system:serviceaccount:rl:agent",
        "kubernetes.io": POD,
    } | changes
    for name in ("exp", "nbf"):
        if found[name] is not None:
            found[name] = now + found[name]
    return {name: value for name, value in found.items() if value is not None}


def token(changes: dict[str, Any], private: Any = PRIVATE, kid: str | None = "k1", algorithm: str = "RS256") -> str:
    """A signed token, made when it is needed: its times count from then."""
    return jwt.encode(claims(**changes), private, algorithm, headers={"kid": kid} if kid else None)


def found(text: str) -> Caller:
    """Who shows ``text``, by the cluster's keys."""
    return check(text, KEYS[key_id(text)])


Make = Callable[[], str]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: token({}), id="an RSA key's"),
        pytest.param(lambda: token({}, CURVE, "k2", "ES256"), id="an elliptic key's"),
        pytest.param(lambda: token({"aud": "weightsync"}), id="one audience as a word"),
        pytest.param(lambda: token({"aud": ["other", "weightsync"]}), id="for others too"),
        pytest.param(lambda: token({"exp": -10}), id="expired within what clocks may differ"),
        pytest.param(lambda: token({"nbf": 10}), id="from a clock that is a little ahead"),
    ],
)
def test_a_pods_token_says_which_pod_calls(make: Make) -> None:
    """uid, name and namespace of the pod that the token is bound to."""
    assert found(make()) == Caller("uid-1", "rollout-1", "rl")


def tampered() -> str:
    """A token whose payload was exchanged and whose signature was not."""
    head, _, signature = token({}).split(".")
    other = {"kubernetes.io": POD | {"pod": {"name": "x", "uid": "uid-9"}}}
    return f"{head}.{token(other).split('.')[1]}.{signature}"


def by_public_key() -> str:
    """A token signed with the public key as if it were a shared secret."""
    head, payload, _ = token({}).split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1","typ":"JWT"}').decode().rstrip("=")
    pem = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = hmac.digest(pem, f"{head}.{payload}".encode(), "sha256")
    return f"{head}.{payload}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def unsigned() -> str:
    """A token that says that it needs no signature."""
    return jwt.encode(claims(), "", "none", headers={"kid": "k1"})


def nested() -> str:
    """A header of brackets in brackets: to parse it would take more stack than there is."""
    head = base64.urlsafe_b64encode(b"[" * 5000).decode().rstrip("=")
    return f"{head}.{token({}).partition('.')[2]}"


def bound_to(value: object) -> Make:
    """A token with that in place of the pod's claims."""
    return lambda: token({"kubernetes.io": value})


@pytest.mark.parametrize(
    ("make", "status", "words"),
    [
        pytest.param(
            lambda: token({"aud": [ISSUER]}), 401, "not for audience weightsync", id="the API's own audience"
        ),
        pytest.param(lambda: token({"exp": -60}), 401, "has expired", id="expired"),
        pytest.param(lambda: token({"aud": []}), 401, 'missing the "aud"', id="no audience"),
        pytest.param(lambda: token({"aud": ["weightsync2", "WeightSync"]}), 401, "not for audience", id="like ours"),
        pytest.param(lambda: token({"nbf": 600}), 401, "not yet valid", id="not yet valid"),
        pytest.param(
            lambda: token({"iss": "https://x"}), 401, "another issuer than this cluster's", id="other issuer"
        ),
        pytest.param(lambda: token({}, OTHER), 401, "Signature verification failed", id="another cluster's key"),
        pytest.param(tampered, 401, "Signature verification failed", id="tampered with"),
        pytest.param(by_public_key, 401, "not valid", id="signed with the public key"),
        pytest.param(unsigned, 401, "not valid", id="not signed"),
        pytest.param(lambda: token({"exp": None}), 401, "exp", id="without an end"),
        pytest.param(lambda: token({"aud": None}), 401, "aud", id="without an audience"),
        pytest.param(bound_to(None), 403, "agent is bound to no pod", id="a person's or a script's"),
        pytest.param(bound_to({"namespace": "rl"}), 403, "bound to no pod", id="a service account's"),
        pytest.param(
            bound_to(POD | {"pod": {"uid": 3, "name": "x"}}), 403, "bound to no pod", id="a nonsensical pod"
        ),
        pytest.param(bound_to([]), 403, "bound to no pod", id="nonsensical claims"),
        pytest.param(lambda: "abc", 401, "is no token", id="no token at all"),
        pytest.param(lambda: "a.b.c", 401, "is no token", id="three dots of nothing"),
        pytest.param(lambda: token({}) + "\u00e9", 401, "letters that no token has", id="letters that are no ASCII"),
        pytest.param(lambda: "\udcff.x.y", 401, "letters that no token has", id="bytes that are no text"),
        pytest.param(lambda: "/w==.e30.", 401, "is no token", id="a header of no text"),
        pytest.param(lambda: token({"x": "y" * 8000}), 401, "at most 8192", id="huge"),
        pytest.param(nested, 401, "longer than 512", id="a header nested deep"),
        pytest.param(lambda: token({}, kid="k" * 600), 401, "longer than 512", id="a huge name of a key"),
        pytest.param(lambda: token({"iat": int(time.time()) + 600}), 401, "not valid", id="issued in the future"),
        pytest.param(lambda: token({"sub": None}), 401, "sub", id="without a subject"),
        pytest.param(lambda: token({}, kid=None), 401, "names no key", id="no key named"),
    ],
)
def test_any_other_token_is_refused(make: Make, status: int, words: str) -> None:
    """401 where it proves nothing, 403 where it proves somebody who is no pod; the sentence says what to do."""
    text = make()
    with pytest.raises(Refused) as caught:
        found(text)
    assert caught.value.status == status
    assert words in str(caught.value)
    assert text not in str(caught.value)


def test_a_key_set_without_usable_keys_is_refused() -> None:
    """Nobody is let in by a key that cannot check a signature; shared keys in the set are left out."""
    with pytest.raises(InputError, match=r"no key that can be used"):
        read_keys(ISSUER, {"keys": []})
    shared = {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "k3", "alg": "HS256"}
    assert set(read_keys(ISSUER, {"keys": [public(PRIVATE, "k1", "RS256"), shared]})) == {"k1"}


def test_a_key_of_the_set_carries_its_issuer() -> None:
    """Issuer and key are looked at together."""
    assert {kid: isinstance(key, Key) and key.issuer for kid, key in KEYS.items()} == {"k1": ISSUER, "k2": ISSUER}


@pytest.mark.parametrize("member", ["kid", "alg", "kty", "n"])
@pytest.mark.parametrize("value", [[["k"]], {}, 7, None], ids=["a list", "an object", "a number", "null"])
def test_a_key_with_members_that_are_no_text_is_left_out(member: str, value: object) -> None:
    """The others of the set are taken."""
    spoilt = public(PRIVATE, "k1", "RS256") | {member: value}
    assert set(read_keys(ISSUER, {"keys": [spoilt, public(CURVE, "k2", "ES256")]})) == {"k2"}
    for nothing in ([spoilt], "k", {}, None):
        with pytest.raises(InputError):
            read_keys(ISSUER, {"keys": nothing})
