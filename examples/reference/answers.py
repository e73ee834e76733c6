"""What /generate answers for one finished request: SGLang's fields, and ours (spans, engine). Pure."""

from typing import Any

from reference.behaviour import Behaviour
from reference.generation import Generation


def answer(
    generation: Generation, *, logprobs: bool, version: str, engine: str, behaviour: Behaviour, seconds: float
) -> dict[str, Any]:
    """version: the one that is set when the answer is made; seconds: from the request's arrival to its end.

    ``weight_version`` is the last token's version, as the release that writes ``weight_versions`` has it; before
    that it was the version at the time of the answer. ``spans`` is always there.
    """
    spans = generation.spans
    meta: dict[str, Any] = {
        "id": generation.name,
        "finish_reason": generation.finish,
        "prompt_tokens": len(generation.prompt),
        "completion_tokens": len(generation.output),
        "cached_tokens": generation.cached_tokens,
        "weight_version": version,
        "num_retractions": generation.retractions,
        "e2e_latency": seconds,
        "spans": [[name, count] for name, count in spans],
        "engine": engine,
    }
    if behaviour.weight_versions:
        meta["weight_versions"] = _as_ranges(spans or [(version, 0)])
        meta["weight_version"] = meta["weight_versions"][-1]["version"]
    if logprobs:
        triples = zip(generation.logprobs, generation.output, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in triples]
        meta["output_token_logprobs_length"] = len(generation.output)
    return {"text": "", "output_ids": list(generation.output), "meta_info": meta}


def _as_ranges(spans: list[tuple[str, int]]) -> list[dict[str, Any]]:
    ranges, start = [], 0
    for version, count in spans:
        ranges.append({"version": version, "start": start, "end": start + count})
        start += count
    return ranges
