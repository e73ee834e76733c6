"""The command line, and what is said where it or the checkpoint is wrong."""

from pathlib import Path

import pytest

from reference.server import main
from reference.settings import parse
from weightsync import names


def test_sglangs_flags_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With SGLang's defaults; name and volume come from the environment."""
    monkeypatch.setenv("POD_NAME", "rollout-0")
    monkeypatch.setenv(names.DIRECTORY_ENV, str(tmp_path))
    settings = parse(["--model-path", "/m", "--custom-weight-loader", "weightsync_hook.load", "other.load"])
    assert (settings.port, settings.weight_version, settings.act_as) == (30000, "default", "0.5.23")
    assert settings.loaders == ("weightsync_hook.load", "other.load")
    assert settings.engine_name == "rollout-0"
    assert settings.volume == tmp_path
    assert not settings.shallow_health
    assert parse(["--model-path", "/m", "--no-volume"]).volume is None


def test_more_than_one_rank_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Layouts exist for any tp size, a server only for 1."""
    with pytest.raises(SystemExit):
        parse(["--model-path", "/m", "--tp-size", "2"])
    assert "--tp-size" in capsys.readouterr().err


def test_a_wrong_checkpoint_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: what is wrong, and in which file."""
    assert main(["--model-path", str(tmp_path), "--no-volume"]) == 1
    assert capsys.readouterr().err.startswith(f"cannot start: {tmp_path}/config.json: cannot be read")
