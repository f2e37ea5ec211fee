"""The version of each subspace, checked when it is opened.

    (cluster, "format", name) → version, msgpack int

Records grow without a new version (`fdb_schema.records`); a version changes only where an old reader would read
wrongly. A newer version is a clear error, never a guess.
"""

from __future__ import annotations

from typing import Any

from fdb_schema.errors import NewerFormatError, RecordError
from fdb_schema.keyspace import ClusterSpace
from fdb_schema.records import pack, unpack


def check_format(tr: Any, space: ClusterSpace, name: str, version: int) -> int:
    """The version found of subspace `name`; written as `version` where the subspace is new.

    Raises `NewerFormatError` where the one found is newer than `version`, `RecordError` where it can't be read. A lower
    one is returned: the caller migrates, or reads it as it is.
    """
    key = space.format.pack((name,))
    data = tr.get(key).value
    if data is None:
        tr.set(key, pack(version))
        return version
    try:
        found = unpack(data)
    except RecordError as error:
        raise RecordError(
            f"the format of subspace {name!r} of cluster {space.cluster!r} can't be read: {error}"
        ) from error
    if not isinstance(found, int) or found > version:
        raise NewerFormatError(
            f"subspace {name!r} of cluster {space.cluster!r} has format {found!r}, this release reads up to {version}: "
            f"upgrade the package that opens it"
        )
    return found
