"""The package's front door: sorted, complete, and documented."""

import inspect

import pytest

import weightsync
from weightsync import errors


def test_the_public_names_are_sorted() -> None:
    """Capitals by their letters: a new name has one place, and a diff shows it."""
    assert weightsync.__all__ == sorted(weightsync.__all__)


@pytest.mark.parametrize("name", weightsync.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    """It is loaded when it is used, listed by dir(), and says what it is."""
    value = getattr(weightsync, name)
    assert name in dir(weightsync)
    assert inspect.getdoc(value)
    assert value.__name__ == name


def test_every_exception_is_public() -> None:
    """What a trainer can meet it can catch by name."""
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.WeightSyncError)
    }
    assert tree <= set(weightsync.__all__)


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    """The drawing in the module's docstring names every class, each under its base."""
    drawing = [line for line in (errors.__doc__ or "").splitlines() if "+-- " in line]
    levels: list[type[BaseException]] = [errors.WeightSyncError]
    for line in drawing:
        indent, name = line.split("+-- ")
        depth = 1 + (len(indent.replace("|", " ")) - 4) // 4
        drawn = getattr(errors, name.split()[0])
        assert drawn.__base__ is levels[depth - 1]
        levels[depth:] = [drawn]
    assert len(drawing) + 1 == sum(
        inspect.isclass(value) and issubclass(value, errors.WeightSyncError) for value in vars(errors).values()
    )


def test_another_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        weightsync.Nothing  # noqa: B018
