"""Lets a newer official binding use an older `libfdb_c`, so that one cluster answers to each binding that is supported.

A binding names its own release to the library, which refuses newer ones than itself; 8.0 also declares functions that an older
library hasn't. At an API version that both have, what is called is there.
"""

from __future__ import annotations

import importlib
from typing import Any


class _Missing:
    """A function that the library hasn't: it can be declared, and not called."""


class _OlderClient:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._release = library.fdb_get_max_api_version()

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._library, name)
        except AttributeError:
            if "cdc" in name:  # whose absence the binding looks for
                raise
            return _Missing()
        if name == "fdb_select_api_version_impl":
            return lambda version, header: found(version, min(header, self._release))
        return found


def accept_an_older_client() -> None:
    """For the module `fdb` of this process, before its API version is selected. Nothing changes where its library is as new."""
    impl = importlib.import_module("fdb.impl")
    if not isinstance(impl._capi, _OlderClient):
        impl._capi = _OlderClient(impl._capi)
