"""What a rank gives to publish(): its pairs, with whole tensors and the checkpoint's names."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weightsync.errors import InputError
from weightsync.publisher.naming import GivenNames

if TYPE_CHECKING:
    from weightsync.convert.gather import Gathers


class Intake:
    """The pairs of one publish.

    knows: whether the checkpoint has a tensor of that name; kept: the state dict that is given, where its tensors
    stay as they are until they are copied; names: as they were given.
    """

    def __init__(self, knows: Callable[[str], bool], kept: Mapping[str, Any] | None) -> None:
        self.names: list[str] = []
        self.kept = kept
        self._given = GivenNames(knows)
        self._gathers: Gathers | None = None

    @property
    def meant(self) -> tuple[str, ...]:
        """The checkpoint's names of what was given, each once."""
        return self._given.meant

    def whole(self, pair: object) -> object:
        """The pair, its tensor gathered where it is sharded over ranks: a collective. Raises what a gather raises."""
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not hasattr(pair[1], "full_tensor"):
            return pair
        if self._gathers is None:
            from weightsync.convert.gather import Gathers  # noqa: PLC0415 - torch comes with the first publish

            self._gathers = Gathers()
        name, tensor = pair
        try:
            return name, self._gathers.whole(name, tensor)
        except BaseException as error:
            error.add_note(f"while tensor {name} was gathered from the ranks of its mesh")
            raise

    def agree(self) -> None:
        """Compare with the other ranks what was gathered, as Gathers.agree(); nothing where nothing was."""
        if self._gathers is not None:
            self._gathers.agree()

    def named(self, pair: object) -> tuple[str, Any]:
        """The name as it was given, and the tensor. Raises InputError for what is no pair of both."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"the input yielded a {type(pair).__name__}: yield (name, tensor) pairs")
        name, tensor = pair
        if not isinstance(name, str):
            raise InputError(f"the input yielded {name!r} as a name: yield the checkpoint's names as strings")
        self.names.append(name)
        return name, tensor

    def meaning(self, name: str) -> str | None:
        """The checkpoint's name for a given one; None for a tied tensor that comes under another name, too.

        Raises InputError as GivenNames.take().
        """
        return None if self._is_tied(name) else self._given.take(name)

    def _is_tied(self, name: str) -> bool:
        """Whether the checkpoint lacks the name, and has the tensor under another one of the same state dict."""
        if self.kept is None or self._given.is_known(name):
            return False
        from weightsync.convert.ties import are_tied  # noqa: PLC0415 - torch comes with the first publish

        tensor = self.kept.get(name)
        return any(are_tied(tensor, other) for key, other in self.kept.items() if self._given.is_known(key))
