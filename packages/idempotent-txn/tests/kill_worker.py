"""A process that does numbered work exactly once, although it is killed: run by `test_processes.py`.

Arguments: database URL, log file, strategy, how many numbers. The log is its memory over restarts.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any

from fdb_schema import open_database
from idempotent_txn import Committed, IdempotencyId, commit_result, expire_idempotency_id, run


def main() -> None:
    url, path, strategy, total = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    db = open_database(url)
    log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    with open(path) as lines:
        known = [line.split() for line in lines if line.endswith("\n")]
    start, in_doubt = 0, None
    for words in known:
        start, in_doubt = (int(words[1]), int(words[2])) if words[0] == "try" else (int(words[1]) + 1, None)

    def effect(tr: Any, number: int) -> None:
        tr[b"effect/%08d/" % number + uuid.uuid4().bytes] = b""

    for number in range(start, total):
        id = IdempotencyId(b"number-%d" % number)
        if in_doubt is None or not isinstance(commit_result(db, id, in_doubt), Committed):
            run(
                db,
                effect,
                number,
                idempotency_id=id,
                strategy=strategy,  # type: ignore[arg-type]
                on_attempt=lambda version, number=number: os.write(log, b"try %d %d\n" % (number, version)),
            )
        os.write(log, b"done %d\n" % number)
        in_doubt = None
        expire_idempotency_id(db, id)


if __name__ == "__main__":
    main()
