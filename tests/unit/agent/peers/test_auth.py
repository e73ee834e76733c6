"""What agents show one another, and whom they let in."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from weightsync.errors import InputError, Refused
from weightsync_agent.peers.auth import Auth, Caller, by_nothing, by_secret, by_token
from weightsync_agent.peers.keys import KeyCache, KeyDocument
from weightsync_agent.peers.server import own

PRIVATE = ec.generate_private_key(ec.SECP256R1())
ISSUER = "https://kubernetes.default.svc"
SECRET = "a shared secret of ours"  # noqa: S105 - shown to nobody outside of these tests


async def keys() -> KeyDocument:
    """The cluster's key."""
    key: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key()))
    return KeyDocument(ISSUER, {"keys": [key | {"kid": "k", "alg": "ES256"}]})


def token(namespace: str = "rl", audience: str = "weightsync", uid: str = "uid-t") -> str:
    """A pod's token."""
    now = int(time.time())
    bound = {"namespace": namespace, "pod": {"name": "trainer-0", "uid": uid}}
    claims = {"aud": [audience], "exp": now + 60, "iat": now, "iss": ISSUER, "sub": "s", "kubernetes.io": bound}
    return jwt.encode(claims, PRIVATE, "ES256", headers={"kid": "k"})


def tokens(tmp_path: Path, text: str) -> Auth:
    """Both sides, with ``text`` as the projected token, in namespace rl."""
    (tmp_path / "token").write_text(text + "\n")
    return by_token(tmp_path / "token", KeyCache(keys), "rl")


def write_secret(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    """A file of that content that only its owner may read."""
    path = tmp_path / "secret"
    path.touch()
    path.chmod(mode)
    path.write_text(text)
    return path


def secrets(tmp_path: Path, text: str) -> Auth:
    """Both sides, with ``text`` as the secret."""
    return by_secret(write_secret(tmp_path, text + "\n"))


async def test_a_token_says_which_pod_calls(tmp_path: Path) -> None:
    """What one side shows, the other reads as pod, uid and namespace."""
    auth = tokens(tmp_path, token())
    assert await auth.verifier.verify(await auth.credentials.headers()) == Caller("uid-t", "trainer-0", "rl")


async def test_a_renewed_token_is_shown_at_once(tmp_path: Path) -> None:
    """The kubelet swaps a link: the next request carries the new token."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "token").write_text(f"token-{number}")
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "1")
    auth = by_token(link / "token", KeyCache(keys), "rl")
    assert await auth.credentials.headers() == {"Authorization": "Bearer token-1"}
    swapped = tmp_path / "new"
    swapped.symlink_to(tmp_path / "2")
    swapped.rename(link)
    assert await auth.credentials.headers() == {"Authorization": "Bearer token-2"}


async def test_a_pod_of_another_namespace_is_known_and_refused(tmp_path: Path) -> None:
    """403 that names both namespaces: a WeightSync joins pods of its own."""
    auth = tokens(tmp_path, token(namespace="other"))
    with pytest.raises(Refused, match="trainer-0 is in namespace other, this agent in rl") as caught:
        await auth.verifier.verify(await auth.credentials.headers())
    assert (caught.value.status, caught.value.reason) == (403, "WrongNamespace")


async def test_a_secret_lets_in_who_holds_it(tmp_path: Path) -> None:
    """Whoever shows it is somebody of the plan, unknown whom; a changed file counts from its change on."""
    auth = secrets(tmp_path, SECRET)
    before = await auth.credentials.headers()
    assert await auth.verifier.verify(before) == Caller("", "", "")
    (tmp_path / "secret").write_text("another secret of ours")
    os.utime(tmp_path / "secret", ns=(1, 1))
    with pytest.raises(Refused, match="give all agents the same file") as caught:
        await auth.verifier.verify(before)
    assert caught.value.status == 401
    assert await auth.verifier.verify(await auth.credentials.headers()) == Caller("", "", "")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no header"),
        pytest.param({"Authorization": ""}, id="an empty header"),
        pytest.param({"Authorization": "Bearer"}, id="no token"),
        pytest.param({"Authorization": "Bearer  "}, id="blanks"),
        pytest.param({"Authorization": f"Basic {SECRET}"}, id="another scheme"),
        pytest.param({"Authorization": SECRET}, id="no scheme"),
        pytest.param({"Authorization": f"Bearer {SECRET}x"}, id="more than the secret"),
        pytest.param({"Authorization": f"Bearer {SECRET[:-1]}"}, id="less than the secret"),
        pytest.param({"Authorization": "Bearer \u00e9\u00e9\u00e9"}, id="letters that are no ASCII"),
        pytest.param({"Authorization": "Bearer \udce9\udcff"}, id="bytes that are no text"),
        pytest.param({"Authorization": f"Bearer {'x' * 100_000}"}, id="a huge one"),
    ],
)
async def test_nobody_else_is_let_in(tmp_path: Path, headers: dict[str, str]) -> None:
    """401 in either way, whatever is missing or wrong."""
    for auth in (secrets(tmp_path, SECRET), tokens(tmp_path, token())):
        with pytest.raises(Refused) as caught:
            await auth.verifier.verify(headers)
        assert caught.value.status == 401


async def test_without_authentication_nothing_is_shown_and_all_are_let_in() -> None:
    """For a machine of one's own."""
    auth = by_nothing()
    assert await auth.credentials.headers() == {}
    assert await auth.verifier.verify({}) == Caller("", "", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param("", "is empty", id="an empty file"),
        pytest.param("short", "5 characters are no secret: write at least 16", id="too short to be one"),
    ],
)
def test_a_secret_that_is_none_is_refused_at_the_start(tmp_path: Path, text: str | None, words: str) -> None:
    """An empty secret would let everybody in."""
    if text is not None:
        write_secret(tmp_path, text)
    with pytest.raises(InputError, match=words):
        by_secret(tmp_path / "secret")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o666], ids="{:o}".format)
def test_a_secret_that_everybody_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """It says how to mend that; the group's members may read it."""
    path = write_secret(tmp_path, SECRET, mode)
    with pytest.raises(InputError, match=r"everybody on this machine .*: chmod o-rwx"):
        by_secret(path)
    path.chmod(0o640)
    by_secret(path)


@pytest.mark.parametrize(
    ("spoil", "logged"),
    [
        pytest.param(lambda path: path.unlink(), "cannot be read", id="removed"),
        pytest.param(lambda path: path.write_text("short"), "are no secret", id="too short now"),
        pytest.param(lambda path: path.write_text(""), "is empty", id="emptied"),
        pytest.param(lambda path: path.chmod(0o644), "everybody on this machine", id="opened to everybody"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * 32), "cannot be read", id="no text"),
        pytest.param(lambda path: path.write_text("x" * 100_000), "more than 65536 bytes", id="huge"),
        pytest.param(lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "is no file", id="a pipe"),
    ],
)
async def test_a_secret_spoilt_at_run_time_lets_nobody_in(
    tmp_path: Path, spoil: Callable[[Path], object], logged: str
) -> None:
    """Not even who knows the former one; the caller hears that it is not its fault, and no path; the log says why."""
    auth = secrets(tmp_path, SECRET)
    shown = await auth.credentials.headers()
    assert await auth.verifier.verify(shown) == Caller("", "", "")
    spoil(tmp_path / "secret")
    with structlog.testing.capture_logs() as logs, pytest.raises(Refused) as caught:
        await auth.verifier.verify(shown)
    assert (caught.value.status, caught.value.reason) == (503, "NoSecret")
    assert str(tmp_path) not in str(caught.value)
    assert logged in logs[0]["problem"]
    with pytest.raises(InputError):
        await auth.credentials.headers()


@pytest.mark.parametrize(
    ("claimed", "allowed"),
    [
        pytest.param("uid-t", True, id="itself"),
        pytest.param("uid-other", False, id="another pod"),
        pytest.param("", False, id="nobody"),
    ],
)
async def test_a_caller_speaks_for_its_own_pod_only(tmp_path: Path, claimed: str, allowed: bool) -> None:
    """The uid in the body must be the token's: 403 that names both."""
    auth = tokens(tmp_path, token())
    caller = await auth.verifier.verify(await auth.credentials.headers())
    if allowed:
        own(caller, claimed)
        return
    with pytest.raises(
        Refused, match=f"the token is of pod trainer-0 .uid-t., not of {claimed or 'nobody'}"
    ) as caught:
        own(caller, claimed)
    assert (caught.value.status, caught.value.reason) == (403, "NotYou")


async def test_a_replaced_pods_token_does_not_speak_for_its_successor(tmp_path: Path) -> None:
    """Same name, another uid: a token that outlives its pod is nobody's of the new plan."""
    auth = tokens(tmp_path, token(uid="uid-of-the-old"))
    caller = await auth.verifier.verify(await auth.credentials.headers())
    assert caller.pod == "trainer-0"
    with pytest.raises(Refused, match=r"not of uid-t"):
        own(caller, "uid-t")


async def test_with_a_shared_secret_any_holder_may_claim_to_be_anybody(tmp_path: Path) -> None:
    """Said in docs/guarantees.md; nothing can be told apart here."""
    auth = secrets(tmp_path, SECRET)
    own(await auth.verifier.verify(await auth.credentials.headers()), "whoever")


async def test_a_missing_token_is_an_error_of_this_agent(tmp_path: Path) -> None:
    """The path is named; nothing is sent without proof."""
    auth = by_token(tmp_path / "token", KeyCache(keys), "rl")
    with pytest.raises(InputError, match="token: cannot be read"):
        await auth.credentials.headers()
