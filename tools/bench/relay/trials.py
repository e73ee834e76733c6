"""The trials, in order: one engine alone, many joins at once, syncs of all, joins and faults beside them.

The order saves engines: those that joined are those that the syncs go to.
"""

import sys
from dataclasses import dataclass

from tools.bench.relay.figures import Found, Joins
from tools.bench.relay.said import span
from tools.bench.relay.site import TRAINER, Links, Site, Sync


def tell(text: str) -> None:
    """To whoever waits."""
    sys.stderr.write(text + "\n")


def name(number: int) -> str:
    """An engine's pod."""
    return f"engine-{number}"


@dataclass(frozen=True)
class Extent:
    """engines: that a version goes to; syncs: counted in each trial; joins: they are tried, too."""

    engines: int
    syncs: int
    joins: bool = True


class Trials:
    """What is measured of one site."""

    def __init__(self, site: Site, extent: Extent) -> None:
        self._site = site
        self._extent = extent

    def run(self) -> Found:
        """All of it."""
        site, count = self._site, self._extent.engines
        site.add(name(0))
        alone = self._repeat("alone")
        others = [name(number) for number in range(1, count)]
        many = 0.0
        if self._extent.joins:
            many, _ = self._join(f"{count} joins at once", *others, name(count))
            site.remove(name(count))
        else:
            site.add(*others)
        together = self._repeat("together")
        undisturbed = sorted(sync.slowest for sync in together)
        stopped = self._stopped()
        return Found(
            nbytes=site.nbytes,
            engines=count,
            rate=site.links.rate,
            fanout=site.links.fanout,
            alone=[sync.slowest for sync in alone],
            together=undisturbed,
            sent=[sync.sent for sync in together],
            stopped=[stopped],
            joins=self._joins(many) if self._extent.joins else None,
        )

    def _repeat(self, what: str) -> list[Sync]:
        """One version that is not counted (first contact, first touch of pages), then some that are."""
        self._site.publish()
        found = []
        for number in range(self._extent.syncs):
            self._site.settle()
            sync = self._site.publish()
            tell(f"{what} {number}: {sync.slowest:.2f} s, sent {sync.sent / self._site.nbytes:.3f} of it")
            found.append(sync)
        self._site.settle()
        return found

    def _stopped(self) -> float:
        """Seconds of the slowest engine that is not below the stopped one, which feeds others where any does."""
        site = self._site
        victim = site.victim()
        before = site.network.sent(TRAINER)
        handle = site.begin()
        site.wait_for_bytes(victim, site.nbytes // 4)
        site.stop(victim)
        below = site.below(victim)
        try:
            sync = site.end(handle, before)
        finally:
            site.wake(victim)
        found = {engine: seconds for engine, seconds in sync.seconds.items() if engine not in {victim, *below}}
        slowest = max(found.values())
        fed = max((sync.seconds[engine] for engine in below if engine in sync.seconds), default=0.0)
        tell(f"{victim} stopped, below it {len(below)} engines: {fed:.2f} s at the slowest of these")
        tell(f"{victim} stopped: {slowest:.2f} s at the slowest of {len(found)} others")
        site.settle()
        return slowest

    # --- joins ---

    def _join(self, what: str, *names: str) -> tuple[float, int]:
        """Seconds, and bytes out of the trainer's pod meanwhile."""
        site = self._site
        site.add_waiting(*names)
        before = site.network.sent(TRAINER)
        joins = site.joined(names, site.release(*names))
        sent = site.network.sent(TRAINER) - before
        tell(f"{what}: {span(joins):.2f} s, the trainer sent {sent / site.nbytes:.4f} of a version")
        return span(joins), sent

    def _joins(self, many: float) -> Joins:
        site, last = self._site, name(self._extent.engines)
        one, sent = self._join("one join", last)
        site.remove(last)
        busy, sync = self._beside_a_sync(last)
        site.settle()
        site.remove(last)
        site.remove_trainer()
        without = self._without_trainer(last)
        return Joins(one, sent, self._extent.engines, many, busy, sync, without)

    def _beside_a_sync(self, newcomer: str) -> tuple[float, float]:
        """Seconds of the join, and of the sync's slowest engine."""
        site = self._site
        site.add_waiting(newcomer)
        before = site.network.sent(TRAINER)
        handle = site.begin()
        joins = site.joined([newcomer], site.release(newcomer), serves=False)
        sync = site.end(handle, before)
        others = max(seconds for engine, seconds in sync.seconds.items() if engine != newcomer)
        tell(f"a join beside a sync: {span(joins):.2f} s, the sync {others:.2f} s")
        return span(joins), others

    def _without_trainer(self, newcomer: str) -> float:
        site = self._site
        joins = site.joined([newcomer], site.add_without_trainer(newcomer))
        tell(f"a join without the trainer: {span(joins):.2f} s")
        return span(joins)


def run(links: Links, extent: Extent) -> Found:
    """All trials in a world of their own."""
    with Site(links) as site:
        return Trials(site, extent).run()
