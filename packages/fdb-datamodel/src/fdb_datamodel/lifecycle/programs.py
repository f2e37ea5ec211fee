"""Programs that are away: how they leave and come back, and when their attempts are forgiven.

A program is a future whose requests are recorded (`fdb_datamodel.programs`). While it waits for longer than a moment it has no
process: its claim is given up, and it is Waiting on a timer, on ends of futures, on an event, or on some of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdb_datamodel.errors import FutureStateError
from fdb_datamodel.lifecycle.endings import fail_for_good, place
from fdb_datamodel.lifecycle.placement import release_claim
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.away import Away
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure
from fdb_datamodel.rows.space import (
    AWAY,
    CODE,
    DUE,
    EPOCH,
    FAILURE,
    LATEST_RESULT,
    LISTENERS,
    UNCHARGED,
    number_in,
)
from fdb_datamodel.rows.states import FutureState
from fdb_schema import read_range


def leave_program(ch: Changes, f: FutureRows, away: Away) -> FutureState:
    """A Claimed program waits without a process (row `leave_program`); claimable again at once where that is over already.

    What it waits for is read serializably, so that of this and the end, or the event, one sees the other. It came further
    than any attempt before: none of those is charged.
    """
    if not f.option("durable"):
        fail_for_good(
            ch, f, Failure("error", f"future {show_id(f.id)} left, and it is no program: submit it with durable=True")
        )
        return FutureState.failed
    ch.put(f, UNCHARGED, codec.pack((0, 0, f.attempts - f.attempts_before_epoch, f.never_begun)))
    release_claim(ch, f)
    if is_cancelled(ch, f, untold=True) or _is_over(ch, f, away):
        place(ch, f)
        return FutureState.failed if f.failed else FutureState.unclaimed
    ch.put(f, AWAY, codec.pack_away(away.kind, away.name))
    if away.due_us is not None:
        ch.set(ch.keys.timer(away.due_us, f.e, "backoff"), b"")
        ch.put(f, DUE, codec.pack(away.due_us))
    return FutureState.waiting


def _is_over(ch: Changes, f: FutureRows, away: Away) -> bool:
    """Whether what a program waits for is there already; else it is told when futures end."""
    if away.kind == "event":
        events = ch.keys.program_events(f.e, away.name)
        return bool(ch.read(events, events + b"\xff", limit=1))
    return away.kind == "futures" and not _await_ends(ch, f, away.ids, until=away.until)


def _await_ends(ch: Changes, f: FutureRows, ids: Sequence[bytes], *, until: str) -> bool:
    """Have a program told when futures end; False, and nothing is written, where it needs wait no more (`Away`).

    A future that isn't there, or was deleted, has failed.
    """
    names = (CODE, FAILURE, LATEST_RESULT, EPOCH)
    waited: list[tuple[bytes, int]] = []
    for one in dict.fromkeys(ids):
        e = encode_id(one)
        code, failure, result, epoch = ch.get_many([ch.keys.future(e, name) for name in names])
        failed = code is None or failure is not None
        if not failed and result is None:
            waited.append((e, 0 if epoch is None else codec.unpack_ints(epoch, 2)[0]))
        elif until == "first" or (failed and until == "failure"):
            return False
    for e, epoch_now in waited:
        asked = codec.pack_wake(epoch_now, until)
        ch.set(ch.keys.dependency(f.e, e), asked)
        ch.set(ch.keys.wake(e, f.e), asked)
        ch.set(ch.keys.future(e, LISTENERS), b"")
    return bool(waited)


def is_cancelled(ch: Changes, f: FutureRows, *, untold: bool = False) -> bool:
    """Whether a program is to end, in this epoch; `untold`: and its body doesn't know yet."""
    row = ch.get_many([ch.keys.program_row(f.e, "cancel")])[0]
    if row is None:
        return False
    epoch, told = codec.unpack_ints(row, 2)[:2]
    return epoch == f.epoch and not (untold and told)


def requests_made(ch: Changes, e: bytes) -> int:
    """How many requests of a program are recorded."""
    return 1 + number_in(last[0]) if (last := _last_request(ch, e)) else 0


def _last_request(ch: Changes, e: bytes) -> tuple[bytes, bytes] | None:
    """The row of the latest request, read serializably."""
    return next(iter(read_range(ch.tr, *ch.keys.program_requests(e), limit=1, reverse=True)), None)


def has_come_further(ch: Changes, f: FutureRows) -> bool:
    """Whether a program has recorded more requests than when an attempt was charged last; told once."""
    made, key = requests_made(ch, f.e), ch.keys.program_row(f.e, "charged")
    before = ch.get_many([key])[0]
    if made <= (0 if before is None else codec.unpack_int(before)):
        return False
    ch.set(key, codec.pack(made))
    return True


def prepare_again(ch: Changes, f: FutureRows) -> None:
    """A program that failed is to run again: the last thing that it asked for, if that was an error, is asked for anew.

    Raises FutureStateError for one that was told that it is cancelled.
    """
    cancel = ch.get_many([ch.keys.program_row(f.e, "cancel")])[0]
    if cancel is not None and codec.unpack_ints(cancel, 2)[1]:
        raise FutureStateError(
            f"program {show_id(f.id)} was told that it is cancelled, and may have undone what it did: submit it anew"
        )
    last = _last_request(ch, f.e)
    if last is None:
        return
    _, _, _, _, error, _, _, parts = codec.unpack_request(last[1])
    if error:
        ch.clear(last[0])
        for part in range(parts):
            ch.clear(ch.keys.program_value(f.e, number_in(last[0]), part))


def forget_program(ch: Changes, f: FutureRows) -> None:
    """Delete all that is recorded of a program."""
    if f.option("durable"):
        ch.clear(ch.keys.program(f.e))
        ch.flush_rows()
        ch.tr.clear_range(ch.keys.programs + f.e, ch.keys.programs + f.e + b"\xff")
