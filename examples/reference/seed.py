"""The parameters registered with Mooncake, for others to write to: what SGLang calls a seed for remote instances."""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from weightsync.errors import InputError


def register(parameters: Mapping[str, Tensor]) -> tuple[Any, list[Any]]:
    """Register each; the Mooncake engine, which must be kept, and what the info endpoint tells of it.

    The second is [session, {name: [address, elements, bytes of one]}]. Raises InputError where Mooncake is missing
    or refuses.
    """
    try:
        from mooncake.engine import TransferEngine  # noqa: PLC0415 - only who asks for it needs it
    except ImportError as error:
        raise InputError(f"Mooncake cannot be loaded: {error}") from error
    host = os.environ.get("SGLANG_HOST_IP", "127.0.0.1")
    engine = TransferEngine()
    protocol, device = os.environ.get("MOONCAKE_PROTOCOL", "tcp"), os.environ.get("MOONCAKE_DEVICE", "")
    if engine.initialize(host, "P2PHANDSHAKE", protocol, device) != 0:
        raise InputError(f"Mooncake does not start at {host} with {protocol}: its own log says why")
    places = [(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in parameters.values()]
    addresses, lengths = [list(each) for each in zip(*places, strict=True)]
    if engine.batch_register_memory(addresses, lengths) != 0:
        raise InputError(f"Mooncake does not register {sum(lengths)} bytes of parameters: its own log says why")
    table = {name: [t.data_ptr(), t.numel(), t.element_size()] for name, t in parameters.items()}
    return engine, [f"{host}:{engine.get_rpc_port()}", table]
