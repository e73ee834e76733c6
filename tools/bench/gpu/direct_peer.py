"""A Mooncake engine in a process of its own, which writes rows of an arena file into an engine's parameters.

python -m tools.bench.gpu.direct_peer PATH PAYLOAD NBYTES
Prints a line when it is ready. Per line {session, rows: [[offset, address, nbytes]], piece, window, poll}: writes
all, prints the seconds.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from typing import Any

from mooncake.engine import TransferEngine


def write(engine: TransferEngine, base: int, order: dict[str, Any]) -> float:
    """Submit with a window, sleep-poll until all are done. SystemExit on any failure."""
    pieces = [
        (base + offset + at, address + at, min(order["piece"], nbytes - at))
        for offset, address, nbytes in order["rows"]
        for at in range(0, nbytes, order["piece"])
    ]
    began, pending = time.perf_counter(), list[int]()
    while pieces or pending:
        while pieces and len(pending) < order["window"]:
            number = engine.transfer_submit_write(order["session"], *pieces.pop())
            if number == 0:
                raise SystemExit("a submit failed")
            pending.append(number)
        codes = [(number, engine.transfer_check_status(number)) for number in pending]
        if any(code < 0 for _, code in codes):
            raise SystemExit("a write failed")
        waiting = [number for number, code in codes if code == 0]
        if len(waiting) == len(pending):
            time.sleep(order["poll"])
        pending = waiting
    return time.perf_counter() - began


def main(path: str, payload: int, nbytes: int) -> None:
    """Serve lines until standard input ends."""
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("Mooncake did not initialise")
    mapping = mmap.mmap(os.open(path, os.O_RDWR), payload + nbytes)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + payload
    if engine.register_memory(base, nbytes) != 0:
        raise SystemExit("Mooncake did not register the arena")
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(write(engine, base, json.loads(line))), flush=True)
    os._exit(0)  # destroying the engine can wait for its peer


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
