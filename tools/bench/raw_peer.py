"""One end of the raw side, a process of its own: plain Mooncake over an arena file, without any code of ours.

python -m tools.bench.raw_peer target PATH PAYLOAD NBYTES        prints [session, address], then waits
python -m tools.bench.raw_peer source PATH PAYLOAD NBYTES        per line [session, address, piece, poll seconds]:
                                                                 writes the payload, prints the seconds
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time

from mooncake.engine import TransferEngine


def write(engine: TransferEngine, source: int, nbytes: int, order: tuple[str, int, int, float]) -> None:
    """Submit all pieces, then sleep-poll each until it is done. SystemExit on any failure."""
    session, target, piece, poll = order
    pending = []
    for at in range(0, nbytes, piece):
        number = engine.transfer_submit_write(session, source + at, target + at, min(piece, nbytes - at))
        if number == 0:
            raise SystemExit("a submit failed")
        pending.append(number)
    while pending:
        time.sleep(poll)
        codes = [(number, engine.transfer_check_status(number)) for number in pending]
        if any(code < 0 for _, code in codes):
            raise SystemExit("a write failed")
        pending = [number for number, code in codes if code == 0]


def main(role: str, path: str, payload: int, nbytes: int) -> None:
    """Serve lines until standard input ends."""
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("Mooncake did not initialise")
    descriptor = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(descriptor, payload + nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + payload
    if engine.register_memory(address, nbytes) != 0:
        raise SystemExit("Mooncake did not register the arena")
    print(json.dumps([f"127.0.0.1:{engine.get_rpc_port()}", address]), flush=True)
    for line in sys.stdin:
        if role == "source":
            order = json.loads(line)
            began = time.perf_counter()
            write(engine, address, nbytes, order)
            print(json.dumps(time.perf_counter() - began), flush=True)
    os._exit(0)  # destroying the engine can wait for its peer


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
