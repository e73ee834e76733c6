"""Namespaces that may not be listed: the others are served, and nothing is planned of half of one."""

from typing import Any

import pytest

from tests.build import manifests
from weightsync_operator.feed import Feed
from weightsync_operator.kube.client import Json
from weightsync_operator.kube.errors import Forbidden, Rewound
from weightsync_operator.observe import Seen
from weightsync_operator.store import Store


def weightsync(namespace: str) -> Json:
    made = manifests.weightsync()
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}", "resourceVersion": "3", "generation": 1}
    return made


class Server:
    """A WeightSync in every namespace, and namespaces that may not be listed."""

    def __init__(self, *closed: str) -> None:
        self.closed = set(closed)
        self.version = 9

    async def get(self, path: str, *_: Any) -> Json:
        namespace, kind = path.split("/")[-2:]
        if kind == "nodes":
            raise Forbidden(f"GET {path}: 403", 403)
        # Pods alone, to be sure that a part of a namespace is none.
        if kind == "pods" and namespace in self.closed:
            raise Forbidden(f"GET {path}: 403", 403)
        items = [weightsync(namespace)] if kind == "weightsyncs" else []
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}


class Fed:
    """A feed, whom it woke, and which kinds it wants listed anew."""

    def __init__(self, server: Server, *labels: str) -> None:
        self.server: Any = server
        self.store = Store()
        self.woken: list[str] = []
        self.gone: list[Seen] = []
        self.missed: list[str] = []
        self.feed = Feed(
            self.store, self.woken.append, self.gone.append, labels, missed=self.missed.append, spaced=True
        )

    async def resync(self, *namespaces: str) -> dict[str, Forbidden]:
        self.woken.clear()
        return await self.feed.resync(self.server, namespaces, "")


async def test_a_closed_namespace_stops_no_other() -> None:
    """It is told, and not planned for; once it is open it is woken."""
    fed = Fed(Server("b"))
    closed = await fed.resync("a", "b")
    assert list(closed) == ["b"]
    assert fed.woken == ["uid-a"]
    assert (fed.store.whole("a"), fed.store.whole("b")) == (True, False)
    fed.server.closed.clear()
    fed.feed.weightsync(weightsync("a"), deleted=False)
    assert fed.missed == []
    fed.feed.weightsync(weightsync("b"), deleted=False)
    assert fed.missed == ["weightsyncs"], "kopf saw it: it may be listed again"
    assert await fed.resync("a", "b") == {}
    assert "uid-b" in fed.woken
    assert fed.store.whole("b")


async def test_what_is_known_of_one_that_closes_stays() -> None:
    """A role that is away for a moment tears down no plan: nothing is planned there meanwhile."""
    fed = Fed(Server())
    await fed.resync("a", "b")
    fed.server.closed.add("b")
    await fed.resync("a", "b")
    assert fed.gone == []
    assert {seen.uid for seen in fed.store.syncs} == {"uid-a", "uid-b"}
    assert not fed.store.whole("b")


@pytest.mark.parametrize("namespaces", [("b",), ("b", "c"), ()], ids=["the only one", "all", "one role for all"])
async def test_nothing_to_list_is_an_error(namespaces: tuple[str, ...]) -> None:
    """The operator then says that it waits, and for what."""
    fed = Fed(Server("b", "c", "v1"))
    with pytest.raises(Forbidden):
        await fed.resync(*namespaces)
    assert not fed.store.synced
    assert fed.store.closed == set(namespaces or ("",)), "and how many they are"


async def test_namespaces_that_all_close_are_planned_for_once_they_open() -> None:
    """What is known of them stays meanwhile."""
    fed = Fed(Server())
    await fed.resync("a", "b")
    fed.server.closed |= {"a", "b"}
    with pytest.raises(Forbidden):
        await fed.resync("a", "b")
    assert not fed.store.whole("a")
    assert fed.gone == []
    fed.server.closed.clear()
    await fed.resync("a", "b")
    assert fed.store.whole("a")
    assert set(fed.woken) == {"uid-a", "uid-b"}


async def test_a_restored_storage_is_met_from_nothing() -> None:
    """Its versions began anew: all that came would be older than what is known, and be ignored for hours."""
    fed = Fed(Server())
    await fed.resync("a")
    await fed.resync("a")
    fed.server.version = 8
    with pytest.raises(Rewound, match="restored from a backup"):
        await fed.resync("a")


async def test_nodes_that_may_not_be_listed_stop_nobody() -> None:
    """A role that is missing, as after a rollback of the chart: places are a hint."""
    fed = Fed(Server(), "kubernetes.io/hostname")
    await fed.resync("a")
    assert fed.woken == ["uid-a"]
    assert fed.store.places() == {}
