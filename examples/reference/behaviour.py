"""Where releases of SGLang differ for whoever updates weights, as data. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """What one release does.

    sessions: /begin_weight_update and /end_weight_update exist, and tensors are taken only between them;
    flush_ignores_waiting: a paused engine flushes although requests wait;
    failed_flush_is_fatal: an update whose own flush is refused ends the server instead of answering so;
    ready: /ready exists; weight_versions: answers carry the spans of versions as the release writes them.
    """

    version: str
    sessions: bool = True
    flush_ignores_waiting: bool = True
    failed_flush_is_fatal: bool = False
    ready: bool = True
    weight_versions: bool = True


BEHAVIOURS = {
    "0.5.23": Behaviour("0.5.23"),
    "0.5.17": Behaviour(
        "0.5.17",
        sessions=False,
        flush_ignores_waiting=False,
        failed_flush_is_fatal=True,
        ready=False,
        weight_versions=False,
    ),
}
