"""How agents know one another: what one shows, and whom another takes it for.

token    a projected service account token of audience names.AUDIENCE, checked offline against the cluster's keys
         (tokens.py, keys.py): it says which pod calls, and an outage of the API server stops nothing
secret   one secret for all agents of a plan file: whoever holds it may claim to be any of them
none     nothing is shown and everybody is let in: for a machine of one's own
"""

import hmac
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from weightsync.errors import InputError, Refused
from weightsync_agent.peers.keys import KeyCache
from weightsync_agent.peers.tokens import Caller, check, key_id

log = structlog.get_logger(__name__)

__all__ = [
    "Caller",
    "Credentials",
    "NoCredentials",
    "NoVerifier",
    "SecretCredentials",
    "SecretVerifier",
    "TokenCredentials",
    "TokenVerifier",
    "Verifier",
]

ANYBODY = Caller("", "", "")
SHORTEST_SECRET = 16  # characters: shorter ones are guessed
LARGEST_FILE = 64 * 2**10  # bytes: a wrong path must not fill the memory


class Credentials(Protocol):
    """What this agent shows."""

    async def headers(self) -> dict[str, str]:
        """Headers of the next request. Raises InputError where the file with the proof cannot be read."""
        ...


class Verifier(Protocol):
    """Whom this agent lets in."""

    async def verify(self, headers: Mapping[str, str]) -> Caller:
        """Who calls. Raises Refused with status 401 (not known) or 403 (known, and not allowed)."""
        ...


class WatchedFile:
    """A small file that others replace: read again whenever it changed. private: not one that everybody may read."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._private = private
        self._state: tuple[int, int, int, int, int] | None = None
        self._text = ""

    def text(self) -> str:
        """Its content without surrounding blanks. Raises InputError where it is empty, unreadable or open to all."""
        try:
            found = self.path.stat()  # follows the link that the kubelet swaps at each rotation
            state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode)
            if state != self._state:
                self._text = self._read(found.st_mode)
                self._state = state
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: cannot be read: {error}") from error
        if not self._text:
            raise InputError(f"{self.path}: is empty")
        return self._text

    def _read(self, mode: int) -> str:
        if not stat.S_ISREG(mode):  # a pipe would be waited for
            raise InputError(f"{self.path}: is no file")
        if self._private and mode & (stat.S_IROTH | stat.S_IWOTH):
            raise InputError(
                f"{self.path}: everybody on this machine may read or write it (mode {mode & 0o777:o}): chmod o-rwx"
            )
        with self.path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InputError(f"{self.path}: holds more than {LARGEST_FILE} bytes")
        return data.decode().strip()


class TokenCredentials(Credentials):
    """The pod's projected token; the kubelet replaces it long before it expires."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path)

    async def headers(self) -> dict[str, str]:
        """The newest token."""
        return _bearer(self._file.text())


class SecretCredentials(Credentials):
    """The shared secret."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, private=True)

    async def headers(self) -> dict[str, str]:
        """The secret as it is now."""
        return _bearer(secret(self._file))


class NoCredentials(Credentials):
    """Nothing."""

    async def headers(self) -> dict[str, str]:
        """None."""
        return {}


class TokenVerifier(Verifier):
    """Accepts tokens of pods of ``namespace``: a WeightSync joins pods of its own namespace only."""

    def __init__(self, keys: KeyCache, namespace: str) -> None:
        self._keys = keys
        self._namespace = namespace

    async def verify(self, headers: Mapping[str, str]) -> Caller:
        """The pod that the token is bound to."""
        token = _shown(headers)
        caller = check(token, await self._keys.find(key_id(token)))
        if caller.namespace != self._namespace:
            raise Refused(
                f"pod {caller.pod} is in namespace {caller.namespace}, this agent in {self._namespace}: "
                "a WeightSync joins pods of its own namespace",
                reason="WrongNamespace",
                status=403,
            )
        return caller


class SecretVerifier(Verifier):
    """Accepts the shared secret; cannot tell its holders apart."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, private=True)

    async def verify(self, headers: Mapping[str, str]) -> Caller:
        """Anybody who holds the secret."""
        shown = _shown(headers).encode(errors="surrogateescape")  # as the bytes came: they need not be text
        try:
            ours = secret(self._file).encode()
        except InputError as error:
            log.warning("nobody can be let in: this agent's secret cannot be used", problem=str(error))
            raise Refused("this agent's own secret cannot be used now", reason="NoSecret", status=503) from error
        # Compared in constant time: the time to refuse must not tell how much of a guess was right.
        if not hmac.compare_digest(shown, ours):
            raise Refused(
                "the secret is not this agent's: give all agents the same file", reason="WrongSecret", status=401
            )
        return ANYBODY


class NoVerifier(Verifier):
    """Accepts everybody."""

    async def verify(self, headers: Mapping[str, str]) -> Caller:
        """Anybody."""
        return ANYBODY


class Auth(NamedTuple):
    """Both sides of one way."""

    credentials: Credentials
    verifier: Verifier


def by_token(token_file: Path, keys: KeyCache, namespace: str) -> Auth:
    """For agents in a cluster."""
    return Auth(TokenCredentials(token_file), TokenVerifier(keys, namespace))


def by_secret(secret_file: Path) -> Auth:
    """For agents of a plan file. Raises InputError where the secret cannot be used: better now than at each call."""
    secret(WatchedFile(secret_file, private=True))
    return Auth(SecretCredentials(secret_file), SecretVerifier(secret_file))


def by_nothing() -> Auth:
    """For a machine of one's own."""
    return Auth(NoCredentials(), NoVerifier())


def secret(file: WatchedFile) -> str:
    """The secret in ``file``. Raises InputError where it is too short to be one."""
    text = file.text()
    if len(text) < SHORTEST_SECRET:
        raise InputError(f"{file.path}: {len(text)} characters are no secret: write at least {SHORTEST_SECRET}")
    return text


def _bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def _shown(headers: Mapping[str, str]) -> str:
    """What the caller shows."""
    scheme, _, text = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise Refused("no bearer token in the request's Authorization", reason="NoToken", status=401)
    return text.strip()
