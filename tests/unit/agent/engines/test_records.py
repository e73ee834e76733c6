"""Incarnations, the call's constant body, keys, and a running rank against its layout."""

import base64
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

from weightsync.errors import InputError
from weightsync.layout import lay_out
from weightsync_agent.engines.base import Description, LiveParameter, description_problem
from weightsync_agent.engines.incarnation import engine_incarnation, is_new_life
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.payload import EMPTY_LIST, hook_call


def _described(rank: int, incarnation: str, *parameters: dict[str, Any]) -> Description:
    defaults: dict[str, Any] = {"dtype": "float32", "shape": (2,), "contiguous": True, "nbytes": 8, "device": "cpu"}
    live = tuple(LiveParameter(**{**defaults, **p}) for p in parameters)
    return Description(rank=rank, incarnation=incarnation, parameters=live)


def test_any_ranks_restart_is_a_new_incarnation() -> None:
    """The order of the answers does not matter; another start time of one rank does."""
    a, b = _described(0, "10-100"), _described(1, "11-100")
    assert engine_incarnation([a, b]) == engine_incarnation([b, a])
    assert engine_incarnation([a, b]) != engine_incarnation([a, _described(1, "11-101")])
    assert len(engine_incarnation([a])) == 16


@pytest.mark.parametrize(
    ("left_with", "found", "new"),
    [
        pytest.param("", "default", False, id="nothing was set yet"),
        pytest.param("a.3", "a.3", False, id="as it was left"),
        pytest.param("a.3", "default", True, id="a fresh process"),
        pytest.param("torn:a.3", "default", True, id="a fresh process in the middle of a commit"),
    ],
)
def test_a_version_that_nobody_set_tells_of_a_new_life(left_with: str, found: str, new: bool) -> None:
    """Cheap enough for each second."""
    assert is_new_life(left_with, found) is new


def test_the_constant_is_an_empty_list() -> None:
    """It unpickles to [], calls for no class, and is what the pickler of torch's processes writes."""
    data = base64.b64decode(EMPTY_LIST, validate=True)
    assert pickle.loads(data) == []  # noqa: S301 - our own constant
    assert data == ForkingPickler.dumps([], protocol=4)


def test_one_entry_for_each_tensor_parallel_rank() -> None:
    """Each rank takes its own entry; the call never flushes by itself."""
    body = hook_call(4)
    assert body["serialized_named_tensors"] == [EMPTY_LIST] * 4
    assert (body["flush_cache"], body["abort_all_requests"]) == (False, False)
    assert body["load_format"] == "weightsync_hook.load"


@pytest.mark.parametrize(
    ("admin", "api", "control", "other", "kind"),
    [
        pytest.param("a", "b", "a", "b", "admin", id="both: control takes the admin key"),
        pytest.param("a", "", "a", "", "admin", id="admin key alone: the rest is open"),
        pytest.param("", "b", "b", "b", "api", id="api key alone opens all"),
        pytest.param("", "", "", "", "", id="no key"),
    ],
)
def test_which_key_opens_what(admin: str, api: str, control: str, other: str, kind: str) -> None:
    """As SGLang decides it; and a key is not shown."""
    keys = Keys(admin, api)
    assert keys.headers(control=True).get("Authorization", "") == (f"Bearer {control}" if control else "")
    assert keys.headers(control=False).get("Authorization", "") == (f"Bearer {other}" if other else "")
    assert keys.kind == kind
    assert "Keys()" in repr(keys)


def test_keys_come_from_files(tmp_path: Path) -> None:
    """With the trailing newline of most Secrets; a file without a key is an error that names it."""
    (tmp_path / "admin").write_text("sesame\n")
    assert Keys.read(admin=tmp_path / "admin") == Keys(admin="sesame")
    (tmp_path / "api").write_text("\n")
    for name in ("api", "none"):
        with pytest.raises(InputError, match=str(tmp_path / name)):
            Keys.read(api=tmp_path / name)


def test_a_rank_whose_parameters_are_repacked_is_refused_first() -> None:
    """Bytes of the checkpoint would fit, and mean something else there."""
    described = _described(0, "1-1", {"name": "a"}).model_copy(update={"repacked": "mlp (Fp8) is repacked"})
    sentence = description_problem(described, lay_out([("a", "float32", (2,))]))
    assert sentence.startswith("rank 0: mlp (Fp8) is repacked, and this release of SGLang has no weight-update")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        pytest.param([{"name": "a"}, {"name": "b"}], "", id="the same table"),
        pytest.param([{"name": "b"}, {"name": "a"}], "", id="in another order"),
        pytest.param([{"name": "a"}], "b float32 (2,) is in the layout and no parameter", id="one is missing"),
        pytest.param(
            [{"name": "a"}, {"name": "b"}, {"name": "c"}], "c float32 (2,) of the engine", id="one too many"
        ),
        pytest.param(
            [{"name": "a"}, {"name": "b", "shape": (1, 2)}], "float32 (1, 2) in the engine", id="other shape"
        ),
        pytest.param([{"name": "a"}, {"name": "b", "dtype": "int32"}], "int32 (2,) in the engine", id="other dtype"),
        pytest.param([{"name": "a"}, {"name": "b", "contiguous": False}], "b is not contiguous", id="strided"),
        pytest.param([{"name": "a"}, {"name": "b"}, {"name": "c", "tied": "b"}], "", id="tied to one that is filled"),
        pytest.param([{"name": "a"}, {"name": "b"}, {"name": "c", "constant": 1.0}], "", id="a constant of its own"),
        pytest.param([{"name": "a"}, {"name": "b"}, {"name": "c", "constant": -1.0}], "", id="one not set yet"),
        pytest.param([{"name": "a"}, {"name": "b", "constant": 0.5}], "", id="a constant that has a row"),
        pytest.param(
            [{"name": "a"}, {"name": "b"}, {"name": "c", "constant": 0.5}],
            "c is 0.5 in the engine, set by its own",
            id="a constant that the engine's checkpoint set",
        ),
    ],
)
def test_a_running_rank_against_its_layout(parameters: list[dict[str, Any]], words: str) -> None:
    """The first difference by name, rank in front."""
    layout = lay_out([("a", "float32", (2,)), ("b", "float32", (2,))])
    sentence = description_problem(_described(3, "1-1", *parameters), layout)
    assert words in sentence
    assert bool(sentence) == bool(words)
    assert not sentence or sentence.startswith("rank 3: ")
