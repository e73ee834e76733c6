"""A custom weight loader that fails: what becomes of an engine whose loader raises."""


def load(model: object, named_tensors: object) -> None:
    """Never loads anything."""
    raise RuntimeError("this loader always raises")
