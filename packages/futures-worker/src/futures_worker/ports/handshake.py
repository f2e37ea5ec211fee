"""How two processes of a cluster prove to each other that they know its secret, and that each is whom the other means.

    server -> client   MAGIC (8) | nonce (32)
    client -> server   MAGIC (8) | nonce (32) | id of a secret (8) | encrypted? (1) | whom it dialled (32) | X25519 key (32) | proof (32)
    server -> client   proof (32), and if encrypted an X25519 key (32)

All sizes are fixed, so that a stranger costs a few hundred bytes and never a parser. A proof is an HMAC-SHA256, keyed by the
secret, over its sender's role and all that was said before. Whom the client dialled is a digest of the role, the address and,
where it knows it, the incarnation: who passes the proofs on to another process of the cluster gets nothing from either. What
is sent afterwards is sealed (`futures_worker.ports.sealing`) by keys that come from the secret and all that was said, and, if it is
encrypted, from a key exchange of that moment, so that who learns the secret later can't read it.

No I/O: `ServerHandshake` and `ClientHandshake` take bytes and give bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from futures_worker.errors import AuthenticationError, WireError
from futures_worker.ports.sealing import EncryptionMissingError, Half, Halves

MAGIC: Final = b"mspring2"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES
HELLO_BYTES: Final = GREETING_BYTES + KEY_ID_BYTES + 1 + 32 + 32 + PROOF_BYTES
# In the place of a proof: without it, a peer that dies meanwhile would look like one that refuses.
REFUSED: Final = b"refused." * 4

OBJECTS: Final = "objects"
"""The role of a worker that serves objects and takes requests."""
ACTOR: Final = "actor"
"""The role of a process that runs an actor."""


class Secrets(Protocol):
    """The secrets that a process accepts, and the one it proves."""

    @property
    def newest(self) -> bytes:
        """The one to prove."""

    @property
    def encrypted(self) -> bool:
        """Whether connections are to be encrypted."""

    def find(self, key_id: bytes) -> bytes | None:
        """The secret of that id, if it is accepted."""

    def refresh(self) -> bool:
        """Look whether they changed; whether they did. May block, and may do nothing if it was done a moment ago."""


class FixedSecret:
    """One secret that never changes."""

    def __init__(self, secret: bytes, *, encrypted: bool = False) -> None:
        self.newest = secret
        self.encrypted = encrypted

    def find(self, key_id: bytes) -> bytes | None:
        return self.newest if key_id == secret_id(self.newest) else None

    def refresh(self) -> bool:
        return False


def as_secrets(secret: bytes | Secrets) -> Secrets:
    """A secret given as bytes never changes."""
    return FixedSecret(secret) if isinstance(secret, bytes) else secret


def secret_id(secret: bytes) -> bytes:
    """By which a secret is named to who knows it too; it tells nothing of the secret."""
    return hashlib.blake2b(secret, digest_size=KEY_ID_BYTES, person=b"secret id").digest()


@dataclass(frozen=True, slots=True)
class Destination:
    """Whom a client dials: a role at an address, and the start of that process where it is known."""

    role: str
    ip: str
    port: int
    incarnation: bytes = b""  # b"": any process at that address

    def digest(self) -> bytes:
        """Of the place (16 bytes), and of the incarnation (16 bytes)."""
        return _digest(f"{self.role} {self.ip} {self.port}".encode()) + _digest(self.incarnation)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16, person=b"destination").digest()


def _any() -> None:
    """Of a process that has no incarnations, or doesn't know the present one yet."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a server is: its role, the address that others know it by, and the incarnations it has had (None: any may be meant)."""

    role: str
    ip: str
    port: int
    incarnations: Callable[[], Iterable[bytes] | None] = _any

    def is_meant(self, digest: bytes) -> bool:
        """Whether that is the digest of a destination which this is."""
        if digest[:16] != Destination(self.role, self.ip, self.port).digest()[:16]:
            return False
        known = self.incarnations()
        return known is None or digest[16:] in map(_digest, (b"", *known))


class MisdirectedError(AuthenticationError):
    """The peer belongs to the cluster and isn't whom the caller dialled."""


class NoPlaceError(WireError):
    """The peer is the one that was dialled, and has as many callers as it takes: it may be tried again, nothing was sent."""


class UnknownSecretError(AuthenticationError):
    """The client proves a secret of an id that this process doesn't know, or not yet."""


class Greeted(NamedTuple):
    """What to answer a client's hello, and what has become of the handshake."""

    reply: bytes
    halves: Halves | None
    error: WireError | None = None


class ServerHandshake:
    """The server's half of one handshake. Send `greeting`, collect HELLO_BYTES, send the reply of `answer`."""

    def __init__(self, known: Secrets, identity: Identity, has_place: Callable[[], bool] = lambda: True) -> None:
        """`has_place`: whether there is one for a client that proves itself."""
        self._known = known
        self._identity = identity
        self._has_place = has_place
        self.greeting = MAGIC + secrets.token_bytes(NONCE_BYTES)

    def answer(self, hello: bytes) -> Greeted:
        """Raises `WireError` if that isn't a hello, `UnknownSecretError` if another look at the secrets may help."""
        if not hello.startswith(MAGIC):
            raise WireError("the peer speaks another protocol")
        said, proof = hello[:-PROOF_BYTES], hello[-PROOF_BYTES:]
        key_id = said[GREETING_BYTES : GREETING_BYTES + KEY_ID_BYTES]
        encrypted = said[GREETING_BYTES + KEY_ID_BYTES] == 1
        dialled, exchanged = said[-64:-32], said[-32:]
        secret = self._known.find(key_id)
        if secret is None:
            raise UnknownSecretError("the peer does not know this cluster's secret")
        if not hmac.compare_digest(proof, _proof(secret, b"client", self.greeting + said)):
            return Greeted(REFUSED, None, AuthenticationError("the peer does not know this cluster's secret"))
        if self._known.encrypted and not encrypted:
            return Greeted(REFUSED, None, AuthenticationError("the peer doesn't encrypt, as this cluster's do"))
        ours, shared = _exchange(exchanged) if encrypted else (b"", b"")
        transcript = self.greeting + hello + ours
        if not self._identity.is_meant(dialled):
            error = MisdirectedError("the peer dialled another process, or another start of this one")
            return Greeted(_proof(secret, b"another", transcript) + ours, None, error)
        if not self._has_place():
            return Greeted(_proof(secret, b"full", transcript) + ours, None, NoPlaceError("there are too many callers"))
        receiving, sending = _session(secret, transcript, shared, encrypted)
        return Greeted(_proof(secret, b"server", transcript) + ours, Halves(sending, receiving))


class ClientHandshake:
    """The client's half of one handshake. Collect GREETING_BYTES, send `hello` of them, collect `reply_bytes`."""

    def __init__(self, known: Secrets, destination: Destination) -> None:
        self._secret = known.newest
        self._encrypted = known.encrypted
        self._destination = destination
        self._private: Any = _new_key() if self._encrypted else None
        self._said = b""
        self.reply_bytes = PROOF_BYTES
        """Bytes of the server's proof; if that isn't a refusal and this is encrypted, 32 more follow."""

    @property
    def more_bytes(self) -> int:
        """Bytes that follow a proof."""
        return 32 if self._encrypted else 0

    def hello(self, greeting: bytes) -> bytes:
        """Raises `WireError` if that isn't a greeting."""
        if not greeting.startswith(MAGIC):
            raise WireError("it speaks another protocol")
        public = self._private.public_key().public_bytes_raw() if self._encrypted else bytes(32)
        said = b"".join(
            (
                MAGIC,
                secrets.token_bytes(NONCE_BYTES),
                secret_id(self._secret),
                b"\1" if self._encrypted else b"\0",
                self._destination.digest(),
                public,
            )
        )
        hello = said + _proof(self._secret, b"client", greeting + said)
        self._said = greeting + hello
        return hello

    def finish(self, proof: bytes, more: bytes) -> Halves:
        """Raises `AuthenticationError` if the server doesn't know the secret, `MisdirectedError` if it is another one.

        Raises `NoPlaceError` if it has as many callers as it takes.
        """
        transcript = self._said + more
        if hmac.compare_digest(proof, _proof(self._secret, b"another", transcript)):
            raise MisdirectedError("another process of this cluster answers there")
        if hmac.compare_digest(proof, _proof(self._secret, b"full", transcript)):
            raise NoPlaceError(
                "it has as many callers as it takes, each in use within the last minute: it is tried again"
            )
        if not hmac.compare_digest(proof, _proof(self._secret, b"server", transcript)):
            raise AuthenticationError("it does not know this cluster's secret")
        shared = _shared(self._private, more) if self._encrypted else b""
        return Halves(*_session(self._secret, transcript, shared, self._encrypted))


def _proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, b"mainspring " + role + b"\0" + said, "sha256")


def _session(secret: bytes, transcript: bytes, shared: bytes, encrypted: bool) -> tuple[Half, Half]:
    """The halves from client to server and from server to client."""
    keys = hmac.digest(secret, b"mainspring session\0" + hashlib.sha512(transcript).digest() + shared, "sha512")
    return Half(keys[:32], encrypted), Half(keys[32:], encrypted)


def _new_key() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise EncryptionMissingError from error
    return X25519PrivateKey.generate()


def _exchange(theirs: bytes) -> tuple[bytes, bytes]:
    """A fresh public key, and what it shares with theirs."""
    private = _new_key()
    return private.public_key().public_bytes_raw(), _shared(private, theirs)


def _shared(private: Any, theirs: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        found: bytes = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:
        raise WireError(f"the peer's key can't be used: {error}") from error
    return found
