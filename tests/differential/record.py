"""Records what a cluster answers to the streams of `api_stream`, two bytes for each answer.

    FDB_CLUSTER_FILE=… MAINSPRING_DISPOSABLE_CLUSTER=1 python -m tests.differential.record 0:200 FILE

Everything in that cluster is erased. A stream is kept where two runs of it give the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgpack
from tests.differential.api_replay import answers, digest

LENGTH = 150
RECORDED = Path(__file__).with_name("recorded-7.3.79.msgpack")


def recorded() -> dict[int, bytes]:
    """By seed, the digests of a cluster's answers, one after another."""
    found: dict[int, bytes] = msgpack.unpackb(RECORDED.read_bytes(), strict_map_key=False)
    return found


def digests(db: Any, binding: Any, seed: int) -> bytes:
    """Those of one database."""
    return b"".join(digest(answer) for _, answer in answers(db, binding, seed, LENGTH))


def main() -> None:
    if os.environ.get("MAINSPRING_DISPOSABLE_CLUSTER") != "1":
        sys.exit("everything in the cluster would be erased: say MAINSPRING_DISPOSABLE_CLUSTER=1")
    import fdb

    from fdb_schema.client_library import select_api_version

    select_api_version(fdb)
    db = fdb.open()
    first, last = map(int, sys.argv[1].split(":"))
    kept: dict[int, bytes] = {}
    for seed in range(first, last):
        found = digests(db, fdb, seed)
        if found == digests(db, fdb, seed):
            kept[seed] = found
    Path(sys.argv[2]).write_bytes(msgpack.packb(kept))
    sys.stderr.write(f"{len(kept)} of {last - first} streams\n")


if __name__ == "__main__":
    main()
