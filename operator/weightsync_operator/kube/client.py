"""The connection to the API server: one request, one answer, as JSON; and the same credentials for kopf."""

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf
from kubernetes.aio import client, config

from weightsync import names
from weightsync.errors import InputError
from weightsync_operator.kube.errors import Unavailable, error_of

Json = dict[str, Any]

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# ConfigException: the service account's token cannot be read again just now.
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, config.ConfigException)


class Kube:
    """Raw JSON on purpose: typed models of thousands of pods take some three times the memory."""

    def __init__(self, configuration: client.Configuration) -> None:
        self.configuration = configuration
        self.api = client.ApiClient(configuration)
        # By this audit logs and the server's flow control know us; the library's own name is that of any program.
        self.api.user_agent = f"weightsync-operator/{names.VERSION}"
        self._timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=CONNECT_SECONDS)

    @classmethod
    async def connect(cls) -> "Kube":
        """As the pod's service account, else as KUBECONFIG (or ~/.kube/config) says. Opens no connection yet.

        Raises InputError where there is neither.
        """
        configuration = client.Configuration()
        in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
        try:
            if in_pod:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    client_configuration=configuration, persist_config=False
                )
        except (config.ConfigException, OSError) as error:
            where = "the pod's service account" if in_pod else "the kubeconfig"
            raise InputError(f"{where} cannot be used: {error}: mount a token, or set KUBECONFIG") from error
        return cls(configuration)

    async def close(self) -> None:
        """End the connection."""
        await self.api.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: Mapping[str, str] | None = None, accept: str = "application/json") -> Json:
        """GET."""
        return await self._call("GET", path, query, None, {"Accept": accept})

    async def create(self, path: str, body: Json) -> Json:
        """POST; raises AlreadyExists."""
        return await self._call("POST", path, None, body, {"Content-Type": "application/json"})

    async def replace(self, path: str, body: Json) -> Json:
        """PUT; raises Conflict where the object's resourceVersion is another by now."""
        return await self._call("PUT", path, None, body, {"Content-Type": "application/json"})

    async def apply(self, path: str, body: Json, manager: str) -> Json:
        """Server-side apply, taking over fields that others hold; the object afterwards.

        A resourceVersion in ``body`` makes it conditional: raises Conflict where the object is another by now.
        """
        query = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, query, body, {"Content-Type": APPLY})

    async def merge(self, path: str, body: Json) -> Json:
        """A merge patch: these fields, and no others; raises NotFound."""
        return await self._call("PATCH", path, None, body, {"Content-Type": MERGE})

    async def delete(self, path: str) -> Json:
        """DELETE; raises NotFound."""
        return await self._call("DELETE", path, None, None, {})

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None, headers: dict[str, str]
    ) -> Json:
        what = f"{method} {path}"
        try:
            request = await self.api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self.api.call_api(*request, _request_timeout=self._timeout)
            data: bytes = await answer.read()  # type: ignore[no-untyped-call]
        except _NO_ANSWER as error:
            raise Unavailable(f"{what}: the API server does not answer: {error or type(error).__name__}") from error
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise error_of(what, answer.status, data)
        try:
            parsed: Json = json.loads(data)
        except ValueError as error:  # of something between us and the API server
            raise Unavailable(f"{what}: {answer.status} and no JSON: {data[:100]!r}", answer.status) from error
        return parsed

    async def kopf_login(self) -> kopf.ConnectionInfo:
        """The same credentials for kopf, which asks again when they are refused.

        kopf's own logins dial the API server by a name of the cluster's DNS, or need a synchronous client.
        """
        bearer = (await self.configuration.auth_settings()).get("BearerToken")
        scheme, _, token = str(bearer["value"]).partition(" ") if bearer else ("", "", "")
        return kopf.ConnectionInfo(
            server=self.configuration.host,
            ca_path=self.configuration.ssl_ca_cert,
            insecure=not self.configuration.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token.strip() or None,
            certificate_path=self.configuration.cert_file,
            private_key_path=self.configuration.key_file,
        )
