"""One call of publish() at a source: what the driver knows of it beside the machine."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from weightsync.buckets import Bucket, bucket_size, cut
from weightsync.buckets import shard as shard_of
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, Refused
from weightsync.wire import local
from weightsync.wire.v1 import PublishAnswer, PublishOutcome
from weightsync_agent.arenas.files import Cut, SourceArenas
from weightsync_agent.protocol import source_events as s

KEPT = 16  # publishes whose outcome can still be asked for


@dataclass
class Shard:
    """What this rank's stage owns of one program: known after its first publish.

    life: of the coordinator that was told the names.
    """

    owned: frozenset[str]
    names: frozenset[str]
    life: str = ""


@dataclass
class Part:
    """One program of a publish. told: offsets that were said to be full."""

    program: CopyProgram
    replica: s.ReplicaId | None = None
    owned: frozenset[str] = frozenset()
    buckets: tuple[Bucket, ...] | None = None
    told: set[int] = field(default_factory=set)


@dataclass
class Publish:
    """See the module. begun: whoever asked for it a second time may be answered."""

    request: local.BeginRequest
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    parts: dict[str, Part] = field(default_factory=dict)
    version: PublishAnswer | None = None
    copied: bool = False
    called: float = field(default_factory=time.monotonic)
    trouble: tuple[str, str] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # all parts have a replica, or there is trouble
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    named: asyncio.Event = field(default_factory=asyncio.Event)  # its version is known, or there will be none
    outcome: asyncio.Future[PublishOutcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    digesting: set[asyncio.Task[None]] = field(default_factory=set)

    def got(self, replica: s.ReplicaId) -> None:
        """The machine gave it an arena."""
        self.parts[replica.program].replica = replica
        self.ready()

    def ready(self) -> None:
        """Wake begin() where it waits for nothing more."""
        if self.trouble is not None or all(part.replica is not None for part in self.parts.values()):
            self.changed.set()

    def check(self) -> None:
        """Raises Refused where it will never be whole."""
        if self.trouble is not None:
            reason, message = self.trouble
            raise Refused(f"publish {self.request.sequence}: {message}", reason=reason)

    def part(self, program: str) -> Part:
        """Raises InputError for a program that it does not fill."""
        found = self.parts.get(program)
        if found is None:
            raise InputError(f"publish {self.id} does not fill program {program}")
        return found


def told(publish: Publish, report: local.Filled) -> tuple[list[BucketDigest], list[Bucket]]:
    """Buckets that are said to be full for the first time: those with a digest, and those to be read.

    Requests may come twice, and a bucket is written once. Raises InputError for what is no bucket.
    """
    part = publish.part(report.program)
    wanted = {bucket.offset: bucket for bucket in part.buckets or ()}
    unknown = [offset for offset in report.offsets if offset not in wanted]
    if unknown:
        raise InputError(f"publish {publish.id}: {unknown[0]} is no bucket of program {report.program}")
    if report.digests and len(report.digests) != len(report.offsets):
        raise InputError(f"publish {publish.id}: {len(report.digests)} digests for {len(report.offsets)} buckets")
    known, unread = [], []
    for offset, digest in zip(report.offsets, report.digests or ("",) * len(report.offsets), strict=True):
        bucket = wanted[offset]
        if offset in part.told:
            continue
        part.told.add(offset)
        if digest:
            known.append(BucketDigest(offset=offset, nbytes=bucket.nbytes, digest=digest))
        else:
            unread.append(bucket)
    return known, unread


async def cut_part(part: Part, known: Shard, limit: int, arenas: SourceArenas) -> bool:
    """Cut it once, and allocate its pages. Whether this was the first time. Raises InputError: no room for them."""
    if part.buckets is not None or part.replica is None:
        return False
    extents = shard_of(part.program, known.owned)
    buckets = cut(extents, bucket_size(part.program.layout.nbytes, limit))
    await arenas.prepare(part.replica.key, Cut(limit, known.owned), extents)
    if part.buckets is not None:
        return False  # a request that came twice: the other one was faster
    part.owned, part.buckets = known.owned, tuple(buckets)
    return True


class Publishes:
    """The publishes that can still be spoken of."""

    def __init__(self) -> None:
        self._kept: dict[str, Publish] = {}

    def keep(self, publish: Publish) -> None:
        """Remember it; the oldest is forgotten."""
        self._kept[publish.id] = publish
        for old in list(self._kept)[:-KEPT]:
            del self._kept[old]

    def drop(self, publish: Publish) -> None:
        """It never was."""
        self._kept.pop(publish.id, None)

    def all(self) -> list[Publish]:
        """By age."""
        return list(self._kept.values())

    def get(self, id_: str) -> Publish | None:
        """None where it is not known (any more)."""
        return self._kept.get(id_)

    def find(self, id_: str) -> Publish:
        """Raises Refused where it is not known (any more)."""
        publish = self._kept.get(id_)
        if publish is None:
            raise Refused(f"publish {id_} is not known (any more)", reason="UnknownPublish", status=404)
        return publish

    def begun(self, request: local.BeginRequest) -> Publish | None:
        """The one that this request began: its answer was lost, not the call."""
        return next((publish for publish in self._kept.values() if publish.request == request), None)
