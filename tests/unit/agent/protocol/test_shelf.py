"""The shelf of a source's replicas."""

from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.shelf import Shelf


def test_a_release_frees_the_replicas_of_every_program():
    """A dead worker's routes are let go wherever they read, also where they come as a generator."""
    shelf = Shelf(1)
    shelf.begin(s.Begin("p", ("a" * 32, "b" * 32)))
    shelf.serve(0.0)
    routes = [s.RouteId("sync", "engine", rank) for rank in (0, 1)]
    for replica, route in zip(shelf.all(), routes, strict=True):
        replica.readers.add(route)

    shelf.release(route for route in routes)

    assert [replica.readers for replica in shelf.all()] == [set(), set()]
