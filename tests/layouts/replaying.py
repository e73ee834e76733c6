"""What a program makes of random tensors, by the Replayer that trainers use."""

from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.convert.verify import random_tensor


def replayed(program: CopyProgram) -> dict[str, bytes]:
    """Each parameter's bytes after the Replayer was given every tensor."""
    payload = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(payload))
    for tensor in program.tensors:
        replayer.feed(tensor.name, random_tensor(tensor))
    replayer.finish()
    replayer.close()
    return {row.name: bytes(payload[row.offset : row.offset + row.nbytes]) for row in program.layout.parameters}
