"""How each value is stored: msgpack arrays whose first fields never move, written and read without intermediate objects.

Readers take nothing that isn't of the type their field has, and raise `RecordError` for it and nothing else: a damaged row is
noticed where it is read, and harms the future it belongs to (`fdb_datamodel.quarantine`).

`token` is the first field of `claim` and `latest_result`, so that "this result is of this claim" is a comparison of
twelve bytes (`same_token`). Readers take fields by position, give absent trailing ones their default and ignore more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from operator import attrgetter
from typing import Any, TypeVar

import msgpack

from fdb_datamodel.rows.records import (
    Backoff,
    CodeDigest,
    Failure,
    FutureResult,
    FutureSpec,
    Heartbeat,
    Locality,
    WorkerId,
    WorkerInfo,
)
from fdb_datamodel.rows.requirements import Named, Requirements, Shape, shape_of
from fdb_schema import RecordError

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack


_T = TypeVar("_T")
_V = TypeVar("_V", bytes, bytes | None)
_WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, msgpack.UnpackException)


def unpack(value: bytes) -> Any:
    """Any value, with tuples for arrays. Raises `RecordError`."""
    try:
        return msgpack.unpackb(value, use_list=False, raw=False)
    except _WRONG as error:
        raise _damaged("msgpack", value, error) from error


def unpack_int(value: bytes) -> int:
    """Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not int:
        raise _damaged("a number", value, f"it holds {type(found).__name__}")
    return found


def unpack_bytes(value: bytes) -> bytes:
    """Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not bytes:
        raise _damaged("bytes", value, f"it holds {type(found).__name__}")
    return found


def unpack_ints(value: bytes, count: int) -> tuple[int, ...]:
    """At least `count` numbers. Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not tuple or len(found) < count or any(type(one) is not int for one in found):
        raise _damaged(f"{count} numbers", value, f"it holds {found!r:.60}")
    return found


def _damaged(what: str, value: bytes | None, error: object) -> RecordError:
    return RecordError(f"{len(value or b'')} bytes aren't {what} ({error}): {(value or b'')[:40]!r}")


def _reader(what: str) -> Callable[[Callable[[_V], _T]], Callable[[_V], _T]]:
    """Of a function that reads `what` from a row: it raises `RecordError` for anything else."""

    def wrap(function: Callable[[_V], _T]) -> Callable[[_V], _T]:
        @wraps(function)
        def read(value: _V) -> _T:
            try:
                return function(value)
            except RecordError:
                raise
            except _WRONG as error:
                raise _damaged(what, value, error) from error

        return read

    return wrap


def _typed(fields: Any, *types: tuple[type, ...]) -> None:
    """Raises TypeError unless the first fields have these types; later ones may be absent."""
    if type(fields) is not tuple:
        raise TypeError(f"it holds {type(fields).__name__}, not fields")
    found = (types, *map(type, fields[: len(types)]))
    if found in _fitting:
        return
    for at, (field, wanted) in enumerate(zip(fields, types, strict=False)):
        if type(field) not in wanted:
            raise TypeError(f"field {at} is {field!r:.60}")
    if len(_fitting) < _MOST_FITTING:
        _fitting.add(found)


_fitting: set[tuple[Any, ...]] = set()  # what was found to fit: nearly all rows of a kind have fields of the same types
_MOST_FITTING = 4096

_BYTES, _STR, _INT, _BOOL, _TUPLE = (bytes,), (str,), (int,), (bool,), (tuple,)
_NONE = type(None)
_MAYBE_BYTES, _MAYBE_INT, _MAYBE_TUPLE = (bytes, _NONE), (int, _NONE), (tuple, _NONE)
_NUMBER = (int, float, _NONE)
_MOST_AMOUNT = 1 << 60  # of a resource: what `Requirements` takes
_MOST_SECONDS = 1e12  # in µs of the cluster clock a number of eight bytes


def _bounded(name: str, number: int | float) -> None:
    """Raises ValueError for seconds that no timer can count: what is no number, or without end."""
    if not -_MOST_SECONDS < number < _MOST_SECONDS:
        raise ValueError(f"{name} is {number!r:.60}")


def _ids(found: Any) -> tuple[bytes, ...]:
    if type(found) is not tuple or any(type(one) is not bytes or len(one) != 16 for one in found):
        raise TypeError("its dependencies aren't ids")
    return found


def _at(fields: tuple[Any, ...], index: int, default: Any) -> Any:
    return fields[index] if index < len(fields) else default


def same_token(one: bytes, other: bytes) -> bool:
    """Whether two stored records (of fewer than 16 fields, token first) carry the same token."""
    return one[1:13] == other[1:13]


# --- workers


def pack_worker(worker: WorkerId | None) -> bytes:
    return pack(None) if worker is None else pack((worker.ip, worker.port, worker.incarnation))


def worker_from(fields: tuple[Any, ...] | None) -> WorkerId | None:
    if fields is None:
        return None
    _typed(fields, _STR, _INT, _BYTES)
    return _worker(fields[:3])


@lru_cache(maxsize=1024)
def _worker(fields: tuple[str, int, bytes]) -> WorkerId:
    """One object for each: whoever holds a million results holds few workers."""
    return WorkerId(*fields)


def pack_worker_info(incarnation: bytes, info: WorkerInfo) -> bytes:
    return pack(
        (
            incarnation,
            info.slots,
            info.total.shape,
            info.object_store,
            info.pid,
            info.boot_id,
            info.host,
            info.wall_us,
            info.pid_start,
        )
    )


@_reader("what a worker says of itself")
def unpack_worker_info(value: bytes) -> tuple[bytes, WorkerInfo]:
    f = unpack(value)
    _typed(f, _BYTES, _INT, _TUPLE, _INT, _INT, _STR, _STR, _INT, _INT)
    total = _total(_at(f, 2, (0, 0, 0)))
    info = WorkerInfo(
        _at(f, 1, 1), total, _at(f, 3, 0), _at(f, 4, 0), _at(f, 5, ""), _at(f, 6, ""), _at(f, 7, 0), _at(f, 8, 0)
    )
    return f[0], info


def incarnation_of(value: bytes | None) -> bytes | None:
    """The incarnation of a stored worker row, without decoding the rest (it is the first field, 16 bytes)."""
    return None if value is None else value[3:19]


def pack_heartbeat(beat: Heartbeat) -> bytes:
    return pack(
        (
            beat.counter,
            beat.started_at_us,
            beat.slots,
            beat.total.shape,
            beat.free_slots,
            beat.free.shape,
            beat.object_store,
            beat.object_store_free,
            beat.wall_us,
            None if beat.cpu_used is None else round(beat.cpu_used * 1000),
            beat.memory_used,
        )
    )


@_reader("a heartbeat")
def unpack_heartbeat(value: bytes) -> Heartbeat:
    f = unpack(value)
    _typed(f, _INT, _INT, _INT, _TUPLE, _INT, _TUPLE, _INT, _INT, _INT, _MAYBE_INT, _MAYBE_INT)
    cpu = _at(f, 9, None)
    return Heartbeat(
        f[0],
        _at(f, 1, 0),
        _at(f, 2, 1),
        _total(_at(f, 3, (0, 0, 0))),
        _at(f, 4, 0),
        _total(_at(f, 5, (0, 0, 0))),
        _at(f, 6, 0),
        _at(f, 7, 0),
        _at(f, 8, 0),
        None if cpu is None else cpu / 1000,
        _at(f, 10, None),
    )


@_reader("a session")
def unpack_session(value: bytes) -> tuple[int, int, str, int]:
    """(counter, wall_us, host, pid)."""
    f = unpack(value)
    _typed(f, _INT, _INT, _STR, _INT)
    return f[0], f[1], f[2], f[3]


def pack_session(
    counter: int, wall_us: int, host: str, pid: int, hears: bool, place: str = "", pid_start: int = 0
) -> bytes:
    """`hears`: whether it is mailed when its futures' tasks have printed something. `place`, `pid_start`: as of `SessionSighting`."""
    return pack((counter, wall_us, host, pid, hears, place, pid_start))


@_reader("a session")
def process_of_session(value: bytes) -> tuple[str, int]:
    """(place, pid_start): where its process id means that process; ("", 0) where it doesn't say."""
    f = unpack(value)
    place, start = _at(f, 5, ""), _at(f, 6, 0)
    if type(place) is not str or type(start) is not int:
        raise ValueError("it names no process")
    return place, start


@_reader("a session")
def hears_output(value: bytes) -> bool:
    """Whether the session is mailed of output."""
    return bool(_at(unpack(value), 4, False))


# --- claims


def pack_claim(worker: WorkerId, token: bytes, wall_us: int, attempt: int) -> bytes:
    return claim_head(worker, token, wall_us) + pack(attempt)


def claim_head(worker: WorkerId, token: bytes, wall_us: int) -> bytes:
    """A claim's value but for its last field, the attempt: the same for every claim of a batch."""
    return b"\x96" + pack(token) + pack(worker.ip) + pack(worker.port) + pack(worker.incarnation) + pack(wall_us)


@_reader("a claim")
def unpack_claim(value: bytes) -> tuple[bytes, WorkerId, int, int]:
    """(token, worker, wall_us, attempt)."""
    f = unpack(value)
    _typed(f, _BYTES, _STR, _INT, _BYTES, _INT, _INT)
    return f[0], WorkerId(f[1], f[2], f[3]), f[4], f[5]


def pack_claim_row(worker: WorkerId, token: bytes) -> bytes:
    return pack((token, worker.incarnation))


@_reader("a worker's claim")
def unpack_claim_row(value: bytes) -> tuple[bytes, bytes]:
    """(token, incarnation)."""
    f = unpack(value)
    _typed(f, _BYTES, _BYTES)
    return f[0], f[1]


@_reader("what an attempt printed")
def unpack_output(value: bytes) -> tuple[bytes, int]:
    """(what is kept, bytes in all)."""
    f = unpack(value)
    _typed(f, _BYTES, _INT)
    return f[0], f[1]


# --- results


def pack_latest_result(result: FutureResult, token: bytes, wall_us: int) -> bytes:
    inline = result.inline
    size = result.size if inline is None else len(inline)
    return (
        b"\x96"
        + pack(token)
        + pack(inline)
        + pack(size)
        + pack(result.name)
        + pack_worker(result.worker)
        + pack(wall_us)
    )


@_reader("a result")
def unpack_latest_result(value: bytes) -> FutureResult:
    f = unpack(value)
    _typed(f, _BYTES, _MAYBE_BYTES, _INT, _STR, _MAYBE_TUPLE, _INT)
    return FutureResult(f[1], f[2], f[3], worker_from(f[4]), f[0], f[5])


def pack_result_row(result: FutureResult, token: bytes, wall_us: int) -> bytes:
    size = result.size if result.inline is None else len(result.inline)
    return (
        b"\x96"
        + pack(token)
        + pack(size)
        + pack(result.name)
        + pack_worker(result.worker)
        + pack(wall_us)
        + pack(result.inline is not None)
    )


@_reader("a copy of a result")
def unpack_result_row(value: bytes) -> tuple[FutureResult, bool]:
    """A copy (without the inline bytes) and whether it is inline."""
    f = unpack(value)
    _typed(f, _BYTES, _INT, _STR, _MAYBE_TUPLE, _INT, _BOOL)
    return FutureResult(None, f[1], f[2], worker_from(f[3]), f[0], f[4]), bool(f[5])


@_reader("mail")
def unpack_mail(value: bytes) -> list[tuple[bytes, str, bytes | None, int]]:
    """Entries: (future, kind, value, epoch)."""
    entries: list[tuple[bytes, str, bytes | None, int]] = []
    for entry in unpack(value):
        _typed(entry, _BYTES, _STR, _MAYBE_BYTES, _INT)
        future_id, kind, what, epoch = entry
        if len(future_id) != 16:
            raise TypeError("an entry names no future")
        entries.append((future_id, kind, what, epoch))
    return entries


@_reader("the grace of a cancelled task")
def unpack_seconds(value: bytes | None) -> float:
    """Seconds; 0 where there is nothing."""
    if value is None:
        return 0.0
    seconds = unpack(value)
    if type(seconds) is not float or not 0 <= seconds < float("inf"):
        raise TypeError("no number of seconds")
    return seconds


# --- failures


def pack_failure(failure: Failure) -> bytes:
    failure = failure.bounded()
    return pack(
        (
            failure.reason,
            failure.message,
            failure.payload,
            failure.traceback,
            failure.chain,
            failure.epoch,
            failure.attempt,
            failure.token,
            failure.wall_us,
            failure.cause,
            failure.began_us,
            failure.worker,
        )
    )


@_reader("a failure")
def unpack_failure(value: bytes) -> Failure:
    f = unpack(value)
    _typed(f, _STR, _STR, _BYTES, _STR, _TUPLE, _INT, _INT, _BYTES, _INT, _STR, _INT, _STR)
    return Failure(*f[:12])


# --- what is submitted


def pack_code(session: bytes, code: bytes, wall_us: int) -> bytes:
    return pack((session, bytes(code), isinstance(code, CodeDigest), wall_us))


@_reader("code")
def unpack_code(value: bytes) -> tuple[bytes, bytes, int]:
    """(session, code or its digest, wall_us)."""
    f = unpack(value)
    _typed(f, _BYTES, _BYTES, _BOOL, _INT)
    return f[0], (CodeDigest(f[1]) if f[2] else f[1]), f[3]


def pack_args(args: bytes, dependencies: tuple[bytes, ...]) -> bytes | None:
    """None where there is nothing to store."""
    if isinstance(args, CodeDigest):
        return pack((bytes(args), dependencies, True))
    if dependencies:
        return pack((args, dependencies))
    return pack((args,)) if args else None


@_reader("arguments")
def unpack_args(value: bytes | None) -> tuple[bytes, tuple[bytes, ...]]:
    """(payload or its digest, dependency ids)."""
    if value is None:
        return b"", ()
    f = unpack(value)
    _typed(f, _BYTES, _TUPLE, _BOOL)
    return (CodeDigest(f[0]) if _at(f, 2, False) else f[0]), _ids(_at(f, 1, ()))


def _named(found: Any) -> Named:
    """What of a shape is named, as it was stored."""
    if type(found) is not tuple:
        raise TypeError(f"its resources are {found!r:.60}")
    for one in found:
        _typed(one, _STR, _INT)
        if len(one) != 2 or not 0 <= one[1] < _MOST_AMOUNT:
            raise ValueError(f"it needs {one!r:.60}")
    return found


def _total(found: tuple[Any, ...]) -> Requirements:
    """What a worker has, or has free."""
    _typed(found, _INT, _INT, _INT)
    return Requirements.from_shape(shape_of(found[0], found[1], found[2], _named(_at(found, 3, ()))))


def pack_requirements(shape: Shape, priority: int, locality: Locality | None) -> bytes | None:
    """None where all are the default."""
    if len(shape) == 4:
        w = None if locality is None else locality.worker
        at = locality and w and (w.ip, w.port, w.incarnation, locality.reason, locality.pinned, locality.wait)
        return pack((*shape[:3], priority, at, shape[3]))
    if locality is not None:
        w = locality.worker
        where = (w.ip, w.port, w.incarnation, locality.reason, locality.pinned, locality.wait)
        return pack((*shape, priority, where))
    if priority:
        return pack((*shape, priority))
    return pack(shape) if any(shape) else None


@_reader("requirements")
def unpack_requirements(value: bytes | None) -> tuple[Shape, int, Locality | None]:
    if value is None:
        return (0, 0, 0), 0, None
    f = unpack(value)
    _typed(f, _INT, _INT, _INT, _INT, _MAYBE_TUPLE)
    if not all(0 <= one < _MOST_AMOUNT for one in f[:3]):
        raise ValueError(f"it needs {f[:3]!r:.60}")
    where = _at(f, 4, None)
    if where is not None:
        _typed(where, _STR, _INT, _BYTES, _MAYBE_BYTES, _BOOL, _NUMBER)
        if not where[4]:  # who is pinned waits for no timer
            _bounded("a wait", where[5])
    locality = where and Locality(WorkerId(where[0], where[1], where[2]), where[3], where[4], where[5])
    return shape_of(f[0], f[1], f[2], _named(_at(f, 5, ()))), _at(f, 3, 0), locality


@_reader("a shape")
def unpack_shape(value: bytes) -> Shape:
    f = unpack(value)
    _typed(f, _INT, _INT, _INT)
    if len(f) < 3:
        raise ValueError("it isn't whole")
    return shape_of(f[0], f[1], f[2], _named(_at(f, 3, ())))


def pack_assignment(locality: Locality, shape: Shape) -> bytes:
    return pack(
        (locality.worker.incarnation, locality.reason, locality.pinned, *shape)
    )  # what is named, if it is, last


@_reader("an assignment")
def unpack_assignment(value: bytes) -> tuple[bytes, bytes | None, bool, Shape]:
    """(incarnation, reason, pinned, shape)."""
    f = unpack(value)
    _typed(f, _BYTES, _MAYBE_BYTES, _BOOL, _INT, _INT, _INT)
    return f[0], f[1], f[2], shape_of(f[3], f[4], f[5], _named(_at(f, 6, ())))


_OPTION_DEFAULTS: dict[str, Any] = {
    "max_worker_losses": 3,
    "max_oom": 3,
    "max_reconstructions": 10,
    "queue_timeout": None,
    "run_timeout": None,
    "total_timeout": None,
    "unschedulable_timeout": None,
    "name": "",
    "call_options": b"",
    "keep": False,
    "parent": b"",
    "ttl": None,
    "max_restarts": None,
    "dataset": b"",
    "durable": False,
    "limits": (),
}
_DEFAULT_OPTIONS = tuple(_OPTION_DEFAULTS.items())
_options_in_order = attrgetter(*_OPTION_DEFAULTS)

_COUNT = (int, _NONE)
_OPTION_TYPES: dict[str, tuple[type, ...]] = {
    "max_worker_losses": _COUNT,
    "max_oom": _COUNT,
    "max_reconstructions": _COUNT,
    "queue_timeout": _NUMBER,
    "run_timeout": _NUMBER,
    "total_timeout": _NUMBER,
    "unschedulable_timeout": _NUMBER,
    "name": (str, _NONE),
    "call_options": _MAYBE_BYTES,
    "keep": (bool, _NONE),
    "parent": _MAYBE_BYTES,
    "ttl": _NUMBER,
    "max_restarts": _COUNT,
    "dataset": _MAYBE_BYTES,
    "durable": (bool, _NONE),
    "limits": _MAYBE_TUPLE,
    "backoff": _MAYBE_TUPLE,
}


def options_of(spec: FutureSpec) -> dict[str, Any]:
    """What is stored of them: those that aren't the default."""
    found = zip(_DEFAULT_OPTIONS, _options_in_order(spec), strict=True)
    options = {name: value for (name, default), value in found if value != default}
    if spec.backoff is not None:
        options["backoff"] = (spec.backoff.initial, spec.backoff.factor, spec.backoff.maximum)
    return options


def pack_options(options: dict[str, Any]) -> bytes | None:
    """Of `options_of`: None where all are the default."""
    return pack(options) if options else None


@_reader("options")
def unpack_options(value: bytes | None) -> dict[str, Any]:
    """What was stored; take absent ones from `option`."""
    options: dict[str, Any] = {} if value is None else unpack(value)
    if type(options) is not dict:
        raise TypeError(f"it holds {type(options).__name__}, not names and values")
    for name, found in options.items():
        wanted = _OPTION_TYPES.get(name)
        if wanted is None:
            continue
        if type(found) not in wanted:
            raise TypeError(f"{name} is {found!r:.60}")
        if wanted is _NUMBER and found is not None:
            _bounded(name, found)
    if options.get("backoff") is not None:
        _typed(options["backoff"], *((int, float),) * 3)
        for number in options["backoff"][:3]:
            _bounded("backoff", number)
        Backoff(*options["backoff"])
    return options


def option(options: dict[str, Any], name: str) -> Any:
    found = options.get(name)
    return _OPTION_DEFAULTS[name] if found is None else found


_AWAY_KINDS = ("sleep", "futures", "event")


def pack_away(kind: str, name: str) -> bytes:
    return pack((kind, name))


@_reader("what a program waits for")
def unpack_away(value: bytes) -> tuple[str, str]:
    fields = unpack(value)
    _typed(fields, _STR, _STR)
    kind, name = fields[:2]
    if kind not in _AWAY_KINDS:
        raise ValueError(f"{kind!r} is nothing that a program waits for")
    return kind, name


_UNTIL = ("all", "first", "failure")


def pack_wake(epoch: int, until: str) -> bytes:
    """Of both ends of what a program that is away waits for; those of other edges hold a number."""
    return pack((epoch, _UNTIL.index(until)))


@_reader("an edge")
def unpack_edge(value: bytes) -> tuple[int, str | None]:
    """(epoch asked for, until when is waited: "all", "first", "failure"); None of an edge that isn't of a program which is away."""
    found = unpack(value)
    if type(found) is int:
        return found, None
    _typed(found, _INT, _INT)
    return found[0], _UNTIL[found[1]]


_PLAIN_REQUEST: tuple[Any, ...] = ("", "", 0, None, False, (), None, 0)


@_reader("a request of a program")
def unpack_request(value: bytes) -> tuple[str, str, int, bytes | None, bool, tuple[bytes, ...], int | None, int]:
    """(kind, name, wall_us, value, is_error, ids, due µs, parts)."""
    fields = unpack(value)
    _typed(fields, _STR, _STR, _INT, _MAYBE_BYTES, _BOOL, _TUPLE, _MAYBE_INT, _INT)
    kind, name, wall_us, data, error, ids, due_us, parts = fields[:8] + _PLAIN_REQUEST[len(fields) :]
    if not kind or any(type(one) is not bytes for one in ids):
        raise ValueError("it isn't whole")
    return kind, name, wall_us, data, error, ids, due_us, parts


# --- queues, and who waits for them


@_reader("a bound")
def unpack_bound(value: bytes) -> int | None:
    """The number that a queue or a semaphore was made with."""
    fields = unpack(value)
    _typed(fields, _MAYBE_INT, _INT)
    return fields[0]  # type: ignore[no-any-return]


@_reader("a place")
def unpack_place(value: bytes) -> bytes:
    """The session that waits, or that holds what the row is of."""
    fields = unpack(value)
    _typed(fields, _BYTES)
    return fields[0]  # type: ignore[no-any-return]


@_reader("an event")
def unpack_event(value: bytes) -> tuple[bool, int]:
    """(is set, times it was)."""
    fields = unpack(value)
    _typed(fields, _BOOL, _INT, _INT)
    return fields[0], fields[1]


@_reader("an item")
def unpack_item(value: bytes) -> tuple[bytes, tuple[bytes, ...], int]:
    """(bytes, ids of futures inside, wall_us)."""
    fields = unpack(value)
    _typed(fields, _BYTES, _TUPLE, _INT)
    if any(type(one) is not bytes or len(one) != 16 for one in fields[1]):
        raise ValueError("it names what is no future")
    return fields[0], fields[1], fields[2]


@_reader("a grant")
def unpack_grant(value: bytes) -> tuple[bytes, bytes]:
    """(session, grant) of an item that was taken."""
    fields = unpack(value)
    _typed(fields, _BYTES, _BYTES)
    return fields[0], fields[1]


_Schedule = tuple[str, str, str, bool, int, int, bytes, int, bytes, bytes, bytes | None, bytes | None, int, bool, int]
_SCHEDULE_TYPES = (
    _STR, _STR, _STR, _BOOL, _INT, _INT, _BYTES, _INT, _BYTES, _BYTES, _MAYBE_BYTES, _MAYBE_BYTES, _INT, _BOOL, _INT,
)  # fmt: skip


@_reader("a schedule")
def unpack_schedule(value: bytes) -> _Schedule:
    """(when, zone, missed, overlap, nominal µs, due µs, last id, made, code, args, requirements, options, max_retries,
    allow_reconstruction, wall_us)."""
    fields = unpack(value)
    _typed(fields, *_SCHEDULE_TYPES)
    if len(fields) < len(_SCHEDULE_TYPES):
        raise ValueError("it isn't whole")
    found: _Schedule = fields[: len(_SCHEDULE_TYPES)]
    return found


def set_options(spec: FutureSpec, options: dict[str, Any]) -> None:
    """The inverse of `options_of`."""
    for name in _OPTION_DEFAULTS.keys() & options.keys():
        setattr(spec, name, options[name])
    spec.backoff = backoff_of(options)


@_reader("permits of limits")
def unpack_permits(value: bytes) -> tuple[tuple[str, ...], str]:
    """(names of limits it has a permit of, the one it waits for or "")."""
    fields = unpack(value)
    _typed(fields, _TUPLE, _STR)
    held, waits = fields[:2]
    if any(type(name) is not str for name in held):
        raise ValueError("a limit has a name")
    return held, waits


@_reader("a limit")
def unpack_limit(value: bytes) -> tuple[int | None, int | None, int, int, int]:
    """(at once, µs between two, held, next µs, wall_us)."""
    fields = unpack(value)
    _typed(fields, _MAYBE_INT, _MAYBE_INT, _INT, _INT, _INT)
    at_once, between, held, next_us, wall_us = fields[:5]
    return at_once, between, held, next_us, wall_us


def backoff_of(options: dict[str, Any]) -> Backoff | None:
    fields = options.get("backoff")
    return None if fields is None else Backoff(*fields)


def has_defaults_only(spec: FutureSpec) -> bool:
    """Whether a spec needs no row but its code, its arguments and its place in the indices."""
    return (
        spec.max_retries == 3
        and spec.allow_reconstruction
        and spec.requirements is None
        and spec.priority == 0
        and spec.locality is None
        and not spec.name
        and not spec.call_options
        and spec.backoff is None
        and spec.max_worker_losses == 3
        and spec.max_oom == 3
        and spec.max_reconstructions == 10
        and spec.queue_timeout is None
        and spec.run_timeout is None
        and spec.total_timeout is None
        and spec.unschedulable_timeout is None
        and not spec.keep
        and not spec.parent
        and spec.ttl is None
        and not spec.durable
        and not spec.after
        and not spec.limits
        and spec.max_restarts is None
        and not spec.dataset
    )
