"""SGLang from 0.5.18 on: the parallel state is a context object that can be made without process groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weightsync.replicas.groups import Group

_GROUPS = ("tp", "pp", "attn_tp", "attn_cp", "moe_ep", "moe_tp", "moe_dp")


class Place:
    """One rank's parallel state, to be entered around whatever the model does."""

    def __init__(self, server_args: Any, rank: int) -> None:
        from sglang.srt import runtime_context  # noqa: PLC0415 - the engine's package, where there is one

        self._runtime = runtime_context
        ranks = runtime_context.SpawnRanks(world_rank=rank, gpu_id=0, dp_rank=None)
        self._context = runtime_context.create_context(server_args, role="scheduler", ranks=ranks)
        parallel = self._context.parallel
        groups = {f"{name}_group": Group(*_of(parallel, name)) for name in _GROUPS}
        parallel.override_permanently(**groups)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The process's parallel state is this rank's. One at a time."""
        with self._runtime.use_context(self._context):
            yield


def _of(parallel: Any, name: str) -> tuple[int, int]:
    """Rank and size of one group. Ranks that SGLang only knows by the group follow from the numbering."""
    size = int(getattr(parallel, f"{name}_size"))
    if name == "moe_tp":
        return int(parallel.tp_rank) % size, size
    return int(getattr(parallel, f"{name}_rank")), size
