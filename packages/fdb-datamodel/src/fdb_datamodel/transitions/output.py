"""What tasks printed: the end of each attempt's output, kept as long as its future."""

from __future__ import annotations

import contextlib
from uuid import UUID

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.elements import decode_int, encode_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import as_id
from fdb_datamodel.rows.records import TaskOutput
from fdb_datamodel.rows.space import CODE, layout_of
from fdb_schema import ClusterSpace, RecordError, Transaction, read_range

OUTPUT_KEPT = 64_000
"""Bytes of an attempt's output that are kept, of its end."""
ATTEMPTS_KEPT = 5


def write_output(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, output: TaskOutput) -> bool:
    """Keep what an attempt has printed so far, instead of what was kept of it; False if the future isn't there."""
    keys = layout_of(space)
    e = encode_id(as_id(future_id))
    if tr.get(keys.future(e, CODE)).value is None:
        return False
    tr.set(keys.log(e, output.attempt), codec.pack((output.data[-OUTPUT_KEPT:], output.size)))
    if output.attempt > ATTEMPTS_KEPT:
        tr.clear_range(keys.logs + e, keys.log(e, output.attempt - ATTEMPTS_KEPT + 1))
    return True


def read_output(tr: Transaction, space: ClusterSpace, future_id: UUID | bytes) -> list[TaskOutput]:
    """What is kept of each attempt that printed anything, oldest first, by snapshot."""
    keys = layout_of(space)
    prefix = keys.logs + encode_id(as_id(future_id))
    found = []
    for key, value in read_range(tr, prefix, prefix + b"\xff", snapshot=True):
        if is_known(keys, "logs", key):
            with contextlib.suppress(RecordError):  # what other attempts printed is shown all the same
                found.append(TaskOutput(decode_int(key, len(prefix))[0], *codec.unpack_output(value)))
    return found
