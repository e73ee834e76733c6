"""The trials, in order: one engine alone, all together, one of them stopped in the middle."""

import sys

from tools.bench.relay.figures import Found
from tools.bench.relay.site import Links, Site, Sync


def tell(text: str) -> None:
    """To whoever waits."""
    sys.stderr.write(text + "\n")


def name(number: int) -> str:
    """An engine's pod."""
    return f"engine-{number}"


class Trials:
    """What is measured of one site."""

    def __init__(self, site: Site, count: int, syncs: int) -> None:
        self._site = site
        self._count = count
        self._syncs = syncs

    def run(self) -> Found:
        """All of it."""
        site = self._site
        site.add(name(0))
        alone = self._repeat("alone")
        site.add(*(name(number) for number in range(1, self._count)))
        together = self._repeat("together")
        return Found(
            nbytes=site.nbytes,
            engines=self._count,
            rate=site.links.rate,
            alone=[sync.slowest for sync in alone],
            together=[sync.slowest for sync in together],
            sent=[sync.sent for sync in together],
            stopped=[self._stopped(name(1))],
        )

    def _repeat(self, what: str) -> list[Sync]:
        """One version that is not counted (first contact, first touch of pages), then some that are."""
        self._site.publish()
        found = []
        for number in range(self._syncs):
            self._site.settle()
            sync = self._site.publish()
            tell(f"{what} {number}: {sync.slowest:.2f} s, sent {sync.sent / self._site.nbytes:.3f} of it")
            found.append(sync)
        self._site.settle()
        return found

    def _stopped(self, victim: str) -> float:
        """Seconds of the slowest of the others."""
        site = self._site
        before = site.network.sent("trainer")
        handle = site.begin()
        site.wait_for_bytes(victim, site.nbytes // 4)
        site.stop(victim)
        sync = site.end(handle, before)
        site.wake(victim)
        slowest = max(seconds for engine, seconds in sync.seconds.items() if engine != victim)
        tell(f"{victim} stopped: {slowest:.2f} s at the slowest of {len(sync.seconds)} others")
        site.settle()
        return slowest


def run(links: Links, count: int, syncs: int) -> Found:
    """All trials in a world of their own."""
    with Site(links) as site:
        return Trials(site, count, syncs).run()
