"""The one way to open a database: a URL chooses the engine.

| URL | engine |
|---|---|
| `embedded:PATH` (default `embedded:./.mainspring`) | the embedded engine; many processes of one machine share the directory |
| `memory:` or `memory:NAME` | the embedded engine inside this process; the same NAME is the same database |
| `fdb:` or `fdb:/path/fdb.cluster` | a FoundationDB cluster through the official client (`libfdb_c`) |

No other code of Mainspring asks which engine it runs on.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final

from fdb_schema.client_library import client_release, select_api_version
from fdb_schema.engine import Database
from fdb_schema.errors import (
    DatabaseUnreachableError,
    DatabaseUrlError,
    NewerFormatError,
    NotADatabaseError,
)

DEFAULT_URL: Final = "embedded:./.mainspring"
URL_VARIABLE: Final = "MAINSPRING_DB"
_URL_ATTRIBUTE: Final = "_mainspring_url"
PROBE_TIMEOUT_MS: Final = 10_000
_FORMS: Final = "embedded:PATH, memory:, memory:NAME, fdb: or fdb:/path/fdb.cluster"


def database_url(url: str | None = None) -> str:
    """`url`, or the environment's `MAINSPRING_DB`, or the default."""
    return url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def open_database(
    url: str | None = None, *, durability: str | None = None, create: bool = True, beside: bool = False
) -> Database:
    """Open the database that `url` names; see the module's table. The engine is loaded at the first use.

    `durability` ("process", "fsync", "memory") is for `embedded:` alone. `create` False: a directory that isn't there
    yet is an error, as for whoever only looks, who has mistyped the path then. `beside`: an `embedded:` database of a
    process that opens a cluster too, whose client has the name `fdb`; the engine gets a copy of the binding of its own.

    Raises:
        DatabaseUrlError: the URL names no engine, or is malformed.
        NotADatabaseError: the directory holds something else, or a damaged database.
        NewerFormatError: the directory was written by a newer release.
        DatabaseUnreachableError: the path can't be used, or the cluster doesn't answer.
    """
    text = database_url(url)
    if not create:
        _check_exists(text)
    database = _open(text, durability, beside)
    # What another process opens to reach the same database; it may run in another directory.
    setattr(database, _URL_ATTRIBUTE, _absolute(text))
    return database


def as_database(db: Any) -> Any:
    """`db`, or the database of the URL that it is: what takes a database takes its URL too, and None for the default."""
    return open_database(db) if db is None or isinstance(db, str) else db


def _absolute(url: str) -> str:
    scheme, _, rest = url.partition(":")
    if scheme == "embedded":
        return f"{scheme}:{Path(rest).expanduser().resolve()}"
    return f"{scheme}:{Path(rest).resolve()}" if scheme == "fdb" and rest else url


def _check_exists(text: str) -> None:
    scheme, _, rest = text.partition(":")
    if scheme != "embedded" or not rest:
        return
    path = Path(rest).expanduser().resolve()
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise DatabaseUnreachableError(
            f"there is no database at {path}: check --db or {URL_VARIABLE}; workers and clients make one when they start"
        )


def url_of(database: Any) -> str | None:
    """The URL under which `open_database` opened `database`, paths made absolute; None where it was opened otherwise."""
    return getattr(database, _URL_ATTRIBUTE, None)


def _open(text: str, durability: str | None, beside: bool) -> Database:
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise DatabaseUrlError(f"database URL {text!r} has no scheme: use {_FORMS}")
    if scheme == "embedded":
        if not rest:
            raise DatabaseUrlError(f"database URL {text!r} names no directory: use embedded:PATH, e.g. {DEFAULT_URL}")
        if beside and durability is not None:
            raise DatabaseUrlError(f"durability={durability!r} can't be chosen with beside=True")
        return _open_embedded(_absolute(text).partition(":")[2], text, durability, beside)
    if beside:
        raise DatabaseUrlError(f"beside=True is for embedded: URLs, not for {text!r}")
    if durability is not None:
        raise DatabaseUrlError(f"durability={durability!r} is for embedded: URLs, not for {text!r}")
    if scheme == "memory":
        return _open_embedded(f"memory:{rest}" if rest else ":memory:", text, None)
    if scheme == "fdb":
        return _open_cluster(rest or None, text)
    raise DatabaseUrlError(f"database URL {text!r} has the unknown scheme {scheme!r}: use {_FORMS}")


def _open_embedded(path: str, url: str, durability: str | None, beside: bool = False) -> Database:
    engine = importlib.import_module("fdb_embedded")
    options: dict[str, Any] = {} if durability is None else {"durability": durability}
    try:
        database: Database = engine.load(private=True).open(path) if beside else engine.open(path, **options)
    except Exception as error:
        translated = next(
            (_TRANSLATED[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _TRANSLATED), None
        )
        if translated is not None:
            raise translated(f"{url}: {error}") from error
        if isinstance(error, OSError):
            raise DatabaseUnreachableError(
                f"{url} can't be opened: {error.strerror or error} ({error.filename or path})"
            ) from error
        raise
    return database


# The embedded engine imports no sibling, so its errors are its own; they are told by name.
_TRANSLATED: Final[dict[str, type[Exception]]] = {
    "NotADatabase": NotADatabaseError,
    "DamagedDatabase": NotADatabaseError,
    "NewerFormat": NewerFormatError,
    "InvalidOption": DatabaseUrlError,
    "PathUnusable": DatabaseUnreachableError,
    "EmbeddedError": DatabaseUnreachableError,
}


_client_of: int | None = None
"""The process that uses FoundationDB's client, whose thread no child has that is forked from it."""


def _open_cluster(cluster_file: str | None, url: str) -> Database:
    global _client_of
    if cluster_file is not None and not Path(cluster_file).is_file():
        raise DatabaseUnreachableError(f"{url}: there is no cluster file at {cluster_file}")
    if _client_of not in (None, os.getpid()):  # it would wait for ever, and take what wakes its parent
        raise DatabaseUnreachableError(
            f"{url}: this process was forked from one that uses a cluster (pid {_client_of}), and FoundationDB's client doesn't "
            'survive a fork: start it by subprocess, or by multiprocessing\'s "spawn" or "forkserver"'
        )
    try:
        import fdb

        if "_fdb_embedded" in vars(fdb):  # its `open` would make an embedded database in the working directory
            raise DatabaseUnreachableError(
                "the embedded engine already serves this process, which has one engine behind the name fdb; "
                "open the cluster from another process"
            )
        select_api_version(fdb)
        _client_of = os.getpid()
        database: Database = fdb.open(cluster_file)
    except DatabaseUnreachableError as error:
        raise DatabaseUnreachableError(f"{url}: {error}") from error.__cause__
    except Exception as error:
        raise DatabaseUnreachableError(
            f"{url}: FoundationDB's client can't be used ({error}); an embedded: URL needs none"
        ) from error
    probe = database.create_transaction()
    probe.options.set_timeout(PROBE_TIMEOUT_MS)
    try:
        probe.get_read_version().wait()
    except Exception as error:
        raise DatabaseUnreachableError(
            f"{url}: no FoundationDB cluster answered within {PROBE_TIMEOUT_MS / 1000:.0f} s ({error}): "
            f"check the cluster file, that the cluster runs, and that it has the version of the client library here, "
            f"which is {client_release(fdb)}"
        ) from error
    return database
