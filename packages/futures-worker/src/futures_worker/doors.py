"""The doors through which other libraries come in: each is in `futures_worker.adapters` and is loaded when it is used first, by its name,
so that nothing here needs the library."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

LIBRARIES: Final = {"dask": "dask_scheduler", "joblib": "joblib_backend"}
"""Library, which is an extra of the package, too → the module of `futures_worker.adapters` that serves it."""


def door(library: str) -> ModuleType:
    """The adapter of a library. Raises ImportError, which says how the library is installed."""
    try:
        return importlib.import_module(f"futures_worker.adapters.{LIBRARIES[library]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise ImportError(
            f"{library} isn't installed here: install it, or futures-worker with its extra {library!r} "
            f"(python tools/install.py 'futures-worker[{library}]')",
            name=library,
        ) from error


def register_joblib() -> None:
    """Make `joblib.parallel_config("mainspring")`, and `Parallel(backend="mainspring")`, mean a cluster. Calling it twice is harmless.

    Raises ImportError where joblib isn't installed.
    """
    door("joblib").register()
