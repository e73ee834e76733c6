"""A checkpoint tensor without its bytes: what tracing and merging know of it. Pure."""

from typing import NamedTuple


class Header(NamedTuple):
    """dtype: by torch's name, without "torch."."""

    name: str
    dtype: str
    shape: tuple[int, ...]
