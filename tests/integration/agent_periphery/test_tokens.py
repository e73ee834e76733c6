"""Tokens that a real API server issued, checked with the keys that it publishes."""

from pathlib import Path
from typing import Any

import pytest

from weightsync import names
from weightsync.errors import Refused
from weightsync_agent.own_pod.api import Api
from weightsync_agent.peers.auth import Auth, Caller, by_token
from weightsync_agent.peers.keys import KeyCache, KeyDocument

pytestmark = pytest.mark.apiserver


def auth(api: Api, token: str, namespace: str, folder: Path) -> Auth:
    """An agent's, with ``token`` where the kubelet would have put it."""

    async def fetch() -> KeyDocument:
        return KeyDocument(*await api.issuer_and_keys())

    (folder / "token").write_text(token)
    return by_token(folder / "token", KeyCache(fetch), namespace)


async def test_a_pods_token_is_known_by_any_other_pod(space: Any, tmp_path: Path) -> None:
    """The agent of one pod fetches the keys with its own rights and reads the other's uid from its token."""
    trainer, rollout = space.pod("trainer-0"), space.pod("rollout-1")
    async with space.api(rollout) as api:
        found = auth(api, space.token(trainer, names.AUDIENCE), space.name, tmp_path)
        assert await found.verifier.verify(await found.credentials.headers()) == Caller(
            trainer.uid, trainer.name, space.name
        )


@pytest.mark.parametrize(
    ("audience", "namespace", "status", "words"),
    [
        pytest.param("", None, 401, "not for audience weightsync", id="a token for the API server"),
        pytest.param("vault", None, 401, "not for audience weightsync", id="a token for somebody else"),
        pytest.param(names.AUDIENCE, "elsewhere", 403, "pods of its own namespace", id="a pod of another namespace"),
    ],
)
async def test_other_tokens_of_the_same_cluster_are_refused(
    space: Any, tmp_path: Path, *, audience: str, namespace: str | None, status: int, words: str
) -> None:
    """A token that was made for another purpose does not let its finder in here."""
    trainer = space.pod("trainer-0")
    async with space.api(trainer) as api:
        found = auth(api, space.token(trainer, audience), namespace or space.name, tmp_path)
        with pytest.raises(Refused, match=words) as caught:
            await found.verifier.verify(await found.credentials.headers())
        assert caught.value.status == status
