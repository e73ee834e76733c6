"""The last words of trials: each figure with its bound, and the exit status."""

from collections.abc import Sequence
from pathlib import Path

from tools.report.writing import BUILD
from weightsync.measures import Measure


def conclude(found: Sequence[Measure], path: Path) -> int:
    """Print the figures of the report that was written to ``path``. 0 where every bound holds, else 1."""
    for measure in found:
        bound = "" if measure.bound is None else f" (bound {measure.bound:g}{'' if measure.holds else ', BROKEN'})"
        print(f"{measure.name}: {measure.value:.4g} {measure.unit}{bound}")
    print(f"wrote {path.relative_to(BUILD.parent)}")
    return 0 if all(measure.holds for measure in found) else 1
