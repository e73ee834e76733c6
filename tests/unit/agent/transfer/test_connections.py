"""The kernel's tables of connections: read, and asked whether bytes may still come in."""

import socket

import pytest

from weightsync_agent.transfer.connections import Connection, connected, current, parse

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3DA9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0500D50A:3DA9 0700D50A:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 0500D50A:3DA9 0800D50A:C351 08 00000000:00001000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
   3: 0500D50A:3DA9 0900D50A:C352 06 00000000:00000000 03:00000A5B 00000000     0        0 0 3 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:3DA9 0000000000000000FFFF00000700D50A:C353 01 00000000:00000000
   1: B80D0120000000000000000001000000:3DA9 B80D0120000000000000000002000000:C354 01 00000000:00000000
"""
PORT = 0x3DA9


def test_both_tables_are_read() -> None:
    """Ports, peers and states; an IPv4 peer in the table of IPv6 is what it is."""
    assert [str(row.peer) for row in parse(TCP)] == ["0.0.0.0", "10.213.0.7", "10.213.0.8", "10.213.0.9"]  # noqa: S104
    assert [row.state for row in parse(TCP)] == [0x0A, 0x01, 0x08, 0x06]
    assert [str(row.peer) for row in parse(TCP6)] == ["10.213.0.7", "2001:db8::2"]
    assert {row.port for row in parse(TCP)} == {PORT}


@pytest.mark.parametrize(
    ("host", "left"),
    [
        pytest.param("10.213.0.7", True, id="one that is connected"),
        pytest.param("::ffff:10.213.0.7", True, id="the same by its other name"),
        pytest.param("10.213.0.8", True, id="one that has closed: its bytes may be unread"),
        pytest.param("10.213.0.9", False, id="one that was read to its end"),
        pytest.param("10.213.0.6", False, id="one that was never here"),
        pytest.param("trainer-0.default.svc", True, id="a name may be anybody's"),
        pytest.param("", True, id="so may no name"),
    ],
)
def test_whether_bytes_may_still_come(host: str, left: bool) -> None:
    """At that port; at another nobody is connected."""
    rows = parse(TCP)
    assert connected(rows, PORT, host) is left
    assert not connected(rows, PORT + 1, host)


def test_a_row_that_is_none_is_an_error() -> None:
    """Rather than a connection that is not seen."""
    with pytest.raises((ValueError, IndexError)):
        parse(TCP + "   4: nonsense\n")


def test_the_kernel_shows_a_connection_until_its_bytes_were_read() -> None:
    """A real one: the writer is gone, and only the reader's close takes it out of the table."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as writer:
            reader, _ = server.accept()
            writer.sendall(b"late bytes")
        with reader:
            assert connected(current(), port, "127.0.0.1")
            assert reader.recv(64) == b"late bytes"
            assert reader.recv(64) == b""
        assert not [row for row in current() if row.port == port and row.state in {0x01, 0x08}]
        assert isinstance(current()[0], Connection)
