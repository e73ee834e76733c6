"""The oracle: what the engine answers, and what its own checker says, after a load from disk."""

from __future__ import annotations

import time
from typing import NamedTuple

from tools.bench.gpu.site import Site
from tools.world.processes import WorldError
from weightsync.measures import Measure

PROMPTS = ([5, 17, 19, 3, 25, 7], [11, 12, 13], [9, 4, 4, 4, 4, 4, 31, 6, 2], [3])
TOKENS = 32


class Look(NamedTuple):
    """What is seen of an engine from outside."""

    tokens: list[list[int]]
    checksums: dict[str, str]


def look(site: Site) -> Look:
    """Greedy tokens of some prompts, one request at a time, and the checksum of each tensor."""
    return Look([greedy(site, prompt) for prompt in PROMPTS], checksums(site))


def greedy(site: Site, prompt: list[int]) -> list[int]:
    """Tokens computed from the weights alone: after an InPlace pause the cache may hold what old weights computed."""
    site.ask("/flush_cache", {})
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    found: list[int] = site.ask("/generate", {"input_ids": prompt, "sampling_params": sampling})["output_ids"]
    return found


def checksums(site: Site) -> dict[str, str]:
    """By tensor, of rank 0, by the engine itself."""
    return dict(site.ask("/weights_checker", {"action": "checksum"})["ranks"][0]["checksums"])


def compare(site: Site, started: Look) -> tuple[list[Measure], Look]:
    """What was published last (``after``) against a load of the same checkpoint from disk. started: at the start.

    The engine's agent is ended first: it would take the load for a stranger's, and undo it.
    """
    synced = look(site)
    site.engine.agent.stop()
    began = time.perf_counter()
    answer = site.ask("/update_weights_from_disk", {"model_path": str(site.after)})
    seconds = time.perf_counter() - began
    if not answer.get("success"):
        raise WorldError(f"the load from disk failed: {answer}")
    loaded = look(site)
    changed = sum(a != b for a, b in zip(started.tokens, synced.tokens, strict=True))
    same = sum(a == b for a, b in zip(synced.tokens, loaded.tokens, strict=True))
    sums = sum(synced.checksums.get(name) == value for name, value in loaded.checksums.items())
    prompts = f"greedy, {TOKENS} tokens after each of {len(PROMPTS)} prompts"
    return [
        Measure(name="prompts answered as after a load from disk", value=same, unit="1", bound=len(PROMPTS),
                better="higher", how=f"{prompts}, the same checkpoint"),
        Measure(name="prompts answered otherwise than before", value=changed, unit="1", bound=len(PROMPTS),
                better="higher", how=f"{prompts}, the checkpoint that the engine was started with"),
        Measure(name="tensors with the checksum of a load from disk", value=sums, unit="1",
                bound=len(loaded.checksums), better="higher", how="/weights_checker, all tensors of the rank"),
        Measure(name="load from disk", value=seconds, unit="s", better="lower",
                how=f"/update_weights_from_disk from memory-backed disk, {site.nbytes} bytes, one run"),
    ], loaded  # fmt: skip
