"""Further families: the program makes what load_weights makes, on every rank, and covers all that it holds."""

import hashlib

import pytest

from tests.layouts.conftest import Ask, Json
from tests.layouts.others import OTHERS, config_of
from tests.layouts.replaying import replayed
from weightsync.convert.program import CopyProgram

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("rank", [0, 1], ids="rank {}".format)
@pytest.mark.parametrize("family", OTHERS)
def test_the_program_makes_what_load_weights_makes(ask: Ask, family: str, rank: int) -> None:
    """Every parameter, byte for byte, cut over two ranks; nothing is left to load_weights."""
    other = OTHERS[family]
    request: Json = {"op": "make", "config": config_of(family), "experts": other.experts, "flags": other.flags}
    request["renamed"] = other.renamed
    answer = ask({**request, "cut": {"tp": 2}, "rank": rank})
    assert "refused" not in answer, answer["refused"]
    assert answer["row"]["byLoading"] == []
    held = replayed(CopyProgram.model_validate(answer["program"]))
    digests = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in held.items()}
    assert digests == answer["digests"]
