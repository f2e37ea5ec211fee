"""Mutations of a transaction: into its overlay, with the conflict ranges they leave.

They never raise: as in the C client, their first error is kept for the next read or commit.
"""

from __future__ import annotations

import bisect
import contextlib

from .. import errors
from ..errors import Code
from ..pure import atomics, idempotency
from ..pure.keys import KEY_LIMIT, READ_KEY_LIMIT, clipped, key_limit
from ..pure.overlay import Stack
from ..pure.ranges import Range, merge_ranges
from ..pure.write_map import CONFLICT_COST, MUTATION_COST
from . import client_view, special_keys
from .read_version import lowest_stamp
from .state import METADATA_OPERAND, METADATA_VERSION, SET_COST, VALUE_LIMIT, TransactionState


def add_write_conflict_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    if tr.deferred:
        return
    if tr.committing:
        tr.used_during_commit()
        tr.defer(errors.USED_DURING_COMMIT)
        return
    edge = b"\xff\xff" if tr.options.write_system else b"\xff"
    if begin > edge or end > edge:
        tr.defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
        return
    begin, end = clipped(begin), clipped(end)
    if begin >= end:
        return
    tr.approximate += len(begin) + len(end) + CONFLICT_COST
    if tr.history is None:
        tr.cut = True
    else:
        tr.history.append(lambda map: map.add_conflict(begin, end))
    _insert_write_range(tr, begin, end)


def _insert_write_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    if begin >= end:
        return
    if len(end) == len(begin) + 1 and end[-1] == 0 and end.startswith(begin):
        points = tr.write_points
        if points is None:
            points = tr.own("write_points", set())
        points.add(begin)
    else:
        tr.write_ranges.append((begin, end))


def _may_write(tr: TransactionState, key: bytes, key_limit_applies: bool = True) -> bool:
    """Whether a mutation of `key` goes on; otherwise its error is deferred."""
    if tr.committing:
        tr.used_during_commit()
        tr.defer(errors.USED_DURING_COMMIT)
        return False
    if tr.deferred:
        return False
    if key >= (b"\xff\xff" if tr.options.write_system else b"\xff"):
        tr.defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
        return False
    if key_limit_applies and len(key) > KEY_LIMIT and len(key) > _write_key_limit(tr, key):
        tr.defer(errors.KEY_TOO_LARGE)
        return False
    return True


def _write_key_limit(tr: TransactionState, key: bytes) -> int:
    return key_limit(key) if key.startswith(b"\xff") or tr.options.raw_access else KEY_LIMIT


def _conflict_flag(tr: TransactionState, key: bytes) -> None:
    """Record whether the write of `key` that follows conflicts."""
    if tr.no_write_conflict:
        tr.no_write_conflict = False
        if key not in tr.writes or (tr.unconflicted is not None and key in tr.unconflicted):
            if tr.unconflicted is None:
                tr.own("unconflicted", set[bytes]())
            tr.unconflicted.add(key)  # type: ignore[union-attr]
    elif tr.unconflicted is not None:
        tr.unconflicted.discard(key)


def set_value(tr: TransactionState, key: bytes, value: bytes) -> None:
    """Set a key."""
    if tr.plain and key < b"\xff" and len(key) <= KEY_LIMIT and len(value) <= VALUE_LIMIT:
        tr.approximate += 3 * len(key) + len(value) + SET_COST
        tr.writes[key] = value
    else:
        _set(tr, key, value)


def _set(tr: TransactionState, key: bytes, value: bytes) -> None:
    if special_keys.BEGIN <= key < special_keys.END:
        special_keys.set(tr, key, value)
        return
    if key == METADATA_VERSION:
        tr.defer(errors.CLIENT_INVALID_OPERATION)
        return
    if not _may_write(tr, key):
        return
    if len(value) > VALUE_LIMIT:
        tr.defer(errors.VALUE_TOO_LARGE)
        return
    _count_write(tr, key, key, value, atomics.SET)
    _conflict_flag(tr, key)
    overlay = tr.overlay
    entry = overlay.writes.get(key)
    if isinstance(entry, Stack) and entry.unreadable:
        entry.push(atomics.SET, value)
    else:
        overlay.writes[key] = value
    _trigger_watches(tr, key, key + b"\0", value, known=True)


def set_many(tr: TransactionState, items: list[tuple[bytes, bytes]]) -> None:
    """Set many keys at once."""
    if not items:
        return
    batch = dict(items)
    keys = batch if len(batch) == len(items) else [key for key, _ in items]
    values = batch.values() if len(batch) == len(items) else [value for _, value in items]
    fits = tr.plain and max(batch) < b"\xff" and max(map(len, batch)) <= KEY_LIMIT
    if fits and max(map(len, batch.values())) <= VALUE_LIMIT:
        tr.approximate += 3 * sum(map(len, keys)) + sum(map(len, values)) + SET_COST * len(items)
        tr.writes.update(batch)
        return
    for key, value in items:
        set_value(tr, key, value)


def clear(tr: TransactionState, key: bytes) -> None:
    """Clear a key."""
    if tr.plain and key < b"\xff" and len(key) <= KEY_LIMIT:
        tr.approximate += 4 * len(key) + 2 + 2 * CONFLICT_COST
        tr.writes[key] = None
    else:
        _clear(tr, key)


def _clear(tr: TransactionState, key: bytes) -> None:
    if special_keys.BEGIN <= key < special_keys.END and not tr.committing:
        special_keys.clear(tr, key, key + b"\0")
        return
    if not _may_write(tr, key, key_limit_applies=False):
        return
    if len(key) > READ_KEY_LIMIT and len(key) > key_limit(key):
        tr.no_write_conflict = False
        return
    quiet = tr.no_write_conflict
    size = 2 * len(key) + 1
    if tr.options.ryw_disabled:
        tr.uncounted += size + MUTATION_COST + (0 if quiet else size + CONFLICT_COST)
    else:
        tr.approximate += size + CONFLICT_COST + (0 if quiet else size + CONFLICT_COST)
    if tr.history is not None:
        tr.history.append(lambda map: map.clear(key, key + b"\0", not quiet))
    _conflict_flag(tr, key)
    overlay = tr.overlay
    overlay.uncover(key, key + b"\0")
    overlay.writes[key] = None
    _trigger_watches(tr, key, key + b"\0", None, known=True)


def clear_many(tr: TransactionState, keys: list[bytes]) -> None:
    """Clear many keys at once."""
    if keys and tr.plain and max(keys) < b"\xff" and max(map(len, keys)) <= KEY_LIMIT:
        tr.approximate += 4 * sum(map(len, keys)) + (2 + 2 * CONFLICT_COST) * len(keys)
        tr.writes.update(dict.fromkeys(keys))
        return
    for key in keys:
        clear(tr, key)


def clear_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    """Clear [begin, end)."""
    if tr.deferred:
        return
    if begin > end:
        tr.defer(errors.INVERTED_RANGE)
        return
    quiet, tr.no_write_conflict = tr.no_write_conflict, False
    if tr.committing:
        tr.used_during_commit()
        tr.defer(errors.USED_DURING_COMMIT)
        return
    if begin >= special_keys.BEGIN and end <= special_keys.END:
        special_keys.clear(tr, begin, end)
        return
    edge = b"\xff\xff" if tr.options.write_system else b"\xff"
    if begin > edge or end > edge:
        tr.defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
        return
    conflicts = not quiet
    size = len(begin) + len(end)
    tr.approximate += size + MUTATION_COST + (size + CONFLICT_COST if conflicts else 0)
    begin, end = clipped(begin), clipped(end)
    if begin >= end:
        return
    if tr.history is not None:
        tr.history.append(lambda map: map.clear(begin, end, conflicts))
    gone = tr.overlay.clear_range(begin, end)
    if conflicts:
        tr.write_ranges.append((begin, end))
    else:
        (tr.unconflicted_clears or tr.own("unconflicted_clears", list[Range]())).append((begin, end))
    for key in gone:
        if tr.unconflicted is not None and key in tr.unconflicted:
            tr.unconflicted.discard(key)
        elif not conflicts:
            _insert_write_range(tr, key, key + b"\0")
    if tr.promises is not None:
        _trigger_watches(tr, begin, end, None, known=True)


def atomic(tr: TransactionState, operation: int, key: bytes, operand: bytes) -> None:
    """An atomic operation."""
    if key == METADATA_VERSION and not tr.committing and not tr.deferred:
        if operation != atomics.SET_VERSIONSTAMPED_VALUE or operand != METADATA_OPERAND:
            tr.defer(errors.CLIENT_INVALID_OPERATION)
            return
        _atomic(tr, operation, key, operand)
        return
    if not _may_write(tr, key, key_limit_applies=False):
        return
    if operation not in atomics.KNOWN:
        tr.defer(errors.INVALID_MUTATION_TYPE)
        return
    if not _may_write(tr, key):
        return
    if len(operand) > VALUE_LIMIT:
        tr.defer(errors.VALUE_TOO_LARGE)
        return
    if tr.database.api_version >= 510:
        if operation == atomics.MIN:
            operation = atomics.MIN_V2
        elif operation == atomics.AND:
            operation = atomics.AND_V2
    try:
        if operation == atomics.SET_VERSIONSTAMPED_KEY:
            if tr.database.api_version < 520:
                key += b"\0\0"
            _set_stamped_key(tr, key, operand)
            return
        if operation == atomics.SET_VERSIONSTAMPED_VALUE:
            if tr.database.api_version < 520:
                operand += b"\0\0\0\0"
            atomics.stamp_offset(operand)
    except Code as error:
        tr.defer(error.code)
        return
    _atomic(tr, operation, key, operand)


def _atomic(tr: TransactionState, operation: int, key: bytes, operand: bytes) -> None:
    if operation == atomics.SET_VERSIONSTAMPED_VALUE or operation == atomics.COMPARE_AND_CLEAR:
        client_view.noted(tr)
        tr.overlay.hide(key, key + b"\0")
    _count_write(tr, key, key, operand, operation)
    _conflict_flag(tr, key)
    _stack(tr, key, operation, operand)


def _count_write(tr: TransactionState, key: bytes, named: bytes, operand: bytes, operation: int) -> None:
    """Count a set or an atomic operation, and note it where reads depend on it; `named` is the key that conflicts."""
    conflicts = not tr.no_write_conflict and operation != atomics.SET_VERSIONSTAMPED_KEY
    tr.approximate += len(key) + len(operand) + MUTATION_COST
    if conflicts:
        tr.approximate += 2 * len(named) + 1 + CONFLICT_COST
    if tr.history is not None:
        tr.history.append(lambda map: map.mutate(key, operation, operand, conflicts))


def _stack(tr: TransactionState, key: bytes, operation: int, operand: bytes) -> None:
    overlay = tr.overlay
    entry = overlay.writes.get(key, overlay)
    if isinstance(entry, Stack):
        entry.push(operation, operand)
    elif operation == atomics.SET_VERSIONSTAMPED_VALUE or (entry is overlay and not overlay.cleared(key)):
        stack = Stack(depends=entry is overlay and not overlay.cleared(key))
        if isinstance(entry, bytes):
            stack.push(atomics.SET, entry)
        stack.push(operation, operand)
        overlay.writes[key] = stack
        tr.plain = False
    else:
        overlay.writes[key] = atomics.apply(operation, entry if isinstance(entry, bytes) else None, operand)
    _trigger_watches(tr, key, key + b"\0", None, known=False)


def _set_stamped_key(tr: TransactionState, key: bytes, value: bytes) -> None:
    at = atomics.stamp_offset(key)
    tr.no_write_conflict = False
    body = key[:-4]
    low = body[:at] + lowest_stamp(tr) + body[at + 10 :]
    high = min(body[:at] + b"\xff" * 10 + body[at + 10 :] + b"\0", tr.limit_key())
    anchor = low + key[-4:]
    history = client_view.noted(tr)
    tr.overlay.hide(low, max(high, anchor + b"\0"))
    if low < high:
        history.append(lambda map: map.hide(low, high))
    _count_write(tr, anchor, key, value, atomics.SET_VERSIONSTAMPED_KEY)
    item = (anchor, key, value)
    if tr.options.ryw_disabled:
        tr.overlay.send(item)
    else:
        tr.overlay.stamp(item, low, high)
    (tr.stamped_parameters or tr.own("stamped_parameters", list[bytes]())).append(key)
    tr.plain = False


def _trigger_watches(tr: TransactionState, begin: bytes, end: bytes, value: bytes | None, known: bool) -> None:
    """A later write of this same transaction ends a watch at once when it is known to change the value."""
    promises = tr.promises
    if promises is None or not known:
        return
    for watch in promises.watches.copy():
        if begin <= watch.key < end and watch.expected != value:
            watch.set()
            with contextlib.suppress(ValueError):  # the commit, or another thread, has taken it
                promises.watches.remove(watch)


def writes_ids(tr: TransactionState) -> bool:
    """Whether the transaction changes the rows of idempotency ids."""
    return any(key.startswith(idempotency.IDS) for key in list(tr.writes)) or any(
        begin < idempotency.IDS_END and end > idempotency.IDS for begin, end in tr.overlay.clears.copy()
    )


def is_read_only(tr: TransactionState) -> bool:
    return not (tr.overlay.writes or tr.overlay.clears or tr.overlay.stamped or tr.write_ranges or tr.write_points)


def size(tr: TransactionState) -> int:
    """Bytes of the commit's mutations and conflict ranges, as they count against the limit."""
    if tr.options.ryw_disabled:
        return tr.approximate + tr.uncounted
    reads = [(key, key + b"\0") for key in list(tr.read_points or ())]
    total = 0
    for begin, end in merge_ranges([*tr.read_ranges, *reads]):
        total += len(clipped(begin)) + len(clipped(end)) + CONFLICT_COST
    if tr.history is not None:
        return total + client_view.size_of_writes(tr)
    overlay = tr.overlay
    writes = overlay.writes.copy()  # another thread may be writing
    gone: list[Range] = overlay.clears.copy()
    for key, entry in writes.items():
        if entry is None:
            gone.append((key, key + b"\0"))
        elif isinstance(entry, Stack):
            total += sum(len(key) + len(operand) + MUTATION_COST for operand in entry.operands())
        else:
            total += len(key) + len(entry) + MUTATION_COST
    total += _size_of_clears(gone, sorted(key for key, entry in writes.items() if entry is not None))
    points = [(key, key + b"\0") for key in tr.written_points(writes)]
    ranges = merge_ranges([*tr.write_ranges, *points])
    return total + sum(len(begin) + len(end) + CONFLICT_COST for begin, end in ranges)


def _size_of_clears(gone: list[Range], kept: list[bytes]) -> int:
    """Bytes of the mutations that clear `gone`, but for the keys in `kept` (in order), which are written."""
    total = 0
    for begin, end in merge_ranges(gone):
        at = begin
        for key in kept[bisect.bisect_left(kept, begin) : bisect.bisect_left(kept, end)]:
            if at < key:  # it is cleared up to what is written, and from there
                total += len(at) + len(key) + MUTATION_COST
            at = key + b"\0"
        if at < end:
            total += len(at) + len(end) + MUTATION_COST
    return total
