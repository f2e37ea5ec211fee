"""The options of `submit`, checked where they are given: a wrong one fails at the call, not on a worker."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from fdb_datamodel import Backoff, Locality, Requirements, WorkerId
from futures_worker.client.basis.record import FutureHandle
from futures_worker.client.basis.spelling import meant
from futures_worker.code.settings import Variables, read_variables
from futures_worker.payload import dump_retry_on
from futures_worker.worker.messages import MOST_NAME

_RESOURCES: Final = ("cpu", "ram", "gpu")
_TIMEOUTS: Final = ("queue", "run", "total")
_BACKOFF: Final = frozenset({"initial", "factor", "maximum"})
_MOST: Final = 1 << 62  # of a whole number in a row, or in a key
_FOREVER_SECONDS: Final = 1e10  # three hundred years: more is no other wait, and no number for a timer's key
_ADDRESS: Final = re.compile(r"\[?([^\]]+)\]?:(\d+)")


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How a future is to be run, checked and in the data model's terms. The names are those of `submit`'s options."""

    requirements: Requirements | None = None
    max_retries: int = 3
    max_worker_losses: int = 3
    max_oom: int = 3
    priority: int = 0
    queue_timeout: float | None = None
    run_timeout: float | None = None
    total_timeout: float | None = None
    soft_timeout: float | None = None
    unschedulable_timeout: float | None = None
    locality: Any = None  # a Future, WorkerId, Locality or "ip:port"; resolved when the future is submitted
    name: str = ""
    key: str | None = None
    allow_reconstruction: bool = True
    call_options: bytes = b""
    backoff: Backoff | None = None
    keep: bool | None = None  # None: a future with a name of its own is kept
    ttl: float | None = None
    dataset: bytes = b""  # what a dataset's partitions have in common
    durable: bool = False
    limits: tuple[str, ...] = ()
    after: float | None = None
    at: float | None = None  # seconds since 1970, by the submitter's wall clock
    env: Variables = ()
    tr: Any = field(default=None, compare=False)
    chosen: frozenset[str] = field(
        default=frozenset(), compare=False
    )  # names given by the caller: they precede defaults

    @property
    def kept(self) -> bool:
        """Whether it is never collected: said so, or named and nothing said."""
        return bool(self.name) and self.ttl is None if self.keep is None else self.keep

    def changed(self, **options: Any) -> SubmitOptions:
        """These options with some replaced. Raises TypeError for an unknown name, ValueError for a bad value."""
        fields: dict[str, Any] = {}
        for name, value in options.items():
            reader = _READERS.get(name)
            if reader is None:
                near = meant(name, tuple(_READERS))
                hint = f"did you mean {near!r}? T" if near else "t"
                raise TypeError(f"{name!r} is no option of submit: {hint}he options are {', '.join(_READERS)}")
            fields.update(reader(name, value))
        if options.get("after") is not None and options.get("at") is not None:
            raise ValueError("after and at are two times to begin at, found both: give one")
        if fields.get("env"):  # added to those chosen before, name by name
            fields["env"] = tuple(sorted((dict(self.env) | dict(fields["env"])).items()))
        return replace(self, **fields, chosen=self.chosen | options.keys()) if fields else self

    def with_defaults(self, defaults: Iterable[tuple[str, Any]]) -> SubmitOptions:
        """These options with those of `defaults` that the caller hasn't chosen."""
        missing = {name: value for name, value in defaults if name not in self.chosen}
        return replace(self.changed(**missing), chosen=self.chosen) if missing else self

    def refuse_key(self, whose: str) -> None:
        """Raises ValueError if there is a key: it would make one future of several calls."""
        if self.key is not None:
            raise ValueError(f"key names one future, and {whose} are many: use client.submit or client.map with key=")


def _resources(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"requirements": None}
    if isinstance(value, Requirements):
        return {"requirements": value}
    if not isinstance(value, Mapping):
        raise ValueError(
            f'resources is a mapping such as {{"cpu": 1, "ram": "2GiB", "gpu": 0, "db": 1}}, found {value!r}'
        )
    ours = {name: value[name] for name in _RESOURCES if name in value}
    named = {name: amount for name, amount in value.items() if name not in _RESOURCES}
    needs = Requirements(
        **ours, named={name: amount for name, amount in named.items() if amount or isinstance(amount, bool)}
    )
    return {"requirements": needs if any(needs.shape) else None}


def _count(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is a whole number, 0 or more, found {value!r}")
    return {name: min(value, _MOST)}


def _priority(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"priority is a whole number (greater runs first), found {value!r}")
    if abs(value) > _MOST:
        raise ValueError(f"priority is a whole number of at most 62 bits, found {value!r}")
    return {name: value}


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is a number of seconds over 0, found {value!r}")
    return min(float(value), _FOREVER_SECONDS)


def _timeout(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        if not set(value) <= set(_TIMEOUTS):
            raise ValueError(f"timeout takes the keys queue, run and total, found {sorted(map(str, value))}")
        return {f"{kind}_timeout": _seconds(f"timeout[{kind!r}]", value.get(kind)) for kind in _TIMEOUTS}
    return {"run_timeout": _seconds(name, value), "queue_timeout": None, "total_timeout": None}


def _optional_seconds(name: str, value: Any) -> dict[str, Any]:
    return {name: _seconds(name, value)}


def _text(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {name: "" if name == "name" else None}
    if not isinstance(value, str) or not value or len(value) > 500:
        raise ValueError(f"{name} is a text of 1 to 500 characters, found {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is a text of characters that UTF-8 has, found {value!r:.80}") from None
    return {name: value}


def read_key(value: object) -> str:
    """Raises ValueError unless it may be the `key` of a submit."""
    return str(_text("key", value)["key"])


def _flag(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is True or False, found {value!r}")
    return {name: value}


def _retry_on(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) or not isinstance(value, (type, Iterable)):
        raise TypeError(f"retry_on takes exception classes, found {value!r}")
    kinds = (value,) if isinstance(value, type) else tuple(value)
    return {"call_options": dump_retry_on(kinds)}


def _backoff(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {name: None}
    if _is_pause(value):
        return {name: Backoff(initial=float(value)) if value else None}
    fields: Any = value
    if isinstance(value, Backoff):
        fields = {"initial": value.initial, "factor": value.factor, "maximum": value.maximum}
    if isinstance(fields, Mapping) and set(fields) <= _BACKOFF and all(map(_is_pause, fields.values())):
        return {name: Backoff(**fields)}
    raise ValueError(
        f'backoff is the first pause in seconds, or {{"initial": 1, "factor": 2, "maximum": 60}}, found {value!r}'
    )


def _is_pause(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= _FOREVER_SECONDS


def _after(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is not None and not _is_pause(value):
        raise ValueError(f"after is a number of seconds, 0 or more, or a timedelta, found {value!r}")
    return {"after": value or None, "at": None} if value is not None else {"after": None}


def _limits(name: str, value: Any) -> dict[str, Any]:
    names = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(one, str) and 0 < len(one) <= 500 and "\0" not in one for one in names):
        raise ValueError(f"limits are names of limits (`client.limit`), found {value!r:.80}")
    return {"limits": tuple(sorted(set(names)))}


def _at(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, datetime):
        value = value.timestamp()
    if value is not None and not _is_pause(value):
        raise ValueError(f"at is a datetime, or seconds since 1970, found {value!r}")
    return {"at": value, "after": None} if value is not None else {"at": None}


def address_of(worker: Any) -> Any:
    """The address of a row of `Client.workers`, or of a worker of a LocalCluster; all else as it is."""
    return getattr(worker, "address", worker)


def _locality(name: str, value: Any) -> dict[str, Any]:
    value = address_of(value)
    if isinstance(value, str) and not _ADDRESS.fullmatch(value):
        raise ValueError(f'locality is a future, a worker or its address "ip:port", found {value!r}')
    if not (value is None or isinstance(value, (str, WorkerId, Locality, FutureHandle))):
        raise ValueError(f'locality is a future, a worker or its address "ip:port", found {value!r}')
    return {name: value}


def grace_of(grace: Any) -> float | None:
    """The grace of a cancel. Raises ValueError for what is none."""
    if grace is None or _is_pause(grace):
        return None if grace is None else float(grace)
    raise ValueError(f"grace is a number of seconds, 0 or more, found {grace!r:.80}")


def split_address(address: str) -> tuple[str, int]:
    """(ip, port) of "ip:port"."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f'an address is "ip:port", found {address!r}')
    return match[1], int(match[2])


def check_name(name: object, what: str) -> str:
    """Raises ValueError unless it may name an event, a limit, or what is published."""
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or "\0" in name:
        raise ValueError(f"{what} has a name of 1 to {MOST_NAME} characters, none of them NUL, found {name!r:.80}")
    return name


_READERS: Final[Mapping[str, Callable[[str, Any], dict[str, Any]]]] = {
    "resources": _resources,
    "max_retries": _count,
    "max_worker_losses": _count,
    "max_oom": _count,
    "priority": _priority,
    "timeout": _timeout,
    "soft_timeout": _optional_seconds,
    "unschedulable_timeout": _optional_seconds,
    "locality": _locality,
    "name": _text,
    "key": _text,
    "allow_reconstruction": _flag,
    "retry_on": _retry_on,
    "backoff": _backoff,
    "durable": _flag,
    "limits": _limits,
    "after": _after,
    "at": _at,
    "keep": lambda name, value: {name: None} if value is None else _flag(name, value),
    "ttl": _optional_seconds,
    "tr": lambda name, value: {"tr": value},
    "env": lambda name, value: {"env": () if value is None else read_variables(value)},
}
NOT_OF_SUBMIT: Final = frozenset(("env",))
"""Options of clients, functions and `client.options`: a `submit` gives this keyword to its function."""
OPTION_NAMES: Final = tuple(name for name in _READERS if name not in NOT_OF_SUBMIT)
"""The keywords that `Client.submit` keeps for itself; every other keyword goes to the function."""

NOT_DEFAULTS: Final = frozenset(("key", "name", "tr"))
"""Options of one future each, which no client and no function has for all."""

_ATTRIBUTE: Final = "__submit_options__"
F = TypeVar("F", bound=Callable[..., Any])


def submit_options(**options: Any) -> Callable[[F], F]:
    """A decorator: the options with which a function is submitted, unless the submit says otherwise.

    `@submit_options(max_retries=0)`. Options of `submit` and of `client.options` go first, then these, then the client's.
    Raises TypeError, ValueError for what is no such option.
    """
    check_defaults(options)

    def mark(function: F) -> F:
        setattr(function, _ATTRIBUTE, tuple(options.items()))
        return function

    return mark


def options_of(function: Any) -> tuple[tuple[str, Any], ...]:
    """What `submit_options` says of a function."""
    while isinstance(function, functools.partial):
        function = function.func
    found = getattr(function, _ATTRIBUTE, ())
    return found if type(found) is tuple else ()


def check_defaults(options: Mapping[str, Any]) -> SubmitOptions:
    """Options as defaults. Raises TypeError, ValueError."""
    for name in NOT_DEFAULTS & options.keys():
        raise TypeError(f"{name!r} is of one future: it can't be a default")
    return replace(SubmitOptions().changed(**options), chosen=frozenset())


OPTION_SET: Final = frozenset(OPTION_NAMES)
DEFAULT_OPTIONS: Final = SubmitOptions()
