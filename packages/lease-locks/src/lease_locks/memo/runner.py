"""`MemoizingPicklingRunner`: look for a memoized result, acquire, call the Shell; wait for whoever was first."""

from __future__ import annotations

import functools
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

from idempotent_txn import run
from lease_locks.acquiring import acquiring
from lease_locks.errors import LeaseError
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo import functions
from lease_locks.memo.config import MAINTAIN_LOCKS
from lease_locks.memo.counting import Counting
from lease_locks.memo.departing import Departures
from lease_locks.memo.orchestrator import Orchestrator
from lease_locks.memo.remote import IN_PROCESS, InProcess
from lease_locks.memo.rows import (
    FAILED,
    AttemptRecord,
    Memo,
    MemoKeys,
    MemoRows,
    OutcomeRecord,
    collect,
    fetch,
    invalidate,
    publish,
    store,
)
from lease_locks.memo.shells import Shell, subprocess_shell
from lease_locks.rows import read_name
from lease_locks.session import IDEMPOTENT
from lease_locks.tokens import FencingToken

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("lease_locks")

_LOOK_SECONDS = 0.1


class RequiredResultNotFound(LeaseError, LookupError):
    """Inside `require_all`, a call had no memoized result."""


@dataclass(frozen=True, slots=True)
class Unmemoized:
    """What `peek` returns for a call without a result; false in a condition."""

    memo_uri: str
    invoke: Callable[[], Any]

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Found:
    """An outcome that is there: a memoized one, or that of the attempt which was awaited."""

    outcome: OutcomeRecord
    awaited: bool


class MemoizingPicklingRunner(Orchestrator):
    """Calls of functions, each computed once for all who call it with equal arguments, by remotes that a Shell starts.

    Args:
        locks: where the locks and the memo live.
        shell: starts a remote; see `lease_locks.memo.shells`.
        pipeline_id: results are shared within one pipeline.
        rerun_exceptions: False also memoizes failures.
        on_awaited_error: what a caller does whose wait for another's invocation ends with a failure: "rerun" runs the
            function again, one after another; "share" raises the same exception.
    """

    def __init__(
        self,
        locks: LeaseManager,
        shell: Shell = subprocess_shell,
        pipeline_id: str = "default",
        rerun_exceptions: bool = True,
        on_awaited_error: Literal["rerun", "share"] = "rerun",
    ) -> None:
        if on_awaited_error not in ("rerun", "share"):
            raise ValueError(f'on_awaited_error must be "rerun" or "share", not {on_awaited_error!r}')
        self.locks = locks
        self.shell = shell
        self.pipeline_id = pipeline_id
        self.rerun_exceptions = rerun_exceptions
        self.on_awaited_error = on_awaited_error
        self.rows = MemoRows(locks.space)
        self._in_process_id = secrets.token_hex(16)
        self._in_process = IN_PROCESS[self._in_process_id] = InProcess(locks)
        self._counting = Counting(locks, self.rows)
        self._departures = Departures(locks, lambda: hasattr(shell, "attach"))
        self._required: list[str] = []  # of the blocks that are open, in all threads

    def __reduce__(self) -> tuple[Any, ...]:
        """A function that closes over its runner takes it along: in another process a runner over the same memo."""
        options = (self.pipeline_id, self.rerun_exceptions, self.on_awaited_error)
        return MemoizingPicklingRunner, (self.locks, self.shell, *options)

    # --- calling

    def memoize(self, function: Callable[P, T]) -> Callable[P, T]:
        """`@runner.memoize`: calls of the function go through the runner."""

        @functools.wraps(function)
        def memoized(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T = self.call(function, *args, **kwargs)
            return result

        return memoized

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The function's value for these arguments: memoized, awaited or computed now. Raises what it raises."""
        call = functions.bind(self.pipeline_id, function, args, kwargs)
        waited = False
        while True:
            found = self._look_or_acquire(call)
            if isinstance(found, _Found):
                kind = "awaited" if waited or found.awaited else "hit"
                self._counting.add(call.memo, kind)
                return self._open(found.outcome)
            outcome = self._execute(call, *found)
            if outcome is not None:
                return self._open(outcome)
            waited = True  # the lock was lost to another, whose outcome is awaited

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """`call` in a thread of its own; the Future also has `memo_uri`."""
        call = functions.bind(self.pipeline_id, function, args, kwargs)
        future: Future[Any] = Future()
        future.memo_uri = call.memo.uri  # type: ignore[attr-defined]

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.call(function, *args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name=f"memo-{call.memo.digest.hex()[:8]}", daemon=True).start()
        return future

    def peek(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The memoized value, or `Unmemoized` (which is false) without calling anything."""
        call = functions.bind(self.pipeline_id, function, args, kwargs)
        outcome = run(self.locks.db, self._memoized, self.rows.keys(call.memo), strategy=IDEMPOTENT)
        if outcome is None:
            return Unmemoized(call.memo.uri, functools.partial(self.call, function, *args, **kwargs))
        return self._open(outcome)

    @contextmanager
    def require_all(self, message: str = "", *, unless_env: str = "") -> Iterator[None]:
        """Within the block a call without a memoized result raises `RequiredResultNotFound`, in every thread.

        `unless_env`: an environment variable that switches this off where it is set.
        """
        if unless_env and os.environ.get(unless_env):
            yield
            return
        said = message or "every result must be memoized here"
        self._required.append(said)
        try:
            yield
        finally:
            self._required.remove(said)

    def inject(
        self, function: Callable[..., Any], args: tuple[Any, ...], value: Any, kwargs: dict[str, Any] | None = None
    ) -> bool:
        """Make `value` the memoized result of a call, under its lock; False where there is one already."""
        call = functions.bind(self.pipeline_id, function, args, kwargs or {})
        found = self._look_or_acquire(call)
        if isinstance(found, _Found):
            return False
        lease, _ = found
        session = self.locks._session
        try:
            payload = store(session, functions.dump_value(value), f"the injected result of {call.memo}")
            outcome = OutcomeRecord(payload, bytes(lease.token), session.clocks.wall_us(), session.by, injected=True)
            keys = self.rows.keys(call.memo)
            wall = session.clocks.wall_us()
            return bool(
                run(
                    self.locks.db,
                    publish,
                    session,
                    keys,
                    self.locks.space.lock(call.memo.lock_name),
                    lease.token,
                    lease.token,
                    outcome,
                    wall,
                    strategy=IDEMPOTENT,
                )
            )
        finally:
            self._give_back(lease)

    def invalidate(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """Forget the memoized outcome of a call, or of every call of the function where no arguments are given.

        Returns how many invocations were forgotten. One that runs now publishes its result afterwards.
        """
        if args or kwargs:
            memos = [functions.bind(self.pipeline_id, function, args, kwargs).memo]
        else:
            name = functions.function_name(function)
            memos = [memo for memo, _ in self.rows.scan(self.locks.db, self.pipeline_id, name)]
        return sum(forget(self.locks, self.rows, memo) for memo in memos)

    # --- looking and waiting

    def _memoized(self, tr: Any, keys: MemoKeys) -> OutcomeRecord | None:
        data = tr.get(keys.result).value
        if data is None and not self.rerun_exceptions:
            data = tr.get(keys.failure).value
        return None if data is None else OutcomeRecord.decode(data)

    def _look_or_acquire(self, call: functions.Call) -> _Found | tuple[Lease, tuple[FencingToken, ...]]:
        """One transaction looks for the result and acquires; where the lock is another's, wait for either."""
        locks, keys = self.locks, self.rows.keys(call.memo)
        lock = locks.space.lock(call.memo.lock_name)
        waited_for: list[FencingToken] = []
        looks = 0
        wake: bytes | None = None

        def look(tr: Any) -> Any:
            nonlocal looks, wake
            looks += 1
            outcome = self._memoized(tr, keys)
            if outcome is not None:
                return _Found(outcome, awaited=bool(waited_for))
            if required := self._required[-1:]:
                raise RequiredResultNotFound(f"{required[0]}: {call.memo.uri} has no memoized result")
            if looks > 1:
                wake = tr.get(keys.wake).value
                for token in waited_for if self.on_awaited_error == "share" else ():
                    data = tr.get(keys.attempt(bytes(token))).value
                    attempt = None if data is None else AttemptRecord.decode(data)
                    if attempt is not None and attempt.state == FAILED and attempt.failure is not None:
                        return _Found(attempt.failure, awaited=True)
            holders = read_name(tr, lock).grants
            if holders and holders[0].token not in waited_for:
                waited_for.append(holders[0].token)
            return None

        claim = locks._claim(
            None, "exclusive", 1, True, None, {"memo": call.memo.uri}, maintained=MAINTAIN_LOCKS(), adopt=True
        )
        locks._session.start()
        found: Any = locks._drive(
            acquiring(locks._session, lock, claim, None, look=look, also_watch=lambda: ((keys.wake, wake),))
        )
        return found  # type: ignore[no-any-return]

    # --- outcomes

    def _open(self, outcome: OutcomeRecord) -> Any:
        data = fetch(self.locks.db, self.locks.space, outcome.payload)
        if outcome.error:
            raise functions.load_failure(data, outcome.error, outcome.traceback)
        return functions.load_value(data)

    def flush(self) -> None:
        """Write the counts of calls now; they are also written every second and at exit."""
        self._counting.flush()


def forget(locks: LeaseManager, rows: MemoRows, memo: Memo) -> bool:
    """Invalidate one invocation; whether there was anything."""
    keys = rows.keys(memo)

    def body(tr: Any) -> tuple[bool, list[bytes]]:
        known = tr.get(keys.invocation).present() or tr.get(keys.result).present() or tr.get(keys.failure).present()
        return known, invalidate(tr, locks.space, keys)

    known, blobs = run(locks.db, body)  # with an idempotency id: which blobs it let go of can't be found out again
    collect(locks.db, locks.space, blobs)
    return known
