"""The thread that reports filled buckets, so that filling never waits for HTTP."""

import logging
import threading
from collections import defaultdict, deque

from weightsync.errors import AgentUnavailable, WeightSyncError
from weightsync.publisher.link import Link
from weightsync.wire.local import Filled

log = logging.getLogger(__name__)


class Reports:
    """The filled buckets of one publish on their way to the agent. All fields are guarded by the sender's lock."""

    def __init__(self, publish: str) -> None:
        self.publish = publish
        self.waiting: deque[tuple[str, int, str]] = deque()  # program, offset, digest: as they became full
        self.sending = False
        self.error: WeightSyncError | None = None

    @property
    def settled(self) -> bool:
        """Everything was taken by the agent, or nothing more will be."""
        return self.error is not None or not (self.waiting or self.sending)


class Sender:
    """One thread and one connection, for all publishes of a Publisher, one after the other."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._current: Reports | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def open(self, publish: str) -> Reports:
        """Begin a publish; what was left of the one before is not sent any more."""
        with self._changed:
            self._current = Reports(publish)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weightsync-sender", daemon=True)
                self._thread.start()
            return self._current

    def put(self, reports: Reports, program: str, full: list[tuple[int, str]]) -> None:
        """These buckets are full: offset, and digest where it is known. Returns at once."""
        with self._changed:
            reports.waiting.extend((program, offset, digest) for offset, digest in full)
            self._changed.notify_all()

    def flush(self, reports: Reports) -> None:
        """Wait until the agent has all that was put. Raises what the agent answered where it refused, or is gone.

        Bounded by the link's timeout: a request ends by then, and no more follow an error.
        """
        with self._changed:
            self._changed.wait_for(lambda: reports.settled or self._closed)
            if reports.error is not None:
                raise reports.error
            if not reports.settled:
                raise AgentUnavailable("the publisher was closed before its agent knew of every filled bucket")

    def abandon(self, reports: Reports, timeout: float) -> bool:
        """Send no more of this publish; whether nothing of it is under way any more, within ``timeout`` seconds.

        A report that arrives after the publish was given up would be taken for the arena's next contents.
        """
        with self._changed:
            reports.waiting.clear()
            return self._changed.wait_for(lambda: not reports.sending or self._closed, timeout)

    def close(self) -> None:
        """End the thread; reports that were not sent are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._link.close()

    def _next(self) -> tuple[Reports, list[tuple[str, int, str]]] | None:
        """All that waits, once something does; None when the sender is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ready())
            reports = self._current
            if self._closed or reports is None:
                return None
            batch = list(reports.waiting)
            reports.waiting.clear()
            reports.sending = True
            return reports, batch

    def _ready(self) -> bool:
        reports = self._current
        return reports is not None and reports.error is None and bool(reports.waiting)

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                reports, batch = taken
                error = self._send(reports.publish, batch)
                with self._changed:
                    reports.sending = False
                    reports.error = error
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._closed = True  # whatever ended the thread, nobody waits for it in vain
                self._changed.notify_all()

    def _send(self, publish: str, batch: list[tuple[str, int, str]]) -> WeightSyncError | None:
        programs: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for program, offset, digest in batch:
            programs[program].append((offset, digest))
        try:
            for program, full in programs.items():
                offsets, digests = zip(*full, strict=True)
                body = Filled(program=program, offsets=offsets, digests=digests)
                self._link.tell(f"/v1/publishes/{publish}/filled", body)
        except WeightSyncError as error:
            log.debug("filled buckets of publish %s were not taken: %s", publish, error)
            return error
        return None
