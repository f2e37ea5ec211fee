"""Opening a database only to look at it: a mistyped path is an error here, not a new, empty database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fdb_schema import DatabaseUnreachableError, database_url, open_database


def database_path(url: str) -> Path | None:
    """The directory of an `embedded:` URL."""
    scheme, _, rest = url.partition(":")
    return Path(rest).expanduser().resolve() if scheme == "embedded" and rest else None


def open_existing(url: str | None, *, beside: bool = False) -> Any:
    """The database behind `url`, `beside` as `open_database` says. Raises `DatabaseUnreachableError` where there is none, and what `open_database` raises."""
    path = database_path(database_url(url))
    if path is not None and not (path.is_dir() and any(path.iterdir())):
        raise DatabaseUnreachableError(
            f"there is no database in {path}: start a cluster with `mainspring up`, or say with --db where it is"
        )
    return open_database(url, beside=beside)
