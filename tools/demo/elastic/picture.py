"""The mapping of a plan's slices, who writes to whom, as lines of text, as JSON, and as a drawing (SVG). Pure."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from weightsync.api.v1alpha1.slice import SliceSpec

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#4a4a4a")  # of stages, in turn
WIDTH, ROW, TOP, BOX = 820, 46, 70, 240

Json = dict[str, Any]


class Arrow(NamedTuple):
    """One route: a source rank writes its stage's part to an engine rank. Names are of pods."""

    source: str
    source_rank: int
    stage: int
    target: str
    target_rank: int

    @property
    def left(self) -> str:
        """The source as people call it."""
        return f"{self.source} rank {self.source_rank}"

    @property
    def right(self) -> str:
        """The target as people call it."""
        return f"{self.target} rank {self.target_rank}"


def arrows(slices: Sequence[SliceSpec]) -> list[Arrow]:
    """All routes, by target. A source that no slice has is named by its uid."""
    pods = {source.uid: source.pod for part in slices for source in part.sources}
    return sorted(
        (
            Arrow(pods.get(route.source, route.source), route.rank, route.stage, target.pod, target.rank.rank)
            for part in slices
            for engine in part.engines
            for target in engine.targets
            for route in target.routes
        ),
        key=lambda arrow: (arrow.target, arrow.target_rank, arrow.stage),
    )


def document(found: Sequence[Arrow]) -> list[Json]:
    """For machines."""
    return [
        {
            "source": arrow.source, "sourceRank": arrow.source_rank, "stage": arrow.stage,
            "target": arrow.target, "targetRank": arrow.target_rank,
        }
        for arrow in found
    ]  # fmt: skip


def moved(before: Sequence[Arrow], after: Sequence[Arrow]) -> int:
    """Routes of engine ranks that are in both, and whose source is another one."""
    had = {(arrow.target, arrow.target_rank, arrow.stage): arrow.left for arrow in before}
    return sum(had.get((a.target, a.target_rank, a.stage), a.left) != a.left for a in after)


def text(found: Sequence[Arrow]) -> list[str]:
    """One line for each source."""
    by_source: dict[tuple[str, int], list[str]] = defaultdict(list)
    for arrow in found:
        by_source[arrow.left, arrow.stage].append(arrow.right)
    return [
        f"{source} (stage {stage}) -> {', '.join(targets)}" for (source, stage), targets in sorted(by_source.items())
    ]


def svg(title: str, found: Sequence[Arrow]) -> str:
    """Sources on the left, engine ranks on the right, an arrow for each route in its stage's colour."""
    left = sorted({arrow.left for arrow in found})
    right = sorted({arrow.right for arrow in found})
    height = TOP + ROW * max(len(left), len(right), 1)
    heights = {name: _middle(index, len(side), height) for side in (left, right) for index, name in enumerate(side)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="17">{escape(title)}</text>',
        '<text x="20" y="52" fill="#666666">trainer ranks</text>',
        f'<text x="{WIDTH - BOX - 20}" y="52" fill="#666666">engine ranks</text>',
    ]
    for arrow in found:
        start, end, colour = heights[arrow.left], heights[arrow.right], COLOURS[arrow.stage % len(COLOURS)]
        x, to = BOX + 20, WIDTH - BOX - 20
        parts.append(
            f'<path d="M{x} {start} C{x + 120} {start} {to - 120} {end} {to - 8} {end}" fill="none" '
            f'stroke="{colour}" stroke-width="1.5"><title>{escape(arrow.left)}, stage {arrow.stage}, to '
            f"{escape(arrow.right)}</title></path>"
        )
        parts.append(f'<path d="M{to - 8} {end - 4} L{to} {end} L{to - 8} {end + 4} Z" fill="{colour}"/>')
    parts += [_box(20, heights[name], name) for name in left]
    parts += [_box(WIDTH - BOX - 20, heights[name], name) for name in right]
    return "\n".join([*parts, "</svg>", ""])


def _middle(index: int, count: int, height: int) -> int:
    """The height of the so-manieth of so many boxes."""
    return TOP + round((height - TOP) * (index + 0.5) / count)


def _box(x: int, y: int, name: str) -> str:
    return (
        f'<rect x="{x}" y="{y - 15}" width="{BOX}" height="30" rx="5" fill="#f3f3f3" stroke="#999999"/>'
        f'<text x="{x + 10}" y="{y + 5}">{escape(name)}</text>'
    )
