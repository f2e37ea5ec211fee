"""A process whose FoundationDB client injects faults of its own: run by `test_cluster.py`.

Arguments: database URL, strategy ("native-explicit" gives ids of its own), how many calls. Prints, as JSON, how many
attempts it took and which calls ended by `CommitUnknownResultFatal`.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import fdb

from fdb_schema import open_database
from fdb_schema.client_library import select_api_version
from idempotent_txn import CommitUnknownResultFatal, IdempotencyId, run


def main() -> None:
    url, strategy, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
    select_api_version(fdb)
    fdb.options.set_client_buggify_enable()
    fdb.options.set_client_buggify_section_activated_probability(100)
    fdb.options.set_client_buggify_section_fired_probability(15)
    db = open_database(url)
    attempts = 0
    fatal: list[int] = []

    def effect(tr: Any, call: int) -> None:
        nonlocal attempts
        attempts += 1
        if call % 2:
            tr[b"seen"].wait()
        tr[b"effect/%d/" % call + uuid.uuid4().bytes] = b""
        tr.add(b"added", (1).to_bytes(8, "little"))

    explicit = strategy == "native-explicit"
    for call in range(calls):
        id = IdempotencyId(b"the id of call number %d" % call) if explicit else None
        try:
            run(db, effect, call, idempotency_id=id, strategy="native" if explicit else strategy)  # type: ignore[arg-type]
        except CommitUnknownResultFatal:
            # This client injects 1021 before it has a read version as well; then it searches from version 0, and gives up.
            fatal.append(call)
    json.dump({"attempts": attempts, "fatal": fatal}, sys.stdout)


if __name__ == "__main__":
    main()
