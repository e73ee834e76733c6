"""SGLang 0.5.17 and near it: the parallel groups are globals of a module."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from weightsync.replicas.groups import Group, place

# Global of sglang.srt.distributed.parallel_state -> field of Placement.
_GROUPS = {
    "_WORLD": "world", "_TP": "tp", "_PP": "pp", "_ATTN_TP": "attention_tp", "_ATTN_CP": "attention_cp",
    "_MOE_EP": "moe_ep", "_MOE_TP": "moe_tp", "_MOE_DP": "moe_dp",
}  # fmt: skip


class Place:
    """One rank's parallel state, to be entered around whatever the model does."""

    def __init__(self, server_args: Any, rank: int) -> None:
        self._server_args = server_args
        self._placement = place(
            rank,
            tp=server_args.tp_size,
            pp=server_args.pp_size,
            ep=server_args.ep_size,
            attention_dp=server_args.dp_size if server_args.enable_dp_attention else 1,
            attention_cp=getattr(server_args, "attn_cp_size", 1) or 1,
            moe_dp=getattr(server_args, "moe_dp_size", 1) or 1,
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The process's parallel state is this rank's. One at a time."""
        from sglang.srt import runtime_context  # noqa: PLC0415 - the engine's package, where there is one
        from sglang.srt.distributed import parallel_state  # noqa: PLC0415
        from sglang.srt.layers import dp_attention  # noqa: PLC0415

        with ExitStack() as stack:
            for name, field in _GROUPS.items():
                group = Group(*getattr(self._placement, field))
                stack.enter_context(mock.patch.object(parallel_state, name, group))
            rank, size = self._placement.attention_dp
            stack.enter_context(mock.patch.object(dp_attention, "_ATTN_DP_RANK", rank))
            stack.enter_context(mock.patch.object(dp_attention, "_ATTN_DP_SIZE", size))
            runtime_context.publish(self._server_args, role="scheduler")
            stack.callback(runtime_context.reset_context)
            yield
