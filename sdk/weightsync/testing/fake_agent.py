"""An agent in memory that serves wire/local.py to Publishers. The contract tests hold it to the real one."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from weightsync import names
from weightsync.arena import NO_GRANT, Arena
from weightsync.buckets import Bucket, assign, bucket_size, cut, shard
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest, digest_bytes, program_root, version_root
from weightsync.errors import InputError, Refused, WeightSyncError
from weightsync.records import WireRecord
from weightsync.testing.published import Published
from weightsync.testing.socket_server import SocketServer
from weightsync.version import Version, version_name
from weightsync.wire import local
from weightsync.wire.v1 import EngineOutcome, Problem, PublishOutcome

LINEAGE = "00000000000000aa"
ARENAS = 2  # of each program, filled in turn
STAGES_WAIT = 10.0  # seconds that one stage's names wait for the others'


class FakeAgent:
    """Serves a directory's socket from start() to stop(), for all trainer ranks of a test.

    programs: those of the engines that it is said to feed, none for NoTargets; bucket_bytes: upper bound of a
    bucket. Arenas are real files. published: every publish so far; connected: every connect.
    """

    def __init__(self, directory: Path, programs: Sequence[CopyProgram] = (), *, bucket_bytes: int = 65536) -> None:
        self.directory = directory
        self.programs = {program.digest: program for program in programs}
        self.bucket_bytes = bucket_bytes
        self.published: list[Published] = []
        self.connected: list[local.ConnectRequest] = []
        self._engines: tuple[EngineOutcome, ...] | None = None
        self._ended = True
        self._faults: dict[str, list[Refused | None]] = {}
        self._changed = threading.Condition()
        self._server: SocketServer | None = None
        self._forget()

    def _forget(self) -> None:
        """What a restarted agent does not know."""
        self._ranks: dict[int, local.ConnectRequest] = {}
        self._stages: dict[str, dict[int, frozenset[str]]] = {}
        self._owned: dict[tuple[int, str], tuple[str, ...]] = {}
        self._arenas: dict[tuple[str, int, int], Arena] = {}
        self._by_id: dict[str, Published] = {}

    # --- what a test sets ---

    def refuse(self, step: str, message: str = "refused by the test", *, reason: str = "Refused") -> None:
        """Refuse the next request whose path ends in ``step``: connect, publishes, names, filled, copied, failed."""
        self._faults.setdefault(step, []).append(Refused(message, reason=reason))

    def break_off(self, step: str) -> None:
        """Break the connection off at the next request whose path ends in ``step``."""
        self._faults.setdefault(step, []).append(None)

    def hold_outcomes(self) -> None:
        """No outcome ends until release_outcomes()."""
        self._ended = False

    def release_outcomes(self, engines: Iterable[EngineOutcome] | None = None) -> None:
        """Outcomes end, with these engines; None: each program has one engine, which is current."""
        with self._changed:
            self._engines = None if engines is None else tuple(engines)
            self._ended = True
            self._changed.notify_all()

    # --- the requests ---

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        """Status and body; None: break the connection off."""
        url = urlsplit(path)
        step = url.path.rsplit("/", 1)[-1]
        try:
            if faults := self._faults.get(step):
                fault = faults.pop(0)
                if fault is None:
                    return None
                raise fault
            answer = self._route(url.path, parse_qs(url.query), body)
        except WeightSyncError as error:
            status = error.status if isinstance(error, Refused) else 400
            return status, Problem(reason=error.reason, message=str(error)).canonical()
        return 200, b"{}" if answer is None else answer.canonical()

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> WireRecord | None:
        if path == "/v1/connect":
            return self._connect(local.ConnectRequest.read(body, path))
        if path == "/v1/publishes":
            return self._begin(local.BeginRequest.read(body, path))
        _, _, _, id_, step = path.split("/")
        publish = self._by_id.get(id_)
        if publish is None:
            raise Refused(f"publish {id_} is not known", reason="UnknownPublish", status=404)
        if step == "outcome":
            return self._outcome(publish, float(query["wait"][0]))
        if step == "names":
            return self._name(publish, local.NamesReport.read(body, path))
        with self._changed:
            if step == "filled":
                self._fill(publish, local.Filled.read(body, path))
            elif step == "copied":
                self._copy(publish)
            elif step == "failed":
                publish.failed = local.PublishFailure.read(body, path)
            else:
                raise Refused(f"{path} is no path of this API", reason="NotFound", status=404)
        return None

    def _connect(self, body: local.ConnectRequest) -> local.ConnectAnswer:
        with self._changed:
            known = self._ranks.get(body.rank)
            if known is None or known.nonce != body.nonce:
                self._stages.clear()  # another life of a rank begins with names of its own
                self._owned.clear()
            self._ranks[body.rank] = body
            self.connected.append(body)
        return local.ConnectAnswer(uid="fake-agent", version="0")

    def _begin(self, body: local.BeginRequest) -> local.BeginAnswer:
        with self._changed:
            who = self._ranks.get(body.rank)
            if who is None or who.nonce != body.nonce:
                raise Refused(f"rank {body.rank} has not connected", reason="NotConnected")
            id_, version = f"{body.nonce}-{body.sequence}", version_name(LINEAGE, body.sequence)
            publish = self._by_id.get(id_)
            if publish is None:
                publish = Published(id_, body.rank, body.sequence, body.label, dict(self.programs))
                for digest in publish.programs:
                    self._arena(publish, digest).fill(NO_GRANT)
                publish.replicas = self._replicas(publish)
                self._by_id[id_] = publish
                self.published.append(publish)
            return local.BeginAnswer(id=id_, version=version, replicas=publish.replicas)

    def _name(self, publish: Published, body: local.NamesReport) -> local.NamesReply:
        """Answers when the names of every stage are there."""
        who = self._ranks[publish.rank]
        publish.names = body.names
        with self._changed:
            for digest in publish.programs:
                self._stages.setdefault(digest, {})[who.stage] = frozenset(body.names)
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: all(len(self._stages[digest]) == who.stages for digest in publish.programs), STAGES_WAIT
            ):
                raise Refused(f"not all of {who.stages} stages told their names", reason="DeadlineExceeded")
            for digest, program in publish.programs.items():
                owned = assign(program, self._stages[digest])[who.stage]
                self._owned[publish.rank, digest] = tuple(sorted(owned))
            publish.replicas = self._replicas(publish)
            return local.NamesReply(replicas=publish.replicas)

    def _fill(self, publish: Published, body: local.Filled) -> None:
        buckets = {bucket.offset: bucket for bucket in self._buckets(publish, body.program)}
        filled = publish.filled.setdefault(body.program, {})
        for offset in body.offsets:
            if offset not in buckets:
                raise InputError(f"publish {publish.id}: {offset} is no bucket of program {body.program}")
            filled[offset] = self._digest(publish, body.program, buckets[offset]).digest

    def _copy(self, publish: Published) -> None:
        roots = {}
        for digest in publish.programs:
            found = [self._digest(publish, digest, bucket) for bucket in self._buckets(publish, digest)]
            filled = publish.filled.get(digest, {})
            for bucket in found:
                if filled.get(bucket.offset) != bucket.digest:
                    how = "changed after it was reported" if bucket.offset in filled else "was never reported"
                    raise InputError(f"publish {publish.id}: the bucket at {bucket.offset} of program {digest} {how}")
            publish.payloads[digest] = bytes(self._arena(publish, digest).view)
            roots[digest] = program_root(found)
        root = version_root(LINEAGE, publish.sequence, roots)
        publish.version = Version(lineage=LINEAGE, number=publish.sequence, root=root)
        publish.copied = True

    def _outcome(self, publish: Published, wait: float) -> PublishOutcome:
        with self._changed:
            ended = self._changed.wait_for(lambda: self._ended, wait)
        if publish.failed is not None:
            return PublishOutcome(ended=True, reason=publish.failed.reason, message=publish.failed.message)
        engines = self._engines
        if engines is None:
            engines = tuple(EngineOutcome(engine=f"engine-{d[:8]}", outcome="Current") for d in publish.programs)
        return PublishOutcome(ended=ended, version=publish.version, engines=engines if ended else ())

    # --- arenas ---

    def _arena(self, publish: Published, digest: str) -> Arena:
        key = (digest, publish.rank, publish.sequence % ARENAS)
        if key not in self._arenas:
            layout = publish.programs[digest].layout
            path = self.directory / names.ARENAS / "-".join(map(str, key))
            self._arenas[key] = Arena.create(path, layout=layout.digest, program=digest, nbytes=layout.nbytes)
        return self._arenas[key]

    def _buckets(self, publish: Published, digest: str) -> list[Bucket]:
        program, owned = publish.programs[digest], self._owned.get((publish.rank, digest), ())
        return cut(shard(program, frozenset(owned)), bucket_size(program.layout.nbytes, self.bucket_bytes))

    def _digest(self, publish: Published, digest: str, bucket: Bucket) -> BucketDigest:
        """Of the arena's bytes as they are now."""
        view = self._arena(publish, digest).view[bucket.offset : bucket.offset + bucket.nbytes]
        return BucketDigest(offset=bucket.offset, nbytes=bucket.nbytes, digest=digest_bytes(view))

    def _replicas(self, publish: Published) -> tuple[local.Replica, ...]:
        return tuple(
            local.Replica(
                program=digest,
                program_path=f"{names.LAYOUTS}/{digest}.json",
                arena_path=str(self._arena(publish, digest).path.relative_to(self.directory)),
                buckets=tuple(self._buckets(publish, digest)),
                owned=self._owned.get((publish.rank, digest), ()),
            )
            for digest in publish.programs
        )

    # --- its life ---

    def start(self) -> Self:
        """Lay the programs into the volume and listen."""
        layouts = self.directory / names.LAYOUTS
        layouts.mkdir(parents=True, exist_ok=True)
        for digest, program in self.programs.items():
            (layouts / f"{digest}.json").write_bytes(program.canonical())
        self._server = SocketServer(self.directory / names.SOCKET, self._answer)
        return self

    def stop(self) -> None:
        """Break every connection off and forget all but ``published``, as a killed agent would."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        with self._changed:
            for arena in self._arenas.values():
                arena.close()
            self._forget()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
