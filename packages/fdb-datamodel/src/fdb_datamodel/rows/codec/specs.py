"""What is submitted: code, arguments, options; and schedules, by which it is submitted again and again."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from fdb_datamodel.rows.codec.values import (
    BOOL,
    BYTES,
    INT,
    MAYBE_BYTES,
    MAYBE_INT,
    MAYBE_TUPLE,
    NONE,
    NUMBER,
    STR,
    TUPLE,
    bounded,
    nth,
    pack,
    reader,
    typed,
    unpack,
)
from fdb_datamodel.rows.records import Backoff, CodeDigest, FutureSpec

_NAME_WITH_CODE = 256  # characters; longer ones are options: code may take nearly all of a value


def pack_code(session: bytes, code: bytes, wall_us: int, name: str = "") -> bytes:
    """`name`: where `name_with_code`."""
    return pack((session, bytes(code), isinstance(code, CodeDigest), wall_us, *([name] if name else [])))


def name_with_code(name: str) -> bool:
    """Whether a future's name is in the row of its code; else it is an option."""
    return len(name) <= _NAME_WITH_CODE


@reader("code")
def unpack_code(value: bytes) -> tuple[bytes, bytes, int, str]:
    """(session, code or its digest, wall_us, name or "")."""
    f = unpack(value)
    typed(f, BYTES, BYTES, BOOL, INT, STR)
    return f[0], (CodeDigest(f[1]) if f[2] else f[1]), f[3], nth(f, 4, "")


def pack_args(args: bytes, dependencies: tuple[bytes, ...]) -> bytes | None:
    """None where there is nothing to store."""
    if isinstance(args, CodeDigest):
        return pack((bytes(args), dependencies, True))
    if dependencies:
        return pack((args, dependencies))
    return pack((args,)) if args else None


@reader("arguments")
def unpack_args(value: bytes | None) -> tuple[bytes, tuple[bytes, ...]]:
    """(payload or its digest, dependency ids)."""
    if value is None:
        return b"", ()
    f = unpack(value)
    typed(f, BYTES, TUPLE, BOOL)
    return (CodeDigest(f[0]) if nth(f, 2, False) else f[0]), _ids(nth(f, 1, ()))


def _ids(found: Any) -> tuple[bytes, ...]:
    if type(found) is not tuple or any(type(one) is not bytes or len(one) != 16 for one in found):
        raise TypeError("its dependencies aren't ids")
    return found


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
_OPTION_TYPES: dict[str, tuple[type, ...]] = {
    "max_worker_losses": MAYBE_INT,
    "max_oom": MAYBE_INT,
    "max_reconstructions": MAYBE_INT,
    "queue_timeout": NUMBER,
    "run_timeout": NUMBER,
    "total_timeout": NUMBER,
    "unschedulable_timeout": NUMBER,
    "name": (str, NONE),
    "call_options": MAYBE_BYTES,
    "keep": (bool, NONE),
    "parent": MAYBE_BYTES,
    "ttl": NUMBER,
    "max_restarts": MAYBE_INT,
    "dataset": MAYBE_BYTES,
    "durable": (bool, NONE),
    "limits": MAYBE_TUPLE,
    "backoff": MAYBE_TUPLE,
}


def options_of(spec: FutureSpec) -> dict[str, Any]:
    """Those that aren't the default. Of a future the name is stored with its code (`name_with_code`)."""
    found = zip(_DEFAULT_OPTIONS, _options_in_order(spec), strict=True)
    options = {name: value for (name, default), value in found if value != default}
    if spec.backoff is not None:
        options["backoff"] = (spec.backoff.initial, spec.backoff.factor, spec.backoff.maximum)
    return options


def pack_options(options: dict[str, Any]) -> bytes | None:
    """Of `options_of`: None where all are the default."""
    return pack(options) if options else None


@reader("options")
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
        if wanted is NUMBER and found is not None:
            bounded(name, found)
    if options.get("backoff") is not None:
        typed(options["backoff"], *((int, float),) * 3)
        for number in options["backoff"][:3]:
            bounded("backoff", number)
        Backoff(*options["backoff"])
    return options


def option(options: dict[str, Any], name: str) -> Any:
    found = options.get(name)
    return _OPTION_DEFAULTS[name] if found is None else found


def set_options(spec: FutureSpec, options: dict[str, Any]) -> None:
    """The inverse of `options_of`."""
    for name in _OPTION_DEFAULTS.keys() & options.keys():
        setattr(spec, name, options[name])
    spec.backoff = backoff_of(options)


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
        and name_with_code(spec.name)
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


_Schedule = tuple[str, str, str, bool, int, int, bytes, int, bytes, bytes, bytes | None, bytes | None, int, bool, int]
_SCHEDULE_TYPES = (
    STR, STR, STR, BOOL, INT, INT, BYTES, INT, BYTES, BYTES, MAYBE_BYTES, MAYBE_BYTES, INT, BOOL, INT,
)  # fmt: skip


@reader("a schedule")
def unpack_schedule(value: bytes) -> _Schedule:
    """(when, zone, missed, overlap, nominal µs, due µs, last id, made, code, args, requirements, options, max_retries,
    allow_reconstruction, wall_us)."""
    fields = unpack(value)
    typed(fields, *_SCHEDULE_TYPES)
    if len(fields) < len(_SCHEDULE_TYPES):
        raise ValueError("it isn't whole")
    found: _Schedule = fields[: len(_SCHEDULE_TYPES)]
    return found
