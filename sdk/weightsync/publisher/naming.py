"""Names that a wrapper around the model has changed: which tensor of the checkpoint is meant. Pure.

A name is only changed where the checkpoint has no tensor of that name, and has exactly one of the names that the
wrappers can have made it from.
"""

from collections.abc import Callable

from weightsync.errors import InputError

# What torch.compile, FSDP1 and activation checkpointing put into names: no model has such a part of its own.
MARKS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# What DistributedDataParallel and DeepSpeed's engine put in front: a part of the model itself may be called so, too.
MODULE = "module"


def unwrapped(name: str) -> tuple[str, ...]:
    """The names that it may have had before the model was wrapped; itself is none of them."""
    parts = [part for part in name.split(".") if part not in MARKS]
    first = next((at for at, part in enumerate(parts) if part != MODULE), len(parts))
    found = (parts, parts[first:], [part for part in parts if part != MODULE])
    return tuple(dict.fromkeys(joined for joined in map(".".join, found) if joined not in ("", name)))


class GivenNames:
    """The names of one publish. knows: whether the checkpoint has a tensor of that name."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self._knows = knows
        self._given: dict[str, str] = {}

    @property
    def meant(self) -> tuple[str, ...]:
        """The checkpoint's names, in the order in which they came, each once."""
        return tuple(self._given)

    def is_known(self, name: str) -> bool:
        """Whether the checkpoint has a tensor, or several, that a given name may mean."""
        return self._knows(name) or any(map(self._knows, unwrapped(name)))

    def take(self, name: str) -> str:
        """The checkpoint's name for a given one; the same where the checkpoint has none for it.

        Raises InputError where several tensors of the checkpoint may be meant, or the one was given under another
        name before.
        """
        meant = self._meant(name)
        before = self._given.setdefault(meant, name)
        if before != name:
            raise InputError(f"tensors {before} and {name} are both the checkpoint's {meant}: yield one of them")
        return meant

    def _meant(self, name: str) -> str:
        if self._knows(name):
            return name
        known = [bare for bare in unwrapped(name) if self._knows(bare)]
        if len(known) > 1:
            raise InputError(
                f"tensor {name} may be the checkpoint's {' or '.join(known)}: yield it under the name that is meant"
            )
        return known[0] if known else name
