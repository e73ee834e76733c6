"""Whose token it is: a service account token checked against the cluster's keys. No I/O."""

from typing import Any, NamedTuple

import jwt

from weightsync import names
from weightsync.errors import InputError, Refused

# Never taken from the token itself: a symmetric one would let anybody sign with the public key.
ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
LEEWAY_SECONDS = 30  # clocks of nodes differ
REQUIRED = ("exp", "iat", "iss", "aud", "sub")
# Anybody may show anything before a signature is looked at: what is longer, or nested deeper than so many characters
# of a header can be, is not even parsed. Projected tokens have about 1,200, of which 100 are the header.
LONGEST = 8192
LONGEST_HEADER = 512


class Caller(NamedTuple):
    """The pod that calls; all empty where that cannot be known."""

    uid: str
    pod: str
    namespace: str


class Key(NamedTuple):
    """One of the cluster's public keys, and the issuer of the tokens that it signs."""

    issuer: str
    jwk: jwt.PyJWK


def read_keys(issuer: str, document: dict[str, Any]) -> dict[str, Key]:
    """The API server's /openid/v1/jwks, by key id. Raises InputError where no key in it can be used."""
    keys = document.get("keys")
    readable = [key for key in keys if _is_readable(key)] if isinstance(keys, list) else []
    try:
        found = jwt.PyJWKSet.from_dict({"keys": readable})
    except jwt.PyJWTError as error:
        raise InputError(f"the API server's /openid/v1/jwks holds no key that can be used: {error}") from error
    return {key.key_id: Key(issuer, key) for key in found.keys if key.key_id and key.algorithm_name in ALGORITHMS}


def _is_readable(key: object) -> bool:
    """PyJWT takes these members for text without a look: anything else raises what no caller expects."""
    members = ("kty", "kid", "alg", "use", "n", "e", "crv", "x", "y")
    return isinstance(key, dict) and all(isinstance(key.get(member, ""), str) for member in members)


def key_id(token: str) -> str:
    """Which key signed it, as the token says. Raises Refused where it is no token."""
    if len(token) > LONGEST:
        raise _refused(f"the token has {len(token)} characters: service account tokens have at most {LONGEST}")
    if not token.isascii():
        raise _refused("what the caller shows is no token: it holds letters that no token has")
    if len(token.partition(".")[0]) > LONGEST_HEADER:
        raise _refused(f"the token's header is longer than {LONGEST_HEADER} characters: it is no service account's")
    try:
        found = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise _refused(f"what the caller shows is no token: {error}") from error
    if not isinstance(found, str) or not found:
        raise _refused("the token names no key: service account tokens do")
    return found


def check(token: str, key: Key) -> Caller:
    """The pod that ``token`` is bound to. Raises Refused: 401 for a bad token, 403 where it is no pod's."""
    try:
        claims = jwt.decode(
            token,
            key.jwk,
            algorithms=ALGORITHMS,
            audience=names.AUDIENCE,
            issuer=key.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": list(REQUIRED)},
        )
    except jwt.ExpiredSignatureError as error:
        raise _refused("the token has expired: does the caller read its projected token again?") from error
    except jwt.InvalidAudienceError as error:
        raise _refused(f"the token is not for audience {names.AUDIENCE}: project one that is") from error
    except jwt.InvalidIssuerError as error:
        raise _refused(f"the token is of another issuer than this cluster's, {key.issuer}") from error
    except jwt.PyJWTError as error:
        raise _refused(f"the token is not valid: {error}") from error
    return _pod(claims)


def _pod(claims: dict[str, Any]) -> Caller:
    try:
        bound = claims["kubernetes.io"]
        found = Caller(bound["pod"]["uid"], bound["pod"]["name"], bound["namespace"])
    except (KeyError, TypeError):
        found = Caller("", "", "")
    if not all(isinstance(part, str) and part for part in found):
        raise Refused(
            f"the token of {claims['sub']} is bound to no pod: use one that the kubelet projects into a pod",
            reason="NoPod",
            status=403,
        )
    return found


def _refused(sentence: str) -> Refused:
    return Refused(sentence, reason="TokenRefused", status=401)
