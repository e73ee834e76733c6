"""Frames on the pipe: what one side packs the other reads; the end of either side is None, not an exception."""

import asyncio
import socket

from weightsync_agent.transfer import frames


def test_worker_side_reads_frames_and_the_end() -> None:
    """Two frames, then EOF in the middle of a third."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(frames.pack({"a": 1}) + frames.pack({"b": [2, "é"]}) + frames.pack({"c": 3})[:-1])
        assert frames.receive(theirs) == {"a": 1}
        assert frames.receive(theirs) == {"b": [2, "é"]}
        assert frames.receive(theirs) is None
        assert frames.receive(theirs) is None


async def test_supervisor_side_reads_frames_and_the_end() -> None:
    """The same for the asyncio side."""
    reader = asyncio.StreamReader()
    reader.feed_data(frames.pack({"a": 1}) + frames.pack({"b": 2})[:3])
    reader.feed_eof()
    assert await frames.read(reader) == {"a": 1}
    assert await frames.read(reader) is None
