"""The engine's keys: read from files, sent in one header, never shown."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from weightsync.errors import InputError


@dataclass(frozen=True)
class Keys:
    """admin: what control calls take where the engine has one; api: all other calls, and control calls without it."""

    admin: str = field(default="", repr=False)
    api: str = field(default="", repr=False)

    @classmethod
    def read(cls, admin: Path | None = None, api: Path | None = None) -> Self:
        """From files (a mounted Secret); None: the engine has no such key. InputError names a file without one."""
        return cls(_read(admin), _read(api))

    @property
    def kind(self) -> Literal["", "api", "admin"]:
        """What control calls are made with, for messages."""
        return "admin" if self.admin else "api" if self.api else ""

    def headers(self, *, control: bool) -> dict[str, str]:
        """The header of a call. control: pause, flush, weights; else generation and information."""
        key = (self.admin or self.api) if control else self.api
        return {"Authorization": f"Bearer {key}"} if key else {}


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the engine's key cannot be read: {type(error).__name__}") from error
    if not key:
        raise InputError(f"{path}: no key in the file")
    return key
