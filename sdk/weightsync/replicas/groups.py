"""Where a rank stands among the others, without a process group: plain objects that the layers read. Pure."""

from typing import NamedTuple


class Group:
    """One parallel group as the layers see it at load time: who am I, how many are we. Nothing can be sent."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = self.rank_in_group = self.local_rank = rank
        self.world_size = size
        self.ranks = list(range(size))
        self.first_rank, self.last_rank = 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = None


class Placement(NamedTuple):
    """One rank's place: (rank, size) of each group."""

    world: tuple[int, int]
    tp: tuple[int, int]
    pp: tuple[int, int]
    attention_tp: tuple[int, int]
    attention_dp: tuple[int, int]
    attention_cp: tuple[int, int]
    moe_ep: tuple[int, int]
    moe_tp: tuple[int, int]
    moe_dp: tuple[int, int]


def place(
    rank: int, *, tp: int, pp: int, ep: int, attention_dp: int = 1, attention_cp: int = 1, moe_dp: int = 1
) -> Placement:
    """The place of a rank, where ranks are numbered pipeline stage first, and within a stage:
    attention is cut (dp, cp, tp) and experts (dp, ep, tp), the last changing fastest.
    """
    stage, local = divmod(rank, tp)
    attention_tp = tp // (attention_dp * attention_cp)
    moe_tp = tp // (moe_dp * ep)
    return Placement(
        world=(rank, tp * pp),
        tp=(local, tp),
        pp=(stage, pp),
        attention_tp=(local % attention_tp, attention_tp),
        attention_dp=(local // (attention_tp * attention_cp), attention_dp),
        attention_cp=(local // attention_tp % attention_cp, attention_cp),
        moe_ep=(local // moe_tp % ep, ep),
        moe_tp=(local % moe_tp, moe_tp),
        moe_dp=(local // (moe_tp * ep), moe_dp),
    )
