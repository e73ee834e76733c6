"""A namespace of a real API server per test, and agents in it with no more rights than a cluster gives them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tools.cluster.light import LightCluster
from weightsync import names
from weightsync_agent.own_pod.api import Api
from weightsync_agent.own_pod.base import Identity

Json = dict[str, Any]
_NUMBERS = count(1)

# All that an agent may do in its namespace.
RULES = [
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [names.GROUP], "resources": [names.SLICE_PLURAL], "verbs": ["get"]},
]


@dataclass
class Space:
    """One namespace."""

    cluster: LightCluster
    name: str
    folder: Path
    service_account: str = "agent"
    pods: dict[str, Identity] = field(default_factory=dict)

    def call(self, method: str, path: str, body: object = None) -> Json:
        """As the administrator; anything but success fails the test."""
        status, text = self.cluster.client.call(method, path, body)
        assert status < 300, f"{method} {path}: {status} {text}"
        answer: Json = json.loads(text)
        return answer

    @property
    def core(self) -> str:
        """Path of the namespace's core objects."""
        return f"/api/v1/namespaces/{self.name}"

    @property
    def ours(self) -> str:
        """Path of the namespace's custom resources."""
        return f"/apis/{names.API_VERSION}/namespaces/{self.name}"

    def pod(self, name: str, labels: dict[str, str] | None = None) -> Identity:
        """A new pod; nothing runs it."""
        spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": self.service_account}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        found = self.call("POST", f"{self.core}/pods", body)
        return Identity(name, self.name, found["metadata"]["uid"])

    def read(self, pod: Identity) -> Json:
        """The pod as it is."""
        return self.call("GET", f"{self.core}/pods/{pod.name}")

    def token(self, pod: Identity, audience: str = "", seconds: int = 3600) -> str:
        """A token of the agent's service account, bound to ``pod``; for the API server, or for ``audience``."""
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        spec: Json = {"expirationSeconds": seconds, "boundObjectRef": reference}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"{self.core}/serviceaccounts/{self.service_account}/token"
        token: str = self.call("POST", path, body)["status"]["token"]
        return token

    def kubeconfig(self, pod: Identity, url: str = "") -> Path:
        """How the agent of ``pod`` reaches the API server, directly or at ``url``."""
        cluster = {"server": url or self.cluster.url, "certificate-authority": str(self.cluster.authority)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.token(pod)}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / f"{pod.name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    @asynccontextmanager
    async def api(self, pod: Identity | None, url: str = "") -> AsyncIterator[Api]:
        """The connection of a pod's agent; of the administrator without a pod."""
        api = await Api.connect(self.kubeconfig(pod, url) if pod else self.cluster.kubeconfig)
        try:
            yield api
        finally:
            await api.close()


@pytest.fixture
def space(light_cluster: LightCluster, tmp_path: Path) -> Space:
    """A fresh namespace with the agents' service account and role."""
    found = Space(light_cluster, f"periphery-{next(_NUMBERS)}", tmp_path)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{found.name}"
    subject = {"kind": "ServiceAccount", "name": found.service_account, "namespace": found.name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "agent"}
    named = {"metadata": {"name": "agent"}}
    found.call("POST", "/api/v1/namespaces", {"metadata": {"name": found.name}})
    found.call("POST", f"{found.core}/serviceaccounts", {"metadata": {"name": found.service_account}})
    found.call("POST", f"{rbac}/roles", named | {"rules": RULES})
    found.call("POST", f"{rbac}/rolebindings", named | {"roleRef": reference, "subjects": [subject]})
    return found


class Relay:
    """A port in front of the API server that a test opens and closes: an outage without ending the server."""

    def __init__(self, target: str) -> None:
        self._target = int(target.rpartition(":")[2])
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """Where the relay listens, or listened."""
        return f"https://127.0.0.1:{self._port}"

    async def up(self) -> None:
        """Listen, at the same port each time."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuse new connections and cut those that are open."""
        if self._server is not None:
            # A server that is closed while it makes a connection's transport loses it, socket and all, and says
            # nothing: nobody new is let in first, and who is in the doorway gets the three turns that it takes.
            for listener in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            inner, outward = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(outward)
            await asyncio.gather(_copy(reader, outward), _copy(inner, writer))
        finally:
            for each in writers:
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # whoever broke it off is what the test is about
    finally:
        writer.close()


@pytest.fixture
async def relay(light_cluster: LightCluster) -> AsyncIterator[Relay]:
    """A relay that is up."""
    found = Relay(light_cluster.url)
    await found.up()
    yield found
    await found.down()


async def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    """Wait for ``condition`` to hold; fail with ``what`` after the deadline."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    """until(condition, what): waits for a condition with a deadline."""
    return until
