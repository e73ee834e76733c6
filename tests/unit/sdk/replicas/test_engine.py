"""What a rank's model is built from, and where a rank stands."""

import json
from pathlib import Path

import pytest

from weightsync.errors import InputError
from weightsync.replicas.engine import EngineSpec, Rebuild
from weightsync.replicas.groups import Placement, place


def test_a_rebuild_holds_the_configuration_and_not_its_place(tmp_path: Path) -> None:
    """The same model in two folders gives one text, so that their programs have one digest."""
    texts = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (folder / "tokenizer.json").write_text("large")
        texts.append(Rebuild.of(EngineSpec(model=str(folder), tp=2), "1.0").text())
    assert texts[0] == texts[1]
    again = Rebuild.read(texts[0], "here")
    (tmp_path / "c").mkdir()
    spec = again.lay(tmp_path / "c")
    assert spec == EngineSpec(model=str(tmp_path / "c"), tp=2)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "holds no config.json"),
        ("{", "config.json: is no JSON object"),
        ("[]", "config.json: is no JSON object"),
        ('{"model_type": "llama"}', 'config.json: names no model class: add "architectures"'),
    ],
)
def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    """Named, with what is wrong."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=said):
        Rebuild.of(EngineSpec(model=str(tmp_path)), "1.0")


def test_a_rebuild_writes_no_other_file(tmp_path: Path) -> None:
    """It comes out of a file that another pod wrote: a name is no path."""
    text = json.dumps({"release": "1", "spec": {"model": "."}, "files": {"../config.json": "{}"}})
    with pytest.raises(InputError, match="is not built from"):
        Rebuild.read(text, "here").lay(tmp_path)


def test_ranks_are_numbered_as_the_engine_numbers_its_processes() -> None:
    """Pipeline stage first; attention is cut (dp, cp, tp), experts (dp, ep, tp)."""
    assert place(5, tp=4, pp=2, ep=2) == Placement(
        world=(5, 8), tp=(1, 4), pp=(1, 2), attention_tp=(1, 4), attention_dp=(0, 1), attention_cp=(0, 1),
        moe_ep=(0, 2), moe_tp=(1, 2), moe_dp=(0, 1),
    )  # fmt: skip
    assert place(6, tp=8, pp=1, ep=4, attention_dp=2)[3:8] == ((2, 4), (1, 2), (0, 1), (3, 4), (0, 2))
