"""`Client.every`, and handles of schedules."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fdb_datamodel import CodeDigest, FutureSpec
from fdb_datamodel.transitions.schedules import (
    Schedule as Row,
)
from fdb_datamodel.transitions.schedules import (
    delete_schedule,
    list_schedules,
    put_schedule,
    read_schedule,
)
from fdb_datamodel.transitions.submit import put_code
from fdb_schema import due_after
from futures_worker.client.basis.options import OPTION_NAMES, OPTION_SET, options_of
from futures_worker.client.basis.spelling import check_keywords
from futures_worker.client.context import ClientContext
from futures_worker.client.data import find
from futures_worker.client.future import Future
from futures_worker.client.submits.submitting import apply_options, limit_softly
from futures_worker.database import ask
from futures_worker.payload import dump_args_and_names, dump_function
from futures_worker.schedules.planning import MISSED, first, read_when

SCHEDULE_OPTIONS = frozenset({"name", "missed", "overlap", "zone"})
_NOT_OF_MANY = ("key", "tr", "after", "at", "locality")


class Schedule:
    """A function that is submitted again and again. Made by `Client.every`, found by `Client.schedules`."""

    def __init__(self, context: ClientContext, row: Row) -> None:
        self._context = context
        self._row = row

    @property
    def name(self) -> str:
        """By which it is found, and replaced."""
        return self._row.name

    @property
    def function(self) -> str:
        """What is submitted: module.qualname, or the name given for its futures."""
        return self._row.function

    @property
    def when(self) -> str | float:
        """The cron expression, or the period in seconds."""
        try:
            return float(self._row.when)
        except ValueError:
            return self._row.when

    @property
    def made(self) -> int:
        """How many futures it submitted until now."""
        return self._now().made

    @property
    def next(self) -> datetime:
        """When it is due next, as far as this process's wall clock tells."""
        row = self._now()
        if row.zone:
            return datetime.fromtimestamp(row.nominal / 1e6, UTC)
        now = ask(self._context.db, due_after, self._context.space, 0, strategy="off")
        return datetime.fromtimestamp(time.time() + (row.due_us - now) / 1e6, UTC)

    @property
    def last(self) -> Future[Any] | None:
        """The future of its latest occurrence; None before the first."""
        last = self._now().last
        return find(self._context, UUID(bytes=last)) if last else None

    def delete(self) -> bool:
        """Submit nothing of it any more; whether it was there. What was submitted goes on."""
        return bool(ask(self._context.db, delete_schedule, self._context.space, self.name))

    def _now(self) -> Row:
        return _read(self._context, self.name)

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} of {self.function}: {self.when}>"


def _read(context: ClientContext, name: str) -> Row:
    found: Row | None = ask(context.db, read_schedule, context.space, name, strategy="off")
    if found is None:
        raise LookupError(f"cluster {context.cluster!r} has no schedule {name!r}: it was deleted")
    return found


def every(
    context: ClientContext, when: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Schedule:
    """See `Client.every`."""
    settings = {name: kwargs.pop(name) for name in SCHEDULE_OPTIONS & kwargs.keys()}
    chosen = {name: kwargs.pop(name) for name in OPTION_SET & kwargs.keys()}
    for name in _NOT_OF_MANY:
        if name in chosen:
            raise TypeError(f"{name!r} is of one future: a schedule submits many")
    text, zone = read_when(when, settings.get("zone"))
    missed, overlap = settings.get("missed", "one"), settings.get("overlap", True)
    if missed not in MISSED:
        raise ValueError(
            f"missed is {', '.join(map(repr, MISSED))}: which of those that nobody was there for run; found {missed!r}"
        )
    if not isinstance(overlap, bool):
        raise ValueError(f"overlap is True or False, found {overlap!r}")
    check_keywords(fn, kwargs, OPTION_NAMES, "every")
    options = context.options.with_defaults(options_of(fn)).changed(**chosen)
    session = context()
    data, dependencies, names = dump_args_and_names(args, kwargs, context.origin)
    if dependencies:
        raise TypeError(
            "the arguments of a schedule hold no futures: they are collected, and it goes on; pass their ids"
        )
    code, holds = dump_function(fn, names, context.code, context.origin.identity)
    if holds:
        raise TypeError(
            f"{code.name} refers to futures, which are collected while its schedule goes on: pass their ids"
        )
    code = context.code.within(code, context.setting.of(options.env))
    spec = FutureSpec(CodeDigest(code.digest), data, name=options.name or code.name)
    apply_options(context, options, spec)
    limit_softly(options, spec)
    name = str(settings.get("name") or code.name)
    if not 0 < len(name) <= 500 or "\0" in name:
        raise ValueError(f"a schedule has a name of 1 to 500 characters, none of them NUL, found {name!r:.80}")
    session.life.begin()
    folder = session.keep_folder(code)

    def body(tr: Any) -> frozenset[str]:
        now_us = due_after(tr, context.space, 0)  # where the clock stands still, what it will be caught up to
        nominal, due_us = first(text, zone, now_us, int(time.time() * 1e6))
        put_code(tr, context.space, code.data, session.id, folder)
        return put_schedule(
            tr,
            context.space,
            name,
            text,
            spec,
            zone=zone,
            missed=missed,
            overlap=overlap,
            nominal=nominal,
            due_us=due_us,
        )

    other = ask(context.db, body, strategy="off")
    if not settings.get("name"):
        _warn_of_another(name, other)
    return Schedule(context, _read(context, name))


def _warn_of_another(name: str, other: frozenset[str]) -> None:
    """Two calls of one function, or two lambdas, have one name unless they are given some: only the second is submitted."""
    if "arguments" in other or ("function" in other and "<" in name):
        warnings.warn(
            f"another schedule {name!r} is replaced by this one, since both have the name of their function: to have both, give "
            "each a name=…",
            stacklevel=4,
        )


def schedules(context: ClientContext) -> list[Schedule]:
    """See `Client.schedules`."""
    context()
    found: list[Row] = []
    while page := ask(context.db, list_schedules, context.space, found[-1].name if found else "", strategy="off"):
        found += page
    return [Schedule(context, row) for row in found]
