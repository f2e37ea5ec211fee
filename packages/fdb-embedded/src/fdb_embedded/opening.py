"""`open` and `close`: the package's own way to a database, with the engine's options."""

from __future__ import annotations

import os
from typing import Any

from .binding.loading import DEFAULT_API_VERSION, DEFAULT_PATH, default_name, load
from .errors import InvalidOption
from .faults import Faults
from .transaction import handles

DURABILITIES = ("process", "fsync", "memory")


def open(
    path: str | os.PathLike[str] | None = None, *, durability: str = "process", faults: Faults | None = None
) -> Any:
    """Open a database and return the official binding's `Database`.

    `path` is a directory, created when it doesn't exist (default: MAINSPRING_DB, else `./.mainspring`); `:memory:` is a new database in
    memory, `memory:NAME` one that all callers in this process share. `durability` says what a commit survives once
    acknowledged: `process` (default) the death of any process, `fsync` power loss too, `memory` nothing.
    `faults` injects failures for tests (default: the environment variable MAINSPRING_FAULTS).
    Raises `NotADatabase`, `NewerFormat`, `DamagedDatabase`, `EmbeddedError`.
    """
    if durability not in DURABILITIES:
        raise InvalidOption(f"durability {durability!r}: expected one of {', '.join(DURABILITIES)}")
    fdb = load()
    name = default_name() if path is None else os.fspath(path)
    if isinstance(name, str):
        if name.startswith("embedded:"):
            name = name.removeprefix("embedded:") or DEFAULT_PATH
        if name == "fdb:" or name.startswith(("fdb:/", "fdb:.")):
            raise InvalidOption(f"{name!r} is the URL of a cluster: fdb.open opens that; the engine takes a directory")
    handle = handles.open_database(
        name, fdb.get_api_version() or DEFAULT_API_VERSION, durability=durability, faults=faults
    )
    return fdb.impl.Database(handle)


def close(database: Any) -> None:
    """Close a handle of any copy of the binding; with its last handle the engine lets go of files and threads."""
    database.dpointer.close()
    # the binding keeps what `fdb.open` returned; opened again, it must be a new handle
    kept = type(database).__init__.__globals__.get("open_databases", {})
    for name in [name for name, known in list(kept.items()) if known is database]:
        kept.pop(name, None)
