"""What tasks printed: the end of each attempt's output, kept as long as its future."""

from __future__ import annotations

import contextlib
from uuid import UUID

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
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
    """Keep what an attempt has printed so far, instead of what was kept of it; False if the future isn't there.

    The session that submitted it is mailed ("output"), if it hears of output (`beat_session`).
    """
    ch = Changes(tr, space)
    keys = ch.keys
    e = encode_id(as_id(future_id))
    code = tr.get(keys.future(e, CODE)).value
    if code is None:
        return False
    with contextlib.suppress(RecordError):  # nobody is told where it can't be read whom to tell
        session = codec.unpack_code(code)[0]
        row = tr.snapshot.get(keys.session(session)).value
        if row is not None and codec.hears_output(row):
            ch.send(session, as_id(future_id), "output", None)
    tr.set(keys.log(e, output.attempt), codec.pack((output.data[-OUTPUT_KEPT:], output.size)))
    if output.attempt > ATTEMPTS_KEPT:
        tr.clear_range(keys.logs + e, keys.log(e, output.attempt - ATTEMPTS_KEPT + 1))
    ch.flush()
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
