"""A rank's model is built from a program's words only where that is the engine's release, and runs nobody's code."""

import pytest

from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.replicas import rebuild as module
from weightsync.replicas.engine import EngineSpec, Rebuild
from weightsync.replicas.rebuild import rebuilt, runs_code
from weightsync.testing import plain_program

RELEASE = "0.5.23"


def program(**changes: object) -> CopyProgram:
    """One whose engine is described so."""
    spec = EngineSpec.model_validate({"model": "/model", **changes})
    engine = Rebuild(release=RELEASE, spec=spec, files={"config.json": "{}"})
    return plain_program({"w": ("float32", (4,))}, rank=1).model_copy(update={"engine": engine.model_dump_json()})


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compute another thing."""
    monkeypatch.setattr(module, "release", lambda: "0.5.99")
    with pytest.raises(InputError, match=r"made by SGLang 0\.5\.23, here is 0\.5\.99$"):
        rebuilt(program())


@pytest.mark.parametrize("flag", ["--trust-remote-code", "--trust-remote", "--custom-weight-loader=os.system"])
def test_code_of_the_model_is_not_run(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    """Not under an abbreviation either: a program comes from another pod."""
    monkeypatch.setattr(module, "release", lambda: RELEASE)
    with pytest.raises(InputError, match="runs code that comes with the model"):
        rebuilt(program(flags=(flag,)))


@pytest.mark.parametrize("word", ["--dp", "8", "--", "--enable-dp-attention", "--moe-runner-backend=triton", ""])
def test_flags_that_cut_the_model_are_taken(word: str) -> None:
    """And their values."""
    assert not runs_code(word)


def test_what_is_no_description_is_refused() -> None:
    """With the rank, and the field."""
    with pytest.raises(InputError, match=r"^the copy program of rank 1: engine: .*Invalid JSON"):
        rebuilt(plain_program({"w": ("float32", (4,))}, rank=1))
