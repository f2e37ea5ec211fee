"""Schedules: futures that are submitted again and again, each occurrence once.

When an occurrence is, is for the caller to say (`next_of` of a cron expression needs a wall clock, and a time zone); what is kept
here is which occurrence is next, its `nominal` time, and when on the cluster clock it is due. Whoever finds it due submits what
the nominal time says, in the transaction that moves the schedule on to the next one: two who try find that one has.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from fdb_datamodel.errors import OversizeError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import id_for_key
from fdb_datamodel.rows.records import NO_SESSION, CodeDigest, FutureSpec
from fdb_datamodel.rows.requirements import Requirements
from fdb_datamodel.rows.space import layout_of, span
from fdb_datamodel.transitions.submit import put_code, refer_to_code, submit_futures
from fdb_schema import ClusterSpace, RecordError, Transaction, add_reference, collect_blob, drop_reference, read_range

MOST_ARGS: Final = 60_000  # bytes of a schedule's arguments
_REFERRER: Final = b"schedule:"
_PAGE: Final = 100  # rows of due times that are read at once


class Schedule(NamedTuple):
    """One schedule. when: a cron expression, or seconds as text; zone: of its wall time. nominal: of the next occurrence, in µs
    (of wall time for cron, else of the cluster clock); due_us: when that is, by the cluster clock. last: the id of the latest
    occurrence's future, b"" before the first. made: how many were submitted. wall_us: when it was made."""

    name: str
    when: str
    zone: str
    missed: str
    overlap: bool
    nominal: int
    due_us: int
    last: bytes
    made: int
    function: str
    wall_us: int


def put_schedule(
    tr: Transaction,
    space: ClusterSpace,
    name: str,
    when: str,
    spec: FutureSpec,
    *,
    zone: str = "",
    missed: str = "one",
    overlap: bool = True,
    nominal: int,
    due_us: int,
) -> frozenset[str]:
    """Make a schedule, or replace that of the name: what `spec` says, from `nominal` on. Again: the same.

    One that has the same times goes on from where it was: whoever starts makes its schedules anew, and starts oftener than they
    are due. Of one that is replaced is told what it had otherwise: "function", "arguments", "times". Raises OversizeError for arguments over 60 kB, or code over about 720 kB.
    """
    if len(spec.args) > MOST_ARGS:
        raise OversizeError(
            f"the arguments of schedule {name!r} have {len(spec.args):,} bytes, {MOST_ARGS:,} are possible: pass a key, or a "
            f"path, by which each occurrence finds them"
        )
    ch = Changes(tr, space)
    digest = spec.code if isinstance(spec.code, CodeDigest) else put_code(tr, space, spec.code)
    before = _forget(ch, name, keeping=bytes(digest))
    last, made, wall_us = b"", 0, ch.wall_us
    if before is not None:
        last, made = before[6], before[7]
        if before[:2] == (when, zone):
            nominal, due_us, wall_us = before[4], before[5], before[14]
    add_reference(tr, space, bytes(digest), _REFERRER + name.encode())
    shape = spec.requirements.shape if spec.requirements else (0, 0, 0)
    requirements = codec.pack_requirements(shape, spec.priority, None)
    fields = (
        when, zone, missed, overlap, nominal, due_us, last, made, bytes(digest), spec.args, requirements, codec.pack_options(codec.options_of(spec)),
        spec.max_retries, spec.allow_reconstruction, wall_us,
    )  # fmt: skip
    ch.set(ch.keys.schedule(name), codec.pack(fields))
    ch.set(ch.keys.schedule_due(due_us, name), b"")
    ch.flush()
    if before is None:
        return frozenset()
    same = {
        "function": before[8] == bytes(digest),
        "arguments": before[9] == spec.args,
        "times": before[:2] == (when, zone),
    }
    return frozenset(what for what, is_same in same.items() if not is_same)


def delete_schedule(tr: Transaction, space: ClusterSpace, name: str) -> bool:
    """Submit nothing of it any more; whether there was one. What was submitted stays."""
    ch = Changes(tr, space)
    there = ch.get_many([ch.keys.schedule(name)])[0] is not None
    _forget(ch, name)
    ch.flush()
    return there


def next_due(tr: Transaction, space: ClusterSpace) -> int | None:
    """When the next occurrence of any schedule is due, by snapshot; None: there is none."""
    end = span(_due_prefix(space))[1]
    return next((due for due, _ in _walk_due(tr, space, end)), None)


def due_schedules(tr: Transaction, space: ClusterSpace, now_us: int, limit: int = 50) -> list[tuple[int, str]]:
    """(due µs, name) of those of which an occurrence is due, by snapshot."""
    end = layout_of(space).schedule_due(now_us + 1, "")
    return list(itertools.islice(_walk_due(tr, space, end), limit))


def _walk_due(tr: Transaction, space: ClusterSpace, end: bytes) -> Iterator[tuple[int, str]]:
    """(due µs, name) of what is due before a key, by snapshot. What no release wrote is stepped over."""
    keys, begin = layout_of(space), _due_prefix(space)
    while rows := read_range(tr, begin, end, limit=_PAGE, snapshot=True):
        for key, _ in rows:
            if is_known(keys, "schedules", key):
                _, due, name = space["schedules"].unpack(key)
                yield int(due), str(name)
        begin = rows[-1][0] + b"\x00"


def set_schedule_aside(tr: Transaction, space: ClusterSpace, due_us: int, name: str) -> None:
    """It can't be read, or there is none: it is due no more, and in nobody's way."""
    ch = Changes(tr, space)
    ch.clear(ch.keys.schedule_due(due_us, name))
    ch.flush()


def read_schedule(tr: Transaction, space: ClusterSpace, name: str) -> Schedule | None:
    """The schedule of a name. Raises RecordError."""
    row = Changes(tr, space).get_many([layout_of(space).schedule(name)])[0]
    return None if row is None else _schedule(name, row)


def list_schedules(tr: Transaction, space: ClusterSpace, after: str = "", limit: int = 200) -> list[Schedule]:
    """A page of schedules in the order of their names, from beyond `after`. By snapshot; what can't be read is left out."""
    keys = layout_of(space)
    begin, end = span(keys.schedules + keys.schedule("")[len(keys.schedules) : -2])
    if after:
        begin = keys.schedule(after) + b"\x00"
    rows = read_range(tr, begin, end, limit=limit, snapshot=True)
    found: list[Schedule] = []
    for key, value in rows:
        with contextlib.suppress(RecordError):  # `validate` names it
            found.append(_schedule(str(space["schedules"].unpack(key)[1]), value))
    return found


def fire_schedule(
    tr: Transaction, space: ClusterSpace, seen: Schedule, occurrences: Sequence[int], nominal: int, due_us: int
) -> list[bytes]:
    """Submit occurrences of a schedule by their nominal times, and move it on to the next one; the futures' ids, in order.

    [] and nothing is changed where it isn't as it was `seen`: somebody else did this, or it was replaced.
    """
    ch = Changes(tr, space)
    row = ch.get_many([ch.keys.schedule(seen.name)])[0]
    if row is None or _schedule(seen.name, row)[:7] != seen[:7]:
        return []
    fields: list[Any] = list(codec.unpack_schedule(row))
    specs = [_occurrence(space, seen, row, one) for one in occurrences]
    if specs:
        refer_to_code(tr, space, fields[8])
        submit_futures(tr, space, specs)
    last = specs[-1].id if specs else fields[6]
    fields[4:8] = [nominal, due_us, last, seen.made + len(specs)]
    ch.set(ch.keys.schedule(seen.name), codec.pack(tuple(fields)))
    ch.clear(ch.keys.schedule_due(seen.due_us, seen.name))
    ch.set(ch.keys.schedule_due(due_us, seen.name), b"")
    ch.flush()
    return [spec.id for spec in specs]


def _occurrence(space: ClusterSpace, seen: Schedule, row: bytes, nominal: int) -> FutureSpec:
    fields = codec.unpack_schedule(row)
    _, _, _, _, _, _, _, _, code, args, requirements, options, max_retries, allow_reconstruction, wall_us = fields
    spec = FutureSpec(CodeDigest(code), args, session=NO_SESSION)
    spec.id = id_for_key(space.cluster, f"schedule/{seen.name}/{wall_us}/{nominal}")
    codec.set_options(spec, codec.unpack_options(options))
    shape, spec.priority, _ = codec.unpack_requirements(requirements)
    spec.requirements = Requirements.from_shape(shape) if any(shape) else None
    spec.max_retries, spec.allow_reconstruction = max_retries, allow_reconstruction
    return spec


def _schedule(name: str, row: bytes) -> Schedule:
    when, zone, missed, overlap, nominal, due_us, last, made, _, _, _, options, _, _, wall_us = codec.unpack_schedule(
        row
    )
    function = str(codec.option(codec.unpack_options(options), "name"))
    return Schedule(name, when, zone, missed, overlap, nominal, due_us, last, made, function, wall_us)


def _forget(ch: Changes, name: str, keeping: bytes = b"") -> tuple[Any, ...] | None:
    """Clear the rows of a schedule; what it was. None: there was none, or none that can be read, whose code stays."""
    row = ch.get_many([ch.keys.schedule(name)])[0]
    if row is None:
        return None
    ch.clear(ch.keys.schedule(name))
    try:
        fields: tuple[Any, ...] = tuple(codec.unpack_schedule(row))
    except RecordError:
        for due, other in _walk_due(ch.tr, ch.keys.space, span(_due_prefix(ch.keys.space))[1]):
            if other == name:
                ch.clear(ch.keys.schedule_due(due, name))
        ch.flush()
        return None
    ch.clear(ch.keys.schedule_due(fields[5], name))
    ch.flush()
    if fields[8] != keeping:
        drop_reference(ch.tr, ch.keys.space, fields[8], _REFERRER + name.encode())
        collect_blob(ch.tr, ch.keys.space, fields[8])
    return fields


def _due_prefix(space: ClusterSpace) -> bytes:
    keys = layout_of(space)
    return keys.schedules + b"\x02due\x00"
