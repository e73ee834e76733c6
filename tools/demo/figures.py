"""The demo's report, and the bounds that it is held to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tools.demo.story import MANY, PodStory, Story

Json = dict[str, Any]

GAIN = 0.3  # of what was possible beyond the first steps' reward
MIN_CHECKED = 200
MIN_DISTINGUISHABLE = 0.5
JOIN_FACTOR, JOIN_SECONDS = 3.0, 2.0


@dataclass(frozen=True)
class Readback:
    """What an engine holds, read back from its parameters by the hook."""

    pod: str
    version: str
    digest_ok: bool


@dataclass(frozen=True)
class Verdict:
    """One bound: kept or broken, and the figures."""

    name: str
    kept: bool
    text: str


def join(pod: PodStory, *, one_clock: bool) -> Json:
    """start_seconds: creation to the engine answering with 200; join_seconds: from there to its gate being True.

    one_clock: pods run on this machine, so the arrival of the watch event is compared with the engine's own time;
    else the condition's transition time is, which has whole seconds.
    """
    opened = pod.gate_open_ms if one_clock else pod.gate_transition_ms
    created = pod.first_seen_ms if one_clock else pod.created_ms
    up = pod.up_ms
    return {
        "pod": pod.name,
        "start_seconds": round((up - created) / 1000, 3) if up else None,
        "join_seconds": round((opened - up) / 1000, 3) if up else None,
    }


def spread(values: Sequence[float]) -> Json:
    """p50 and max in seconds."""
    return {"p50": round(median(values), 4), "max": round(max(values), 4)} if values else {"p50": None, "max": None}


def report(story: Story, readbacks: Sequence[Readback], *, one_clock: bool) -> Json:
    """The document; needs the trainer's summary."""
    summary = story.summary or {}
    served = [step for step in story.steps if step["engines"]]
    pauses = [e["pause_seconds"] for step in served for e in step["engines"] if e["outcome"] == "Current"]
    checked = summary["checked"]
    return {
        "reward_first": round(summary["reward_first"], 4),
        "reward_last": round(summary["reward_last"], 4),
        "reward_max_possible": summary["reward_max_possible"],
        "steps": summary["steps"],
        "versions_published": summary["versions_published"],
        "engines": [{"pod": r.pod, "version": r.version, "digest_ok": r.digest_ok} for r in readbacks],
        "joins": [join(pod, one_clock=one_clock) for pod in story.joins],
        "sync_seconds": spread([step["sync_seconds"] for step in served]),
        "pause_seconds": spread(pauses),
        "checked_answers": checked,
        "distinguishable": round(summary["distinguishable"] / checked, 4) if checked else 0.0,
        "torn_answers": summary["torn"],
        "stale_answers": summary["stale"],
    }


def judge(document: Json, last_version: str) -> list[Verdict]:
    """Every bound, in the order in which the summary shows them."""
    first, last, most = (document[f"reward_{key}"] for key in ("first", "last", "max_possible"))
    wanted = first + GAIN * (most - first)
    engines = document["engines"]
    right = [e for e in engines if e["version"] == last_version and e["digest_ok"]]
    checked, share = document["checked_answers"], document["distinguishable"]
    torn, stale = document["torn_answers"], document["stale_answers"]
    return [
        Verdict("reward", last >= wanted, f"{first:.3f} at first, {last:.3f} at last; at least {wanted:.3f}"),
        Verdict(
            "engines current",
            len(right) == MANY == len(engines),
            f"{len(right)} of {len(engines)} hold {last_version}, read back from their parameters; {MANY} wanted",
        ),
        _joins(document),
        Verdict("answers checked", checked >= MIN_CHECKED, f"{checked}; at least {MIN_CHECKED}"),
        Verdict("distinguishable", share >= MIN_DISTINGUISHABLE, f"{share:.2f}; at least {MIN_DISTINGUISHABLE}"),
        Verdict("torn answers", torn == 0, f"{torn}; none allowed"),
        Verdict("stale answers", stale == 0, f"{stale}; none allowed"),
    ]


def _joins(document: Json) -> Verdict:
    joins, p50 = document["joins"], document["sync_seconds"]["p50"]
    times = [join["join_seconds"] for join in joins]
    if p50 is None or not times or None in times:
        return Verdict("joins", False, f"{len(joins)} engines joined, with times {times}: not all are known")
    bound = JOIN_FACTOR * p50 + JOIN_SECONDS
    named = ", ".join(f"{seconds:.2f} s" for seconds in times)
    # Two by scaling, one in place of the engine that was deleted.
    enough = len(times) >= 3
    return Verdict("joins", enough and max(times) <= bound, f"{named}; three wanted, each within {bound:.2f} s")
