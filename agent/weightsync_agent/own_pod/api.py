"""The agent's only connection to the API server: get, apply, watch, as JSON. Raises sentences, retries nothing."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from weightsync.errors import InputError
from weightsync_agent.own_pod.problems import problem, unreachable

Json = dict[str, Any]

CALL = aiohttp.ClientTimeout(total=10, connect=5)
WATCH_SECONDS = 240  # the server ends a watch after so long; a connection that says nothing for longer is dead
WATCH = aiohttp.ClientTimeout(total=None, connect=5, sock_read=WATCH_SECONDS + 30)
ACCEPT = "application/json, application/jwk-set+json"  # the latter for /openid/v1/jwks, which answers 406 else
APPLY = "application/apply-patch+yaml"
# ConfigException: the service account's token cannot be read again just now.
NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, config.ConfigException)


class Api:
    """One connection, made by connect() and ended by close()."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None) -> "Api":
        """With ``kubeconfig``, else the file that KUBECONFIG names, else as a pod's service account.

        Opens no connection yet. Raises InputError where none of them is there.
        """
        configuration = client.Configuration()
        path = str(kubeconfig or os.environ.get("KUBECONFIG", ""))
        try:
            if path:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    path, client_configuration=configuration, persist_config=False
                )
            else:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            where = f"KUBECONFIG {path}" if path else "the pod's service account"
            raise InputError(
                f"{where}: {error}: mount a service account token into the agent's container, or set KUBECONFIG"
            ) from error
        return cls(client.ApiClient(configuration))

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """GET; the object."""
        return await self._object("GET", path, query)

    async def apply(self, path: str, body: Json, manager: str, *, dry_run: bool = False) -> Json:
        """Server-side apply under ``manager``, which takes fields over from others; the object afterwards."""
        query = {"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self._object("PATCH", path, query, body)

    @asynccontextmanager
    async def watch(self, path: str, version: str) -> AsyncIterator[AsyncIterator[Json]]:
        """Events ``{type, object}`` after resource version ``version``, until the server ends the watch.

        Raises Refused with status 410, at the start or among the events, where that version is too old: list again.
        """
        what = f"watch {path}"
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        try:
            async with await self._send("GET", path, query, None, WATCH) as response:
                if response.status >= 400:
                    raise problem(what, response.status, await response.read())
                yield _events(what, response)
        except NO_ANSWER as error:
            raise unreachable(what, error) from error

    async def issuer_and_keys(self) -> tuple[str, Json]:
        """The issuer of service account tokens, and the public keys that check them, as JSON."""
        path = "/.well-known/openid-configuration"
        issuer = (await self.get(path)).get("issuer")
        if not isinstance(issuer, str) or not issuer:
            raise unreachable(f"GET {path}", KeyError("issuer"))
        return issuer, await self.get("/openid/v1/jwks")

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()  # type: ignore[no-untyped-call]

    async def _object(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        what = f"{method} {path}"
        try:
            async with await self._send(method, path, query, body, CALL) as response:
                data = await response.read()
        except NO_ANSWER as error:
            raise unreachable(what, error) from error
        if response.status >= 400:
            raise problem(what, response.status, data)
        try:
            answer = json.loads(data)
        except ValueError as error:  # whatever stands before the API server said it
            raise unreachable(what, error) from error
        if not isinstance(answer, dict):
            raise unreachable(what, TypeError(f"a {type(answer).__name__} instead of an object"))
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": ACCEPT} | ({"Content-Type": APPLY} if method == "PATCH" else {})
        request = await self._connection.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        answer = await self._connection.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response


async def _events(what: str, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    try:
        async for line in response.content:
            event: Json = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise problem(what, status.get("code", 500), json.dumps(status).encode())
            yield event
    except ValueError as error:
        raise unreachable(what, error) from error  # the connection ended inside of a line
