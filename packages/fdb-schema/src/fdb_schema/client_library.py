"""FoundationDB's client library, `libfdb_c`: whichever release from 7.3 on is installed serves whichever binding is.

The bindings 7.4 and 8.0 refuse an older library, though it has all that API version 730 needs, the only one used here: each
names its own newest version as that of its header to `fdb_select_api_version_impl`, and 8.0 declares functions that an older
library hasn't. The two forms that a header's version decides, of `FDBKeyValue` and of `FDBKey`, have been the same since
API version 630. So the older of the two releases is named, and what is declared and missing fails when it is called.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
from typing import Any, Final

from fdb_schema.errors import DatabaseUnreachableError

API_VERSION: Final = 730
"""What is selected, and the oldest that a program may have selected itself before."""


class _Missing:
    """A function that the library hasn't: its types can be declared, and it can't be called."""

    def __init__(self, name: str, release: int) -> None:
        self._name, self._release = name, release

    def __call__(self, *arguments: object) -> None:
        raise NotImplementedError(f"{self._name}: libfdb_c of API version {self._release} hasn't this function")


class _OlderLibrary:
    """`library` as a binding that is newer takes it."""

    def __init__(self, library: Any, release: int) -> None:
        self._library, self._release = library, release

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._library, name)
        except AttributeError:
            if not name.startswith("fdb_") or "cdc" in name:  # the binding asks itself whether there is the latter
                raise
            found = _Missing(name, self._release)
            setattr(self, name, found)  # its types are set on what is found the first time
            return found
        if name == "fdb_select_api_version_impl":
            return lambda version, header: found(version, min(header, self._release))
        return found


def select_api_version(fdb: Any) -> None:
    """Select API version 730 of the package `fdb`, over the library that is installed; a newer one that the program has
    selected itself stays.

    Raises:
        DatabaseUnreachableError: there is no library, it is older than 7.3, or the program selected an older version.
    """
    if getattr(fdb, "is_api_version_selected", lambda: False)() is True:
        selected = fdb.get_api_version()
        if selected < API_VERSION:
            raise DatabaseUnreachableError(
                f"this program selected FoundationDB's API version {selected}: call fdb.api_version({API_VERSION}) or a "
                f"newer one, or let open_database do so"
            )
        return
    try:
        fdb.api_version(API_VERSION)
        return
    except Exception as error:
        refused = error
    try:
        binding: Any = importlib.import_module("fdb.impl")
    except Exception as error:
        raise DatabaseUnreachableError(
            f"FoundationDB's client library can't be loaded ({error}): {_INSTALL}"
        ) from error
    release = int(binding._capi.fdb_get_max_api_version())
    if release < API_VERSION:
        raise DatabaseUnreachableError(
            f"the libfdb_c that is installed knows FoundationDB's API up to version {release}, and {API_VERSION} is "
            f"needed: {_INSTALL}"
        ) from refused
    if release >= fdb.LATEST_API_VERSION:  # that wasn't the reason
        raise refused
    binding._capi = _OlderLibrary(binding._capi, release)
    fdb.api_version(API_VERSION)


_ARCHITECTURE = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
_INSTALL: Final = (
    f"install the one of the cluster's version, 7.3 or newer (`fdbcli --version` on one of its hosts tells), by the package "
    f"foundationdb-clients or with\n"
    f"  curl -fLo /usr/local/lib/libfdb_c.so https://github.com/apple/foundationdb/releases/download/VERSION/"
    f"libfdb_c.{_ARCHITECTURE}.so && ldconfig\n"
    f"or use an embedded: URL, which needs none"
)


def client_release(fdb: Any) -> str:
    """The release of the library in use, as "7.3.79", once an API version is selected; "unknown" where it doesn't say."""
    try:
        function = fdb.impl._capi.fdb_get_client_version
        function.restype = ctypes.c_char_p
        told: bytes = function()
        return told.decode("ascii").partition(",")[0]
    except Exception:
        return "unknown"
