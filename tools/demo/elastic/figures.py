"""What the demo of coming and going engines is held to, and its report. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.demo.elastic import picture
from tools.demo.elastic.picture import Arrow
from tools.demo.elastic.plot import Passed, Plot, Stage
from tools.demo.figures import Readback, Verdict

Json = dict[str, Any]


def judge(
    plot: Plot, read: Mapping[Stage, Sequence[Readback]], drawn: Mapping[Stage, Sequence[Arrow]]
) -> list[Verdict]:
    """Every bound, in the order of the stages."""
    verdicts = [_engines(passed, read.get(passed.stage, ()), plot) for passed in plot.passed]
    moved = picture.moved(drawn.get(Stage.FEW, ()), drawn.get(Stage.MANY, ()))
    checked, torn, stale = (sum(life.get(key, 0) for life in plot.lives) for key in ("checked", "torn", "stale"))
    return [
        *verdicts,
        Verdict(
            "stages", plot.stage is Stage.OVER, f"{len(plot.passed)} of {len(plot.wanted)}; then: {plot.stage.value}"
        ),
        Verdict("engines that came moved nobody", moved == 0, f"{moved} routes of those that were there changed"),
        Verdict("trainer's lives", len(plot.lives) >= 2, f"{len(plot.lives)}; it is killed once"),
        Verdict("answers", checked > 0 == torn + stale, f"{checked} checked, {torn} torn, {stale} stale"),
    ]


def _engines(passed: Passed, read: Sequence[Readback], plot: Plot) -> Verdict:
    """Each holds, byte for byte, a version that was published: training goes on, so this one or a later one.

    A trainer that is killed may have published one more than it could say.
    """
    lineage, _, number = passed.version.partition(".")
    allowed = plot.published | ({f"{lineage}.{int(number) + 1}"} if passed.stage is Stage.GONE else set())
    right = [one for one in read if one.digest_ok and one.version in allowed]
    versions = sorted({one.version for one in read})
    wanted = plot.wanted[passed.stage]
    return Verdict(
        passed.stage.value,
        len(right) == wanted == len(read) == len(passed.engines),
        f"{len(right)} of {len(read)} read back right, {wanted} wanted: {', '.join(versions)}",
    )


def report(
    plot: Plot,
    verdicts: Sequence[Verdict],
    read: Mapping[Stage, Sequence[Readback]],
    drawn: Mapping[Stage, Sequence[Arrow]],
) -> Json:
    """For machines: each stage with its engines and mapping, and the bounds."""
    return {
        "stages": [
            {
                "stage": passed.stage.name,
                "step": passed.step,
                "version": passed.version,
                "engines": [
                    {"pod": one.pod, "version": one.version, "digestOk": one.digest_ok}
                    for one in read.get(passed.stage, ())
                ],
                "mapping": picture.document(drawn.get(passed.stage, ())),
            }
            for passed in plot.passed
        ],
        "findings": plot.findings,
        "bounds": [{"name": one.name, "kept": one.kept, "figures": one.text} for one in verdicts],
    }
