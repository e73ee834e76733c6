"""What an agent is wired from: where the shared secret comes from."""

import json
from pathlib import Path

import pytest

from weightsync.errors import InputError
from weightsync_agent.app import _auth
from weightsync_agent.peers.auth import Caller
from weightsync_agent.settings import Settings

PLAN = {"name": "p", "term": 0, "generation": 0}


def settings(folder: Path, secret: Path | None) -> Settings:
    """Of an agent of the plan file in ``folder``."""
    return Settings.from_environment(
        role="engine", plan=f"file:{folder}/plan", own_uid="e", directory=folder, secret_file=secret
    )


@pytest.mark.parametrize("named_by", ["the environment", "the plan file"])
async def test_the_secret_is_the_one_that_is_named(tmp_path: Path, named_by: str) -> None:
    """The environment's first, else the plan file's."""
    secret, other = tmp_path / "secret", tmp_path / "other"
    for path in (secret, other):
        path.touch(mode=0o600)
        path.write_text(f"a secret called {path.name}")
    by_plan = named_by == "the plan file"
    (tmp_path / "plan").write_text(json.dumps({"plan": PLAN, "secretFile": str(secret if by_plan else other)}))
    proof = _auth(settings(tmp_path, None if by_plan else secret), None)
    headers = await proof.credentials.headers()
    assert headers == {"Authorization": "Bearer a secret called secret"}
    assert await proof.verifier.verify(headers) == Caller("", "", "")


def test_without_a_secret_no_agent_starts(tmp_path: Path) -> None:
    """Not even where a plan is there: everybody would be let in."""
    (tmp_path / "plan").write_text(json.dumps({"plan": PLAN}))
    with pytest.raises(InputError, match="WEIGHTSYNC_SECRET_FILE is not set, and the plan file names none"):
        _auth(settings(tmp_path, None), None)
