"""Records what a cluster answers to the streams of `api_stream` or `stamped_stream`, two bytes for each answer.

    FDB_CLUSTER_FILE=… MAINSPRING_DISPOSABLE_CLUSTER=1 python -m tests.differential.record api 0:200 FILE

Everything in that cluster is erased. A stream is kept where two runs of it give the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
from tests.differential.api_replay import answers, digest
from tests.differential.api_stream import Call, Stream
from tests.differential.stamped_stream import StampedStream

LENGTH = 150


def stream(kind: str, seed: int) -> Iterable[Call]:
    """The stream of a seed, of kind `api` or `stamped`."""
    return Stream(seed, LENGTH) if kind == "api" else StampedStream(seed)


def recorded(kind: str) -> dict[int, bytes]:
    """By seed, the digests of a cluster's answers, one after another."""
    file = Path(__file__).with_name(f"recorded-{kind}-7.3.79.msgpack")
    found: dict[int, bytes] = msgpack.unpackb(file.read_bytes(), strict_map_key=False)
    return found


def digests(db: Any, binding: Any, kind: str, seed: int) -> bytes:
    """Those of one database."""
    return b"".join(digest(answer) for _, answer in answers(db, binding, stream(kind, seed)))


def main() -> None:
    if os.environ.get("MAINSPRING_DISPOSABLE_CLUSTER") != "1":
        sys.exit("everything in the cluster would be erased: say MAINSPRING_DISPOSABLE_CLUSTER=1")
    import fdb

    from fdb_schema.client_library import select_api_version

    select_api_version(fdb)
    db = fdb.open()
    kind, seeds, file = sys.argv[1:]
    first, last = map(int, seeds.split(":"))
    kept: dict[int, bytes] = {}
    for seed in range(first, last):
        found = digests(db, fdb, kind, seed)
        if found == digests(db, fdb, kind, seed):
            kept[seed] = found
    Path(file).write_bytes(msgpack.packb(kept))
    sys.stderr.write(f"{len(kept)} of {last - first} streams\n")


if __name__ == "__main__":
    main()
