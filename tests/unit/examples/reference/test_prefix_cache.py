"""Cached prefixes are found by their tokens and bounded in memory."""

import torch

from reference.alone import feed
from reference.engine_model import EngineModel
from reference.prefix_cache import PrefixCache


def test_the_longest_known_prefix_is_found(model: EngineModel) -> None:
    """Whatever sequence it came from; what is found holds exactly those positions' keys."""
    known = PrefixCache(1000)
    for tokens in ([1, 2, 3], [1, 2, 4, 5, 6], [9]):
        cache = model.new_cache()
        feed(model, cache, tokens)
        known.insert(tokens, cache)
    expected = model.new_cache()
    feed(model, expected, [1, 2, 4])
    for asked, depth in (([1, 2, 4, 7], 3), ([1, 2], 2), ([9, 1], 1), ([2], 0), ([], 0)):
        assert known.find(asked)[0] == depth, asked
    found = known.find([1, 2, 4, 7])[1]
    assert found is not None
    assert torch.equal(found.keys[:, 0, :, :3], expected.keys[:, 0, :, :3])
    known.clear()
    assert known.find([1, 2]) == (0, None)


def test_what_is_kept_is_a_copy(model: EngineModel) -> None:
    """The request that filled it goes on writing its own cache."""
    known, cache = PrefixCache(1000), model.new_cache()
    feed(model, cache, [1, 2])
    known.insert([1, 2], cache)
    kept = known.find([1, 2])[1]
    assert kept is not None
    before = kept.keys.clone()
    cache.keys.fill_(7)
    assert torch.equal(kept.keys, before)


def test_memory_is_bounded_and_the_latest_stay(model: EngineModel) -> None:
    """Past the capacity the older sequences go, and are no longer found."""
    known, cache = PrefixCache(64 * 4), model.new_cache()
    feed(model, cache, [1])
    for token in range(10):
        known.insert([token], cache)
        assert known.room <= 64 * 4
    assert known.find([9])[0] == 1
    assert known.find([0])[0] == 0
