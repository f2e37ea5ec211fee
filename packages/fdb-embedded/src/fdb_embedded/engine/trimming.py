"""The log of commits is kept as long as somebody may be validated by it."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import DamagedDatabase
from ..pure import idempotency
from ..pure.conflict import NOTHING_WRITTEN, WITH_LASTING_IDS, unpack_record
from ..pure.keys import LOG, log_key
from ..pure.versions import MAX_READ_AGE

KEEP_LOG = 2 * MAX_READ_AGE


def trim(txn: Any, version: int, count: int) -> None:
    """Drop commit records that no reader can need; inside a write transaction.

    Of the newest of those that are old enough the key stays: it says that nothing is missing behind it.
    """
    cursor = txn.cursor()
    if not (cursor.set_range(log_key(max(0, version - KEEP_LOG))) and cursor.prev()):
        return
    begin: bytes = cursor.key()
    if not cursor.set_range(LOG):
        return
    spilled = idempotency.spilled_to(txn)
    while count > 0 and cursor.key() <= begin:
        key, data = cursor.item()
        if data[0] == WITH_LASTING_IDS:
            _spill(txn, key, data, spilled)
            cursor.set_range(key)  # the spilled row may have moved pages
        if key == begin:
            if data != NOTHING_WRITTEN:
                txn.put(key, NOTHING_WRITTEN)
            return
        if not cursor.delete():
            return
        count -= 1


def _spill(txn: Any, key: bytes, data: bytes, spilled: int) -> None:
    """Make rows of the lasting ids of a commit record."""
    at = int.from_bytes(key[len(LOG) :], "big")
    if at <= spilled:
        return
    try:
        _, _, ids, seconds = unpack_record(data)
    except DamagedDatabase as error:
        sys.stderr.write(f"fdb-embedded: commit record {at} can't be read ({error}): its ids are lost\n")
    else:
        idempotency.spill(txn, at, ids, seconds)
