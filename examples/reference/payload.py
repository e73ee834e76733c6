"""What an update's ``serialized_named_tensors`` may be here: an empty list, pickled, in base64, once per rank.

The bytes of the weights come through the loader's own ways. A pickle from the network can run anything in the
process that opens it, so none is opened: its opcodes are read, and only those that make one empty list pass.
"""

import base64
import pickletools
from typing import Any

from weightsync.errors import InputError

LIMIT = 4096  # bytes; an empty list has 7
_EMPTY_LIST = (["EMPTY_LIST"], ["MARK", "LIST"])
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "PUT"}


def decode_named_tensors(entry: str) -> list[tuple[str, Any]]:
    """The empty list that ``entry`` holds. Raises InputError where it holds anything else."""
    try:
        data = base64.b64decode(entry, validate=True)
        opcodes = [opcode.name for opcode, _, _ in pickletools.genops(data[:LIMIT])]
    except ValueError as error:
        raise InputError(f"serialized_named_tensors: no pickle in base64: {error}") from error
    making = [name for name in opcodes if name not in _HARMLESS]
    if making[:-1] not in _EMPTY_LIST or making[-1] != "STOP":
        raise InputError("serialized_named_tensors: only an empty list is accepted, the loader fetches the weights")
    return []
