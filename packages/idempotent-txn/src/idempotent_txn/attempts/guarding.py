"""What a body may do to the transaction that it is given: begin it afresh, but not commit it, nor change its id.

The loop knows an attempt by the id (or lane) of its commit. So there is one commit, the loop's, after the body; and what
the body lets go of on the way to it (`reset`, `on_error`) is noted, so that the loop gives it to the transaction again.
"""

from __future__ import annotations

import sys
import time
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, NoReturn

from idempotent_txn.attempts.deadline import arm
from idempotent_txn.errors import BodyError

IDEMPOTENCY_ID: Final = 504
AUTOMATIC_IDEMPOTENCY: Final = 505

RUNS_LATER: Final = frozenset({GeneratorType, CoroutineType, AsyncGeneratorType})
"""Types of what a body returns that hasn't run yet."""

GUARDED: Final[dict[type, type]] = {}
"""Of each class of transactions, the one that bodies are given; `GUARDED_IDS` where options 504 and 505 are the loop's.

`unguarded_class` is the way back, before the loop commits.
"""
GUARDED_IDS: Final[dict[type, type]] = {}


def guard(tr: Any, own_ids: bool) -> None:
    """Make `tr`, a fresh transaction, one that a body may be given; `own_ids` where options 504 and 505 are the loop's."""
    cls = tr.__class__
    tr.__class__ = (GUARDED_IDS if own_ids else GUARDED).get(cls) or guarded_class(cls, own_ids)


def restarted(tr: Any, name: str) -> bool:
    """Whether the body `name` began `tr` afresh; `BodyError` where that isn't over yet."""
    pauses = tr.__dict__.get("_restarts")
    if pauses is None:
        return False
    for pause in pauses:
        if not pause.is_ready():
            raise BodyError(
                f"{name} called on_error of its transaction and did not wait for what it returned: what was written since "
                f"would be lost; wait for it, or let `run` do the retrying"
            )
    return True


def refuse_unfinished(value: Any, name: str) -> None:
    """Raise `BodyError` where a body returned something that would go on when its transaction is over."""
    if type(value) in RUNS_LATER:
        if type(value) is not AsyncGeneratorType:
            value.close()
        if type(value) is GeneratorType:
            raise BodyError(f"{name} is a generator: its transaction would be over before its body ran")
        raise BodyError(
            f"{name} is asynchronous: it returned a {type(value).__name__} whose transaction would be over before it ran; "
            f"make it a plain function, and call `run` by asyncio.to_thread"
        )
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(value, asyncio.Future):
        value.cancel()
        raise BodyError(
            f"{name} is asynchronous: it returned a {type(value).__name__}, which would go on when its transaction is over; "
            f"make it a plain function, and call `run` by asyncio.to_thread"
        )


def guarded_class(cls: type, own_ids: bool) -> type:
    """`cls` as bodies get it."""
    known = (GUARDED_IDS if own_ids else GUARDED).get(cls)
    if known is not None:
        return known
    plain: Any = cls

    def commit(self: Any) -> NoReturn:
        raise BodyError(
            "the body of a transaction called its commit: `run` commits when the body has returned, and runs it again where "
            "that is needed; leave out commit, and the loop around it"
        )

    def reset(self: Any) -> None:
        plain.reset(self)
        self.__dict__.setdefault("_restarts", [])
        deadline = self.__dict__.get("run_deadline")
        if deadline is not None:
            arm(self, deadline, time.monotonic())

    def on_error(self: Any, error: Any) -> Any:
        pause = plain.on_error(self, error)
        self.__dict__.setdefault("_restarts", []).append(pause)
        return pause

    def set_read_version(self: Any, version: int) -> None:
        self.chose_read_version = True
        plain.set_read_version(self, version)

    def set_option(self: Any, option: int, parameter: Any, length: int) -> None:
        if option in (IDEMPOTENCY_ID, AUTOMATIC_IDEMPOTENCY):
            _refuse_id()
        plain._set_option(self, option, parameter, length)

    def set_idempotency_id(self: Any, name: bytes, automatic: bool = False) -> NoReturn:
        _refuse_id()

    members: dict[str, Any] = {
        "commit": commit,
        "unguarded_class": cls,
        "reset": reset,
        "on_error": on_error,
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
    }
    if own_ids:
        members["_set_option"] = set_option
        members["set_read_version"] = set_read_version
        if hasattr(cls, "set_idempotency_id"):
            members["set_idempotency_id"] = set_idempotency_id
    made = type(cls.__name__, (cls,), members)
    (GUARDED_IDS if own_ids else GUARDED)[cls] = made
    return made


def _refuse_id() -> NoReturn:
    raise BodyError(
        "the body of a transaction set an idempotency id (option 504 or 505) in the place of the one that its commit is found "
        "by: give `idempotency_id=` to `run` instead"
    )
