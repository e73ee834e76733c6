"""Kubeconfig files: everything embedded, so that the file can be copied and its folder may be private."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tools.cluster.pki import Pair

CONTEXT = "weightsync-local"


def write(path: Path, url: str, authority: Path, user: Pair) -> Path:
    """Write a kubeconfig for `user` at the API server `url`. Returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(render(url, authority.read_bytes(), user.certificate.read_bytes(), user.key.read_bytes()))
    return path


def render(url: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """The file's text; JSON, which is YAML too."""
    name = CONTEXT
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": _encode(authority)}}],
        "users": [
            {"name": name, "user": {"client-certificate-data": _encode(certificate), "client-key-data": _encode(key)}}
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(document, indent=2) + "\n"


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
