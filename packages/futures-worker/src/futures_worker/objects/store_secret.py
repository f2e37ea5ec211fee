"""The cluster's secrets, which processes prove to each other before either unpickles what the other sent.

(cluster, "secret")  → b"mainspring:private\0" and msgpack [format, [secret, ...], encrypted]: 32 random bytes each, the newest first

The first worker or client that asks makes one. Two are accepted for as long as processes that know only the former run:
`rotate_secret` puts a fresh one in front, `retire_secrets` drops all but that. Whoever meets a peer that proves another
secret than it knows looks again, so nothing has to be restarted. A row that begins so is left out of dumps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from fdb_schema import ClusterSpace, RecordError
from futures_worker.ports.handshake import SECRET_BYTES, secret_id
from futures_worker.ports.wire import new_secret
from idempotent_txn import run

PRIVATE: Final = b"mainspring:private\0"
"""What a value begins with that no dump shows."""
FORMAT: Final = 1
MOST_SECRETS: Final = 2
"""Secrets accepted at one time."""
LOOK_SECONDS: Final = 1.0
"""Between two looks that strangers can cause."""
STALE_SECONDS: Final = 30.0
"""After which a process that is asked for a connection looks whether a secret was retired."""

log = logging.getLogger("futures_worker")


class StoredSecrets(NamedTuple):
    """The row."""

    secrets: tuple[bytes, ...]  # the newest first
    encrypted: bool = False


def secret_key(space: ClusterSpace) -> bytes:
    """The row of the secrets."""
    key: bytes = space.pack(("secret",))
    return key


def pack_secrets(stored: StoredSecrets) -> bytes:
    """The row's value."""
    packed: bytes = msgpack.packb([FORMAT, list(stored.secrets), stored.encrypted])
    return PRIVATE + packed


def unpack_secrets(value: bytes) -> StoredSecrets:
    """Raises `RecordError`. 32 bytes alone are one secret."""
    if len(value) == SECRET_BYTES:
        return StoredSecrets((value,))
    try:
        if not value.startswith(PRIVATE):
            raise ValueError("it doesn't begin as one does")
        found = msgpack.unpackb(value[len(PRIVATE) :])
        if type(found) is not list or len(found) < 3 or type(found[0]) is not int:
            raise ValueError("it isn't a list of a format, secrets and a choice")
        kind, secrets, encrypted = found[:3]
        if kind > FORMAT:
            raise ValueError(f"it has format {kind}, this futures-worker knows {FORMAT}: upgrade futures-worker")
        if type(secrets) is not list or not secrets or any(type(one) is not bytes or len(one) < 16 for one in secrets):
            raise ValueError("its secrets aren't bytes")
        return StoredSecrets(tuple(secrets), encrypted is True)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RecordError(f"the cluster's secret can't be read: {error}") from error


def stored_secrets(tr: Any, space: ClusterSpace) -> StoredSecrets:
    """The secrets of a cluster, as one that only looks sees them; none where none were made yet."""
    found = tr.get(secret_key(space)).value
    return StoredSecrets(()) if found is None else unpack_secrets(bytes(found))


def read_secrets(tr: Any, space: ClusterSpace) -> StoredSecrets:
    """The secrets of a cluster; they are made if there are none yet."""
    found = stored_secrets(tr, space)
    if found.secrets:
        return found
    fresh = StoredSecrets((new_secret(),))
    tr.set(secret_key(space), pack_secrets(fresh))
    return fresh


def rotate_secret(tr: Any, space: ClusterSpace) -> StoredSecrets:
    """A fresh secret is proved from now on; the one before it is accepted still."""
    before = read_secrets(tr, space)
    after = before._replace(secrets=(new_secret(), *before.secrets)[:MOST_SECRETS])
    tr.set(secret_key(space), pack_secrets(after))
    return after


def retire_secrets(tr: Any, space: ClusterSpace) -> StoredSecrets:
    """Only the newest secret is accepted from now on."""
    before = read_secrets(tr, space)
    after = before._replace(secrets=before.secrets[:1])
    tr.set(secret_key(space), pack_secrets(after))
    return after


def set_encryption(tr: Any, space: ClusterSpace, encrypted: bool) -> StoredSecrets:
    """Whether connections of the cluster that are opened from now on are encrypted."""
    after = read_secrets(tr, space)._replace(encrypted=encrypted)
    tr.set(secret_key(space), pack_secrets(after))
    return after


def cluster_secret(db: Any, space: ClusterSpace) -> bytes:
    """Reads the cluster's newest secret from the database; makes it if this is the first process of the cluster."""
    stored: StoredSecrets = run(db, read_secrets, space)
    return stored.secrets[0]


class ClusterSecrets:
    """The secrets of a cluster as a process knows them (`futures_worker.ports.handshake.Secrets`). Thread-safe."""

    def __init__(self, db: Any, space: ClusterSpace, *, ask: Callable[..., Any] = run) -> None:
        """Reads them. Raises `RecordError`. `ask` runs transactions: of who waits no longer than he wants for a database."""
        self._db = db
        self._ask = ask
        self._space = space
        self._lock = threading.Lock()
        self._stored: StoredSecrets = ask(db, read_secrets, space)
        self._read = time.monotonic()
        self._known = {secret_id(one): one for one in self._stored.secrets}

    @property
    def newest(self) -> bytes:
        return self._stored.secrets[0]

    @property
    def encrypted(self) -> bool:
        return self._stored.encrypted

    def find(self, key_id: bytes) -> bytes | None:
        """None also while it is long ago that the row was read: then it may have been retired."""
        if time.monotonic() - self._read > STALE_SECONDS:
            return None
        return self._known.get(key_id)

    def refresh(self) -> bool:
        asked, before = time.monotonic(), self._stored
        stale = asked - self._read > STALE_SECONDS
        with self._lock:
            if self._read < asked:  # else somebody has just looked for us as well
                time.sleep(max(0.0, self._read + LOOK_SECONDS - asked))
                try:
                    self._stored = self._ask(self._db, read_secrets, self._space)
                except RecordError as error:  # new processes can't join; this one goes on
                    log.warning("%s; what was known of it is used", error)
                finally:
                    self._read = time.monotonic()  # without the database, what was known counts
                self._known = {secret_id(one): one for one in self._stored.secrets}
            return stale or self._stored != before
