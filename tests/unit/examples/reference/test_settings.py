"""The command line, and what is said where it or the checkpoint is wrong."""

from pathlib import Path

import pytest

from reference.checkpoint import make_checkpoint
from reference.config import ModelConfig
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


@pytest.mark.parametrize("ranks", ["0", "9", "two"])
def test_a_number_of_ranks_that_is_none_is_refused(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All ranks are in one process, so there are few of them."""
    with pytest.raises(SystemExit):
        parse(["--model-path", "/m", "--tp-size", ranks])
    assert "--tp-size" in capsys.readouterr().err


def test_a_model_that_cannot_be_cut_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag is right, and the model's heads are not that many."""
    config = ModelConfig(vocab=8, hidden=8, layers=1, heads=2, kv_heads=2, head_dim=4, intermediate=8)
    make_checkpoint(tmp_path, config, seed=0)
    assert main(["--model-path", str(tmp_path), "--no-volume", "--tp-size", "4"]) == 1
    assert "heads 2 cannot be divided by 4 ranks" in capsys.readouterr().err


def test_a_wrong_checkpoint_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: what is wrong, and in which file."""
    assert main(["--model-path", str(tmp_path), "--no-volume"]) == 1
    assert capsys.readouterr().err.startswith(f"cannot start: {tmp_path}/config.json: cannot be read")
