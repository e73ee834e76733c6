"""The base of every record that crosses a process, a file or the API: frozen, closed, canonical JSON. Pure."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from weightsync.errors import InputError

LARGEST = 256 * 2**20  # bytes of a file: a copy program of a model with very many experts


class Record(BaseModel):
    """A frozen value, camelCase in JSON. Unknown keys are refused: a misspelt field must not be dropped silently."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        allow_inf_nan=False,  # neither can be waited for, nor written as JSON
    )

    def canonical(self) -> bytes:
        """The same bytes for the same value, on every machine: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, text: str | bytes, origin: str) -> Self:
        """Parse JSON. Raises InputError that names ``origin`` (a path, a pod) and the first wrong field."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InputError(f"{origin}: {first_problem(error)}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of LARGEST bytes at most; InputError names the path."""
        try:
            text = read_file(path, LARGEST)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return cls.read(text, str(path))


class WireRecord(Record):
    """A body of the HTTP API: unknown keys are ignored, so that a newer peer may say more than we know."""

    model_config = ConfigDict(extra="ignore")


def read_file(path: Path, most: int) -> bytes:
    """A file that another process wrote. Raises OSError also where it is none, so that nobody waits for a pipe, or
    holds more than ``most`` bytes.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"holds more than {most} bytes", str(path))
    return data


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` whole or not at all, in a folder where others write too. Raises OSError.

    Never through a link: whoever put one in the way would choose which of our files is overwritten.
    """
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask says
        file.write(data)
    temporary.rename(path)


def first_problem(error: ValidationError) -> str:
    """One sentence for the first of a validation's errors, with the path of the field."""
    problem: Any = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "document"
    return f"{where}: {problem['msg']}"
