"""Checks of what lies below a cluster: engine, versions, space."""

from __future__ import annotations

import os
import re
import shutil
import time
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, Final

import fdb_datamodel.rows.table
import lease_locks.grants.space
from fdb_schema import ClusterSpace, get_many, unpack
from idempotent_txn import run
from mainspring.doctor.findings import Finding, ok, problem, warning
from mainspring.existing import database_path
from s3heap_tender.rows.keys import FORMAT as HEAP_FORMAT
from s3heap_tender.rows.keys import SUBSPACE

SLOW_COMMIT: Final = 1.0
MAP_SHARE: Final = 0.9
_BINDINGS: Final = (7, 3), (9, 0)
_FORMATS: Final = (
    ("futures", fdb_datamodel.rows.table.FORMAT),
    ("lease", lease_locks.grants.space.FORMAT),
    (SUBSPACE, HEAP_FORMAT),
)


def check_engine(db: Any, space: ClusterSpace) -> list[Finding]:
    """Reads and commits within a second, and knows the outcome; where the engine's own figures show nothing odd."""
    began = time.monotonic()
    key = space["doctor"].pack(("probe",))

    def probe(tr: Any) -> None:
        tr.get(key).wait()
        tr.set(key, b"")
        tr.clear(key)

    run(db, probe)
    took = time.monotonic() - began
    if took > SLOW_COMMIT:
        return [
            warning(
                "engine",
                f"one small commit took {took:.1f} s",
                "look at the load of this machine and of its disk, and at `fdbcli status` of a FoundationDB cluster",
            )
        ]
    return [ok("engine", f"a commit took {took * 1000:.1f} ms")]


def check_versions(db: Any, space: ClusterSpace) -> list[Finding]:
    """All of Mainspring's distributions have one version; the binding is supported; no format is a newer one."""
    found: list[Finding] = []
    ours = {
        name: distribution.version
        for distribution in distributions()
        if (name := (distribution.metadata["Name"] or "").lower()) in _OURS or name.startswith("mainspring")
    }
    if len(set(ours.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in sorted(ours.items()))
        what = f"packages of different releases are installed together: {listed}"
        found.append(problem("versions", what, "install one release of all of them"))
    binding = version("foundationdb")
    number = tuple(int(part) for part in re.findall(r"\d+", binding)[:2])
    if not _BINDINGS[0] <= number < _BINDINGS[1]:
        what = f"the foundationdb binding {binding} is not a supported one"
        found.append(problem("versions", what, 'python -m pip install "foundationdb>=7.3,<9"'))
    keys = [space.format.pack((name,)) for name, _ in _FORMATS]
    for (name, known), data in zip(_FORMATS, run(db, get_many, keys, strategy="off"), strict=True):
        written = known if data is None else unpack(data)
        if not isinstance(written, int) or written > known:
            what = f"subspace {name!r} was written in format {written!r}; this installation reads up to {known}"
            found.append(problem("versions", what, "upgrade this installation before it serves this cluster"))
    return found or [ok("versions", f"{len(ours)} packages of one release; foundationdb {binding}")]


_OURS: Final = frozenset(
    {"fdb-schema", "fdb-embedded", "idempotent-txn", "lease-locks", "fdb-datamodel", "futures-worker", "s3heap-tender"}
)


def check_space(url: str, min_free: int, places: list[Path]) -> list[Finding]:
    """Enough bytes and files are free where the database, the heap and workers' memory are."""
    path = database_path(url)
    folders = {"the database": path, "the shared memory of results": Path("/dev/shm")}
    folders |= {f"the heap {place}": place for place in places}
    found = []
    for what, folder in folders.items():
        if folder is None:
            continue
        if not folder.exists():
            if folder in places:
                said = f"there is no directory {folder} for the heap"
                found.append(problem("space", said, "give the --store that tenders and schedulers use"))
            continue
        free = shutil.disk_usage(folder).free
        inodes = os.statvfs(folder)
        if free < min_free:
            said = f"{_size(free)} are free at {folder}, where {what} is; {_size(min_free)} are wanted"
            found.append(problem("space", said, "make room, or move it to a larger disk"))
        elif inodes.f_files and inodes.f_favail < 1000:
            said = f"only {inodes.f_favail} more files can be made at {folder}, where {what} is"
            found.append(problem("space", said, "remove files, or move it to another disk"))
    if path is not None and path.is_relative_to("/dev/shm"):
        found.append(
            warning(
                "space", f"the database is in memory ({path}): a restart of the machine ends it", "move it to a disk"
            )
        )
    return found or [ok("space", f"at least {_size(min_free)} are free wherever something grows")]


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
