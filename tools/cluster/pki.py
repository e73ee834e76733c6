"""Keys and certificates of a cluster, made by the `openssl` program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import ClusterError

DAYS = "3650"  # the cluster is thrown away long before


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """The certificate authority of one cluster, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pair = self.pair_of("ca")

    def create(self) -> None:
        """Make the authority's own pair and the key that signs service-account tokens."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self._request("ca", "/CN=weightsync-local-ca", ["basicConstraints=critical,CA:TRUE", "keyUsage=keyCertSign"])
        key, public = self.token_key, self.token_public_key
        _openssl(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)])
        _openssl(["pkey", "-in", str(key), "-pubout", "-out", str(public)])

    @property
    def token_key(self) -> Path:
        """The key that signs service-account tokens."""
        return self._folder / "tokens.key"

    @property
    def token_public_key(self) -> Path:
        """The key that proves them."""
        return self._folder / "tokens.pub"

    def issue(self, name: str, user: str, group: str = "", served: Sequence[str] = ()) -> Pair:
        """Make a pair for `user` of `group`; `served`: the names as which it also serves, such as IP:127.0.0.1."""
        subject = (f"/O={group}" if group else "") + f"/CN={user}"
        usage = "clientAuth, serverAuth" if served else "clientAuth"
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=digitalSignature",
            f"extendedKeyUsage={usage}",
        ]
        if served:
            extensions.append(f"subjectAltName={', '.join(served)}")
        signer = ["-CA", str(self.pair.certificate), "-CAkey", str(self.pair.key)]
        return self._request(name, subject, extensions, signer)

    def pair_of(self, name: str) -> Pair:
        """Where the pair called `name` lies, made or not."""
        return Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")

    def _request(self, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()) -> Pair:
        pair = self.pair_of(name)
        # A configuration of its own: the system's would add its own extensions to ours.
        config = self._folder / f"{name}.cnf"
        lines = ["[req]", "distinguished_name=name", "x509_extensions=ext", "[name]", "[ext]", *extensions]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        argv = ["req", "-x509", "-config", str(config), "-subj", subject, "-days", DAYS, *signer]
        argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
        _openssl([*argv, "-keyout", str(pair.key), "-out", str(pair.certificate)])
        return pair


def _openssl(argv: list[str]) -> None:
    try:
        answer = subprocess.run(["openssl", *argv], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError("openssl is not installed; `python3 tools/setup debian` installs it") from error
    if answer.returncode != 0:
        raise ClusterError(f"`openssl {' '.join(argv)}` failed: {answer.stderr.strip()}")
