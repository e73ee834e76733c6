"""The Publisher: what a trainer rank calls after each step."""

import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from weightsync import cores, names
from weightsync.errors import InputError
from weightsync.publisher.handle import PATIENCE, PublishHandle
from weightsync.publisher.link import Link
from weightsync.publisher.publication import Progress, Publication
from weightsync.publisher.replicas import OpenReplicas
from weightsync.publisher.sender import Sender
from weightsync.wire.local import BeginRequest, ConnectAnswer, ConnectRequest

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

LABEL = 256  # characters that the agent takes


class Publisher:
    """One trainer rank's way to the engines.

        publisher = Publisher(rank=dist.get_rank(), world_size=dist.get_world_size())
        handle = publisher.publish(model.state_dict(), label=f"step {step}")
        handle.raise_on_failure()

    rank, world_size: of all trainer ranks that publish together; stage of stages: the pipeline stage whose tensors
    this rank yields. All ranks call publish() equally often: their n-th calls are one version.
    directory: the volume shared with the agent (default: $WEIGHTSYNC_DIR, else /dev/weightsync).
    timeout: seconds that one answer of the agent may take; the first of a publish waits for all ranks.
    connect_timeout: seconds to wait for the agent to listen.
    fill_threads: threads that copy tensors in host memory (default: $WEIGHTSYNC_FILL_THREADS, else one fewer than
    this rank's share of the cores, at most 8; 1 where that share is two or less).

    Raises InputError for arguments that cannot be, AgentUnavailable where no agent listens, and Refused with the
    agent's reason. One thread publishes at a time; handles may be waited for in any.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        stage: int = 0,
        stages: int = 1,
        *,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 300.0,
        connect_timeout: float = 30.0,
        fill_threads: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} is none of {world_size} ranks: they are numbered from 0")
        if not 0 <= stage < stages:
            raise InputError(f"stage {stage} is none of {stages} stages: they are numbered from 0")
        self._directory = Path(directory or os.environ.get(names.DIRECTORY_ENV) or names.DIRECTORY)
        self._timeout = timeout
        self._identity = ConnectRequest(
            rank=rank, world_size=world_size, stage=stage, stages=stages, nonce=secrets.token_hex(8)
        )
        self._sequence = 0
        self._names: frozenset[str] | None = None
        self._publishing = threading.Lock()
        self._closed = False
        self._latest: Publication | None = None
        self._open = OpenReplicas(self._directory, cores.fill_threads(fill_threads))
        self._link = Link(self._directory, timeout=timeout, patience=connect_timeout, greet=self._greet)
        self._link.connect()
        self._link.patience = PATIENCE
        self._sender = Sender(self._connect(PATIENCE))

    def _connect(self, patience: float) -> Link:
        return Link(self._directory, timeout=self._timeout, patience=patience)

    def _greet(self, link: Link) -> None:
        """On every new connection: an agent that restarted does not know this rank."""
        answer = link.post("/v1/connect", self._identity, ConnectAnswer)
        log.debug("rank %d is connected to agent %s %s", self._identity.rank, answer.uid, answer.version)

    def publish(
        self, tensors: "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]", *, label: str = ""
    ) -> PublishHandle:
        """Give this rank's tensors, under the checkpoint's names, to every engine.

        tensors: a state dict, or any iterable of (name, tensor), such as a generator that gathers shards; it is
        always exhausted. A DTensor (FSDP2, tensor parallelism) is gathered here, by all ranks of its mesh, one at a
        time: all must give the same ones in the same order, as state dicts do. A tensor on a GPU is copied while the
        generator goes on, which then keeps up to two buckets of them alive; written anew in the stream that was
        current when it was yielded, it is still right.
        label: yours, at most 256 characters.

        When it returns the tensors may change again. What is wrong with them, or with the agent, is told by the
        handle's outcome(); only what ``tensors`` itself raises, or a gather, is raised again, at once. An interrupt
        (KeyboardInterrupt, SystemExit) while tensors are copied is raised once the input is exhausted, a second one
        at once.
        """
        with self._publishing:
            self._sequence += 1
            # These hold their tensors; other mappings, and subclasses, may make them anew when asked.
            kept = tensors if isinstance(tensors, dict) and type(tensors) in (dict, OrderedDict) else None
            publication = Publication(self._link, self._sender, self._open, self._names, kept=kept)
            self._latest = publication
            self._begin(publication, label)
            try:
                _exhaust(iter(tensors.items() if isinstance(tensors, Mapping) else tensors), publication)
                publication.agree()
                publication.settle()
            except BaseException as error:
                publication.interrupted(error)
                raise
            publication.end()
            return self._finish(publication, label)

    @property
    def progress(self) -> Progress:
        """Bytes copied, of how many, in how many seconds: of the publish that runs, else of the last one.

        Any thread may look.
        """
        return self._latest.progress if self._latest is not None else Progress()

    def _begin(self, publication: Publication, label: str) -> None:
        if self._closed:
            publication.fail(InputError("publish() was called on a Publisher that is closed"))
            return
        rank, nonce = self._identity.rank, self._identity.nonce
        with publication.watching(Exception):  # an interrupt ends it: it may wait long, and nothing is taken in yet
            publication.begin(BeginRequest(rank=rank, nonce=nonce, sequence=self._sequence, label=label[:LABEL]))
        # Told only now: the other ranks wait for this one to begin.
        if publication.unexpected is None and len(label) > LABEL:
            publication.fail(InputError(f"label has {len(label)} characters, {LABEL} are allowed"))

    def _finish(self, publication: Publication, label: str) -> PublishHandle:
        if publication.unexpected is not None:
            raise publication.unexpected
        failure = publication.failure
        progress = publication.progress
        log.info(
            "publish %d of rank %d: %d of %d bytes copied in %.3f s",
            self._sequence, self._identity.rank, *progress,
        )  # fmt: skip
        if failure is None:
            self._names = frozenset(publication.names)
        else:
            log.warning("publish %d of rank %d failed: %s", self._sequence, self._identity.rank, failure)
        return PublishHandle(
            publication.id, self._connect, label=label, version=publication.version, failure=failure,
            notes=publication.notes,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of arenas and connections. Handles stay valid."""
        with self._publishing:
            if self._closed:
                return
            self._closed = True
            self._sender.close()
            self._open.close()
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _exhaust(pairs: Iterator[object], publication: Publication) -> None:
    """Take everything in, holding no tensor while the next one is made: the generator may need its memory."""
    while True:
        try:
            pair = next(pairs)
        except StopIteration:
            return
        publication.take(pair)
        del pair
