"""Where a handle belongs: how it finds a session of its very cluster, in whatever process and under whatever client.

A handle that a client made uses that client. One that was unpickled carries its cluster's `Origin`, and is of any client
of that cluster that the process has, else of the worker whose process this is, else of one that is opened by its URL.
Nothing is created on the way, and no other cluster is taken for it, whichever client is in a `with` block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fdb_schema import ClusterSpace, MainspringError, Origin, known_identity, open_database
from futures_worker.database import ask
from futures_worker.errors import WrongClusterError

if TYPE_CHECKING:
    from futures_worker.client.client import Client
    from futures_worker.client.session import Session


class Home(Protocol):
    """Finds the session to wait in; a new one after a fork."""

    @property
    def origin(self) -> Origin | None:
        """The cluster; None of a handle that an older release pickled: whichever is current where it is used."""

    def client(self) -> Client:
        """A client of the cluster. Raises WrongClusterError."""

    def known_client(self) -> Client | None:
        """The same, if this process has one already: nothing is opened."""

    def __call__(self) -> Session:
        """The session of `client()`."""


class ClientHome:
    """Of what a client made."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def origin(self) -> Origin | None:
        return self._client.origin

    def client(self) -> Client:
        return self._client

    def known_client(self) -> Client | None:
        return None if self._client.closed else self._client

    def __call__(self) -> Session:
        return self._client._live


class OriginHome:
    """Of what was unpickled: looked for when it is first used, and again once the client found was closed."""

    __slots__ = ("_found", "origin")

    def __init__(self, origin: Origin | None) -> None:
        self.origin = origin
        self._found: Client | None = None

    def client(self) -> Client:
        from futures_worker.client import ambient

        client = self._found
        if client is None or client.closed:
            client = ambient.current_client() if self.origin is None else ambient.client_of(self.origin)
            self._found = client
        return client

    def known_client(self) -> Client | None:
        from futures_worker.client import ambient

        if self.origin is None:
            return None
        if self._found is None or self._found.closed:
            return ambient.known_client_of(self.origin)
        return self._found

    def __call__(self) -> Session:
        return self.client()._live


def find_database(origin: Origin) -> Any:
    """The database of a cluster, opened by its URL. Creates and writes nothing.

    Raises WrongClusterError, which says why it isn't there.
    """
    what = f"this handle is of {origin}"
    if origin.url is None or origin.url.startswith("memory:"):
        raise WrongClusterError(
            f"{what}, which only the process that opened it can reach, and there is no open client of it here"
        )
    try:
        db = open_database(origin.url, create=False)
    except MainspringError as error:
        raise WrongClusterError(
            f"{what}, which can't be opened from here: {error}. Open a client of that cluster by a URL that is right "
            "here, and use the handle while it is open"
        ) from error
    found = ask(db, known_identity, ClusterSpace(origin.cluster), strategy="off")
    if found != origin.identity:
        there = "another cluster of that name" if found is not None else "a database without that cluster"
        raise WrongClusterError(
            f"{what}, and what is there now is {there}: it was deleted and made anew, or its path means another "
            "directory on this host"
        )
    return db
