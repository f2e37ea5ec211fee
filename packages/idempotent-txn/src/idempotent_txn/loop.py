"""The one retry loop: runs a body until its effects are in the database exactly once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from fdb_schema import fdb_error_code, read_version
from idempotent_txn.attempts.backoff import sleep_before
from idempotent_txn.attempts.classification import (
    CANCELLATIONS,
    RESOLVED_THEN_RETRIED,
    RETRYABLE_IN_BODY,
    RETRYABLE_NOT_COMMITTED,
    SERVER_PACED,
)
from idempotent_txn.attempts.deadline import armed, check_deadline, deadline_after, disarm, name_of
from idempotent_txn.attempts.guarding import (
    GUARDED,
    GUARDED_IDS,
    guard,
    guarded_class,
    refuse_unfinished,
    restarted,
)
from idempotent_txn.attempts.outcome import Committed, Outcome
from idempotent_txn.attempts.settle import despite_interruptions, is_no_chance, note_outcome, settle_commit
from idempotent_txn.attempts.strategy import OFF, Strategy, StrategyName
from idempotent_txn.errors import BodyError
from idempotent_txn.ids.identity import checked_id
from idempotent_txn.session import session_of

P = ParamSpec("P")
T = TypeVar("T")

FINISHED = frozenset({type(None), bool, int, str, bytes, list, tuple, dict})
"""Types of which a returned value certainly has nothing left to run."""

MOST_CANCELLED_ATTEMPTS = 16
"""A body that always cancels its own transaction is not run for ever."""


def run(
    db: Any,
    fn: Callable[..., T],
    *args: Any,
    idempotency_id: bytes | None = None,
    strategy: StrategyName | None = None,
    timeout: float | None = None,
    on_attempt: Callable[[int], object] | None = None,
    **kwargs: Any,
) -> T:
    """Run `fn(tr, *args, **kwargs)` in a transaction of `db` until it committed, once; return what it returned.

    `fn` may run several times, so it has no effects but those of its transaction. Whatever happens to a commit, it is
    found out whether it took place before `fn` runs again or `run` returns or raises: no caller ever sees
    `commit_unknown_result`. `fn` may begin its transaction afresh (`reset`, or `on_error` waited for): what it does then counts.

    Args:
        db: a `Database` of any engine.
        idempotency_id: an `IdempotencyId` (or its bytes, up to 255) kept until `expire_idempotency_id`, so that
            `commit_result` can be asked by another process. It names this one call: a second call with the same id is
            not deduplicated. Without it, an id is made, and expired, automatically.
        strategy: "native", "lanes", "ids" or "off"; None is the best the database offers.
        timeout: seconds until the deadline of all attempts together; None and infinity are no deadline. A commit in flight at the deadline is settled first.
        on_attempt: called with the read snapshot (a version) before each commit.

    Raises:
        TransactionTimedOut: the deadline passed, and nothing committed.
        CommitUnknownResultFatal: a commit was in flight for so long that its id may have been expired.
        ValueError: the timeout is nan.
        BodyError: `fn` is asynchronous or a generator, commits by itself, or sets an idempotency id; nothing committed.
        Exception: whatever `fn` raised, and FoundationDB's errors that are not worth a retry; nothing committed.
    """
    return _until_committed(db, fn, args, kwargs, idempotency_id, strategy, timeout, on_attempt, False)  # type: ignore[no-any-return]


def run_committed(
    db: Any,
    fn: Callable[..., T],
    *args: Any,
    idempotency_id: bytes | None = None,
    strategy: StrategyName | None = None,
    timeout: float | None = None,
    on_attempt: Callable[[int], object] | None = None,
    **kwargs: Any,
) -> Outcome[T]:
    """`run`, which also tells the commit's version and versionstamp: the original ones, whatever it took to learn them."""
    return _until_committed(db, fn, args, kwargs, idempotency_id, strategy, timeout, on_attempt, True)  # type: ignore[no-any-return]


def run_repeatable(db: Any, fn: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
    """`run` with the strategy "off", for whoever may run it again at any later time: its deadline holds for a commit in flight, too.

    `run` waits until it is known what became of that, which takes as long as the database is out of reach. Here it is given up: it
    may have taken place, or may yet, within the seconds that a database keeps a read version.

    Raises:
        TransactionTimedOut: the deadline passed; it says whether something may have committed.
        Exception: as `run`.
    """
    return _until_committed(db, fn, args, kwargs, None, "off", timeout, None, False, False)  # type: ignore[no-any-return]


_Failed = list[Any]
"""An attempt that did not simply succeed: [error (None once it is looked into), whether that came out of the body and
not the commit, transaction, token, value, future of the commit].

It is empty where there is none. It is made, and marked, without any call: an interruption can come at a call, when nobody
would look into the attempt.
"""


def _until_committed(
    db: Any,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    idempotency_id: bytes | None,
    strategy: StrategyName | None,
    timeout: float | None,
    on_attempt: Callable[[int], object] | None,
    want_outcome: bool,
    settles: bool = True,
) -> Any:
    failed: _Failed = []
    before: BaseException | None = None
    quick: Strategy | None = None
    guarded = GUARDED_IDS
    if idempotency_id is None and timeout is None and on_attempt is None and not want_outcome:
        if strategy is None:
            quick = session_of(db).quick
        elif strategy == "off":
            quick, guarded = OFF, GUARDED
    try:
        while True:
            try:
                if quick is not None and not failed:
                    # The first attempt of nearly all transactions, without what it doesn't need.
                    tr = token = value = commit = None
                    in_body, committed = True, False
                    try:
                        tr = db.create_transaction()
                        # `guard`, without the call.
                        tr.__class__ = guarded.get(tr.__class__) or guarded_class(tr.__class__, guarded is GUARDED_IDS)
                        token = quick.begin(tr, None, None)
                        value = fn(tr, *args, **kwargs)
                        if type(value) not in FINISHED:
                            refuse_unfinished(value, name_of(fn))
                        if "_restarts" in tr.__dict__ and restarted(tr, name_of(fn)):
                            quick.begin_again(tr, token)
                        if type(token) is list:  # it is to be completed
                            quick.prepare(tr, token, False)
                        tr.__class__ = tr.unguarded_class
                        in_body = False
                        commit = tr.commit()
                        commit.wait()
                        committed = True
                    except BaseException as error:
                        failed[:] = [error, in_body, tr, token, value, commit]
                    # CPython 3.12 jumps back to here from there, and takes an interruption that comes then for one of what is
                    # above: that may not be a `return`, which is part of no `try`.
                    if committed:
                        return value
                return _execute(
                    db, fn, args, kwargs, idempotency_id, strategy, timeout, on_attempt, want_outcome, settles, failed
                )
            except BaseException as interruption:
                if not failed or failed[0] is None or is_no_chance(interruption, before):
                    raise
                # It came before anybody looked into a failed attempt, of which nothing may be left in flight.
                failed[0] = before = interruption
    finally:
        # The error knows this frame, and this frame must not know the error: the transaction would outlive both.
        before = None
        del failed[:]


def _execute(
    db: Any,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    idempotency_id: bytes | None,
    strategy_name: StrategyName | None,
    timeout: float | None,
    on_attempt: Callable[[int], object] | None,
    want_outcome: bool,
    settles: bool,
    failed: _Failed,
) -> Any:
    """Attempts until one is known to have committed; `failed` is a first one that was made already, and then each that fails."""
    session = session_of(db)
    run_id = None if idempotency_id is None else checked_id(idempotency_id)
    strategy = session.strategy(strategy_name, run_id is not None)
    deadline = deadline_after(timeout)
    attempt = 0
    cancelled = 0
    known = True  # that no attempt so far has committed
    stamp: Any = None
    while True:
        attempt += 1
        if not failed:
            tr = token = value = commit = None
            in_body = True
            try:
                tr = db.create_transaction() if deadline is None else armed(db, deadline, attempt, known)
                guard(tr, strategy.name == "native")
                token = strategy.begin(tr, run_id, deadline)
                value = fn(tr, *args, **kwargs)
                refuse_unfinished(value, name_of(fn))
                if restarted(tr, name_of(fn)):
                    strategy.begin_again(tr, token)
                strategy.prepare(tr, token, want_outcome)
                if on_attempt is not None:
                    on_attempt(read_version(tr))
                if want_outcome:
                    stamp = tr.get_versionstamp()
                if deadline is not None:
                    disarm(tr, deadline, attempt, fn, settles, known)
                tr.__class__ = tr.unguarded_class
                in_body = False
                commit = tr.commit()
                commit.wait()
            except BaseException as error:
                failed[:] = [error, in_body, tr, token, value, commit]
            else:
                try:
                    strategy.committed(tr, token)
                    if run_id is not None:
                        session.remember(run_id, tr.get_committed_version())
                    return _outcome(value, True, stamp, attempt, tr) if want_outcome else value
                except BaseException as error:
                    despite_interruptions(strategy.committed, tr, token)
                    if fdb_error_code(error) is None:
                        note_outcome(error, True)
                    raise
        cause, in_body, tr, token, value, commit = failed
        interruption: BaseException | None = None
        try:
            if in_body:
                if token is not None:
                    interruption = despite_interruptions(strategy.abandoned, token)
                failed[0] = None
                if interruption is not None:
                    raise interruption
                code = fdb_error_code(cause)
                if code is None:
                    raise cause
                check_deadline(deadline, attempt, fn, cause, known)
                if code not in RETRYABLE_IN_BODY:
                    raise cause
            else:
                while True:
                    try:
                        settled = settle_commit(strategy, tr, token, commit, interruption or cause)
                        break
                    except BaseException as again:
                        if is_no_chance(again, interruption):
                            raise
                        # It came between two steps of settling: until the outcome is known, nothing may be raised.
                        interruption = again
                failed[0] = None
                if settled.interruption is not None:
                    raise settled.interruption from None
                if settled.commit is not False:
                    if run_id is not None and settled.commit is not True:
                        session.remember(run_id, settled.commit.version)
                    return _outcome(value, settled.commit, stamp, attempt, tr) if want_outcome else value
                code = settled.code
                known = known and settled.known
                check_deadline(deadline, attempt, fn, cause, known)
                cancelled += code in CANCELLATIONS
                if cancelled >= MOST_CANCELLED_ATTEMPTS or (
                    code not in RETRYABLE_NOT_COMMITTED and code not in RESOLVED_THEN_RETRIED
                ):
                    raise cause
            _pause(tr, code, attempt, deadline)
        finally:
            # An exception that is kept here would keep this frame, and with it the transaction.
            del failed[:], cause, interruption


def _outcome(value: T, commit: Committed | bool, stamp: Any, attempts: int, tr: Any) -> Outcome[T]:
    if commit is True:
        try:
            # Not get_committed_version(): some clients answer -1 for a commit that they found again.
            commit = Committed.from_versionstamp(bytes(stamp.value))
        except Exception as error:
            if fdb_error_code(error) is None:
                raise
            return Outcome(value, None, attempts)  # 2021: the transaction only read
    return Outcome(value, commit or None, attempts)


def _pause(tr: Any, code: int, attempt: int, deadline: float | None) -> None:
    if code in SERVER_PACED:
        try:
            tr.on_error(code).wait()
        except Exception as error:
            if fdb_error_code(error) is None:
                raise
    sleep_before(attempt + 1, deadline)


@overload
def transactional(fn: Callable[Concatenate[Any, P], T], /) -> Callable[Concatenate[Any, P], T]: ...
@overload
def transactional(
    *, parameter: str = "tr", strategy: StrategyName | None = None, timeout: float | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def transactional(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    parameter: str = "tr",
    strategy: StrategyName | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a function of a transaction callable with a database: then it runs until it committed, once.

    Given a `Database` where it expects a transaction (its argument `tr`, or the first one), the function runs in a
    new transaction by `run`; given a transaction, it is part of that one, so that such functions compose.
    """
    if fn is None:
        return functools.partial(_decorate, parameter=parameter, strategy=strategy, timeout=timeout)
    return _decorate(fn, parameter=parameter, strategy=strategy, timeout=timeout)


def _decorate(
    fn: Callable[..., Any], *, parameter: str, strategy: StrategyName | None, timeout: float | None
) -> Callable[..., Any]:
    plain = inspect.unwrap(fn)
    if any(
        later(plain) for later in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    ):
        raise BodyError(
            f"{name_of(fn)} can't be transactional: a generator or coroutine runs after its transaction is over"
        )
    names = [
        p.name
        for p in inspect.signature(plain).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if parameter in names:
        index = names.index(parameter)
    elif parameter == "tr" and names:
        index, parameter = 0, names[0]
    else:
        raise TypeError(f"{name_of(fn)} has no argument {parameter!r} for its transaction")

    def in_place(tr: Any, before: tuple[Any, ...], after: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*before, tr, *after, **kwargs)

    def by_name(tr: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **{parameter: tr}, **kwargs)

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) > index:
            target = args[index]
            if not hasattr(target, "create_transaction"):
                return fn(*args, **kwargs)
            if index == 0:
                return _until_committed(target, fn, args[1:], kwargs, None, strategy, timeout, None, False)
            return _until_committed(
                target, in_place, (args[:index], args[index + 1 :], kwargs), {}, None, strategy, timeout, None, False
            )
        target = kwargs.get(parameter)
        if target is None or not hasattr(target, "create_transaction"):
            return fn(*args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name != parameter}
        return _until_committed(target, by_name, (args, rest), {}, None, strategy, timeout, None, False)

    return wrapper
