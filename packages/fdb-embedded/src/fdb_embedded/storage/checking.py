"""Reading every row and record of a store, to find what can't be read or means nothing."""

from __future__ import annotations

from typing import Any

import lmdb

from ..errors import DamagedDatabase
from ..pure import keys
from ..pure.conflict import unpack_record


def check_rows(txn: Any, problems: list[str]) -> dict[str, int]:
    """Counts of what an LMDB transaction shows; adds what is wrong to `problems`."""
    counts = {"rows": 0, "nodes": 0, "commit_records": 0, "bytes": 0, "version": 0}
    named: set[bytes] = set()  # stems, by nodes
    used: set[bytes] = set()  # stems, by rows
    previous = b""
    try:
        for key, value in txn.cursor().iternext(True, True):
            if key <= previous:
                problems.append(f"keys out of order at {key!r}")
            previous = key
            if key.startswith(keys.LOG):
                counts["commit_records"] += 1
                counts["version"] = _check_record(key, value, counts["version"], problems)
            elif key.startswith(keys.META) and not key.startswith(keys.STEMS):
                counts["rows"] += key == keys.EMPTY
                continue
            else:
                if key.startswith(keys.STEMS):
                    used.add(key[: keys.STEM])
                if len(key) == keys.NODE:
                    counts["nodes"] += 1
                    _check_node(key, value, named, problems)
                else:
                    counts["rows"] += 1
            counts["bytes"] += len(key) + len(value)
    except lmdb.Error as error:
        problems.append(f"the store can't be read behind {previous!r}: {error}")
    problems += [f"the rows of a node of long keys are missing: {stem!r}" for stem in sorted(named - used)]
    problems += [f"the node of some rows with long keys is missing: {stem!r}" for stem in sorted(used - named)]
    return counts


def _check_record(key: bytes, value: bytes, version: int, problems: list[str]) -> int:
    found = int.from_bytes(key[len(keys.LOG) :], "big")
    if found <= version:
        problems.append(f"commit record {found} doesn't follow {version}")
    try:
        unpack_record(value)
    except DamagedDatabase as error:
        problems.append(f"commit record {found} can't be read: {error}")
    return found


def _check_node(key: bytes, value: bytes, named: set[bytes], problems: list[str]) -> None:
    try:
        stem = keys.stem_of(key, value)
    except DamagedDatabase as error:
        problems.append(str(error))
        return
    if stem in named:
        problems.append(f"the node of long keys {key!r:.40} shares its rows with another")
    named.add(stem)
