"""`MemoizingPicklingRunner`: look for a memoized result, acquire, call the Shell; wait for whoever was first."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, Literal, ParamSpec, TypeVar, overload

from fdb_schema import BlobMissingError, check_name
from idempotent_txn import run
from lease_locks.grants.rows import read_name
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo import functions
from lease_locks.memo.bindings import memoizing
from lease_locks.memo.calling.cancelling import cancel
from lease_locks.memo.calling.found import Found, RequiredResultNotFound, Unmemoized
from lease_locks.memo.calling.keying import PLAIN, Keying, attributes, checked, hold_of
from lease_locks.memo.calling.memoized import Memoized, Way
from lease_locks.memo.calling.submitting import MemoFuture, Submissions, awaitable
from lease_locks.memo.config import MAINTAIN_LOCKS
from lease_locks.memo.counting import Counting
from lease_locks.memo.departing import Departures
from lease_locks.memo.orchestrator import InvocationCancelled, Orchestrator
from lease_locks.memo.pruning import forget
from lease_locks.memo.remote import IN_PROCESS, InProcess
from lease_locks.memo.rows import MemoKeys, MemoRows, publish
from lease_locks.memo.shells import Shell, subprocess_shell
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.payloads import fetch, store
from lease_locks.memo.stored.records import CANCELLED, FAILED, AttemptRecord, OutcomeRecord, decoded
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting import threads
from lease_locks.waiting.acquiring import acquiring
from lease_locks.waiting.claims import check_seconds, claim_of

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("lease_locks")
_BEGINNINGS: Final = 20
"""Of a call, where other threads bind names anew that its function uses, before it is called as it is."""


class MemoizingPicklingRunner(Orchestrator):
    """Calls of functions, each computed once for all who call it with equal arguments, by remotes that a Shell starts.

    Args:
        locks: where the locks and the memo live.
        shell: starts a remote; see `lease_locks.memo.shells`.
        pipeline_id: results are shared within one pipeline.
        rerun_exceptions: False also memoizes failures.
        on_awaited_error: what a caller does whose wait for another's invocation ends with a failure: "rerun" runs the
            function again, one after another; "share" raises the same exception.
        max_hold: seconds that an invocation may take, its wait for a place to run included; then its remote is cancelled,
            where the Shell offers `cancel`, its lock is free, and the call raises `InvocationTimedOut`.
        concurrent: how many calls of `submit` and `async_call` are made at once; None: as many as come.
    """

    def __init__(
        self,
        locks: LeaseManager,
        shell: Shell = subprocess_shell,
        pipeline_id: str = "default",
        rerun_exceptions: bool = True,
        on_awaited_error: Literal["rerun", "share"] = "rerun",
        max_hold: float | None = None,
        concurrent: int | None = None,
    ) -> None:
        check_name("pipeline_id", pipeline_id)
        if max_hold is not None:
            check_seconds("max_hold", max_hold)
        if on_awaited_error not in ("rerun", "share"):
            raise ValueError(f'on_awaited_error must be "rerun" or "share", not {on_awaited_error!r}')
        self.locks = locks
        self.shell = shell
        self.pipeline_id = pipeline_id
        self.rerun_exceptions = rerun_exceptions
        self.on_awaited_error = on_awaited_error
        self.max_hold = max_hold
        self._submissions = Submissions(concurrent)
        self.rows = MemoRows(locks.space)
        self._in_process_id = secrets.token_hex(16)
        self._in_process = IN_PROCESS[self._in_process_id] = InProcess(locks)
        self._counting = Counting(locks, self.rows)
        self._departures = Departures(locks, lambda: hasattr(shell, "attach"))
        self._required: list[str] = []  # of the blocks that are open, in all threads

    def __reduce__(self) -> tuple[Any, ...]:
        """A function that closes over its runner takes it along: in another process a runner over the same memo."""
        options = (
            self.pipeline_id,
            self.rerun_exceptions,
            self.on_awaited_error,
            self.max_hold,
            self._submissions.most,
        )
        return MemoizingPicklingRunner, (self.locks, self.shell, *options)

    def __memo_key__(self) -> tuple[Any, ...]:
        return self.locks, self.pipeline_id

    # --- calling

    @overload
    def memoize(self, function: Callable[P, T], /) -> Memoized[P, T]: ...
    @overload
    def memoize(
        self,
        /,
        *,
        max_hold: float | None = None,
        source: bool = False,
        calls: Iterable[Callable[..., Any]] = (),
        ignore: Iterable[str] = (),
        key: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, T]], Memoized[P, T]]: ...
    def memoize(self, function: Any = None, /, *, max_hold: float | None = None, **known_by: Any) -> Any:
        """`@runner.memoize`, `@runner.memoize(ignore=["log"])`: calls of the function go through the runner.

        Args:
            max_hold: seconds that an invocation may take, instead of the runner's.
            source: the function's code counts, too, where it is known by its name.
            calls: functions and classes whose code counts, too.
            ignore: names of parameters that don't count.
            key: a function of the same arguments; what it returns counts instead of them.
        """
        if function is None:
            return functools.partial(self.memoize, max_hold=max_hold, **known_by)
        functions.check_memoizable(function)
        keying = checked(function, **known_by)
        if max_hold is not None:
            check_seconds("max_hold", max_hold)
        call = self.call if max_hold is None and keying is PLAIN else functools.partial(self._call, max_hold, keying)
        ways = {"submit": self._submit, "peek": self._peek, "async_call": self._async_call}
        named = {name: Way(functools.partial(way, max_hold, keying), function) for name, way in ways.items()}
        return memoizing(call, function, {**named, **attributes(keying, max_hold)})

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The function's value for these arguments: memoized, awaited or computed now. Raises what it raises."""
        return self._call(None, PLAIN, function, *args, **kwargs)

    def _call(
        self, max_hold: float | None, keying: Keying, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        limit = hold_of(function) if max_hold is None else max_hold
        limit = self.max_hold if limit is None else limit
        for _ in range(_BEGINNINGS):
            with contextlib.suppress(functions.ReboundError):
                return self._made(functions.bind(self.pipeline_id, function, args, kwargs, keying), limit)
        # What binds it never ends, as the function's own code where nobody can see it: it is called as it is.
        return self._made(functions.bind(self.pipeline_id, function, args, kwargs, keying).as_it_is(), limit)

    def _made(self, call: functions.Call, max_hold: float | None) -> Any:
        waited = False
        found: Found | tuple[Lease, tuple[FencingToken, ...]] | None = None
        try:
            while True:
                found = self._look_or_acquire(call, max_hold)
                if isinstance(found, Found):
                    kind = "awaited" if waited or found.awaited else "hit"
                    outcome: OutcomeRecord | None = found.outcome
                else:
                    kind, outcome = "", self._execute(call, *found)
                opened = None if outcome is None else self._open(outcome, call.memo)
                if opened is not None:
                    if kind:
                        self._counting.add(call.memo, kind)
                    return opened()
                waited = outcome is None  # the lock was lost to another, whose outcome is awaited
        except BaseException as error:
            if isinstance(found, tuple) and not isinstance(error, Exception):
                self._give_back(found[0])  # interrupted before it was used; nothing where it was left to a remote
            raise

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> MemoFuture:
        """`call` in a thread of its own, with this one's context (`MAINTAIN_LOCKS.set_local`), where the runner's `concurrent` lets it."""
        return self._submit(None, PLAIN, function, *args, **kwargs)

    def _submit(
        self, max_hold: float | None, keying: Keying, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> MemoFuture:
        memo = functions.bind(self.pipeline_id, function, args, kwargs, keying).memo
        future = MemoFuture(memo.uri, functools.partial(self._cancel, memo))
        call = functools.partial(self._call, max_hold, keying, function, *args, **kwargs)
        self._submissions.begin(future, call, f"memo-{memo.digest.hex()[:8]}")
        return future

    async def async_call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`await runner.async_call(fn, …)`: `call` in a thread, as `submit`; the event loop goes on.

        A task that is cancelled while it waits leaves the invocation, as whoever is interrupted: its result is found by the next
        call. One that had no place yet isn't begun.
        """
        return await self._async_call(None, PLAIN, function, *args, **kwargs)

    async def _async_call(
        self, max_hold: float | None, keying: Keying, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        future: Future[Any] = Future()
        call = functools.partial(self._call, max_hold, keying, function, *args, **kwargs)
        self._submissions.begin(future, awaitable(call), "memo-async")
        return await asyncio.wrap_future(future)

    def cancel(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
        """End an invocation that is being computed, by whomever: its remote, where the Shell offers `cancel`, and its lock.

        Whoever waits for it gets `InvocationCancelled`. False where nobody computes it.
        """
        return self._cancel(functions.bind(self.pipeline_id, function, args, kwargs).memo)

    def _cancel(self, memo: Memo) -> bool:
        attempts = cancel(self.locks, memo)
        for attempt in attempts:
            self._cancel_remote(memo, attempt.handle)
        return bool(attempts)

    def peek(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The memoized value, or `Unmemoized` (which is false) without calling anything."""
        return self._peek(None, PLAIN, function, *args, **kwargs)

    def _peek(
        self, max_hold: float | None, keying: Keying, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        call = functions.bind(self.pipeline_id, function, args, kwargs, keying)
        opened = None
        while opened is None:
            outcome = run(self.locks.db, self._memoized, self.rows.keys(call.memo), strategy=IDEMPOTENT)
            if outcome is None:
                invoke = functools.partial(self._call, max_hold, keying, function, *args, **kwargs)
                return Unmemoized(call.memo.uri, invoke)
            opened = self._open(outcome, call.memo)
        return opened()

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
        if isinstance(found, Found):
            return False
        lease, _ = found
        session, what = self.locks.session, f"the injected result of {call.memo}"
        try:
            payload = store(session, functions.dump_value(value, what), what)
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

        Returns how many invocations were forgotten. One that runs now publishes its result afterwards. Without arguments,
        those of a script's function include every version of its code, and functions of its name in other scripts.
        """
        if args or kwargs:
            memos = [functions.bind(self.pipeline_id, function, args, kwargs).memo]
        else:
            name = functions.function_name(function)
            memos = [memo for memo, _ in self.rows.scan(self.locks.db, self.pipeline_id, name)]
        return sum(forget(self.locks, self.rows, memo) for memo in memos)

    # --- looking and waiting

    def _memoized(self, tr: Any, keys: MemoKeys) -> OutcomeRecord | None:
        key = keys.result
        data = tr.get(key).value
        if data is None and not self.rerun_exceptions:
            key = keys.failure
            data = tr.get(key).value
        return None if data is None else decoded(OutcomeRecord, keys.memo, key, data)

    def _look_or_acquire(
        self, call: functions.Call, max_hold: float | None = None
    ) -> Found | tuple[Lease, tuple[FencingToken, ...]]:
        """A look for the result; then one transaction looks again and acquires. Where the lock is another's, wait for either."""
        locks, keys = self.locks, self.rows.keys(call.memo)
        locks.session.assert_open()
        known = run(locks.db, self._memoized, keys, strategy=IDEMPOTENT)
        if known is not None:
            return Found(known, awaited=False)
        lock = locks.space.lock(call.memo.lock_name)
        waited_for: list[FencingToken] = []
        looks = 0
        wake: bytes | None = None

        def look(tr: Any) -> Any:
            nonlocal looks, wake
            looks += 1
            outcome = self._memoized(tr, keys)
            if outcome is not None:
                return Found(outcome, awaited=bool(waited_for))
            if required := self._required[-1:]:
                raise RequiredResultNotFound(f"{required[0]}: {call.memo.uri} has no memoized result")
            if looks > 1:
                wake = tr.get(keys.wake).value
                for token in waited_for:
                    attempt = AttemptRecord.found(tr.get(keys.attempt(bytes(token))).value) or AttemptRecord("")
                    if attempt.state == CANCELLED:
                        raise InvocationCancelled(f"{call.memo.uri} was cancelled: {attempt.note}")
                    if self.on_awaited_error == "share" and attempt.state == FAILED and attempt.failure is not None:
                        return Found(attempt.failure, awaited=True)
            holders = read_name(tr, lock).grants
            if holders and holders[0].token not in waited_for:
                waited_for.append(holders[0].token)
            return None

        claim = claim_of(
            locks.session, max_hold=max_hold, meta={"memo": call.memo.uri}, maintained=MAINTAIN_LOCKS(), adopt=True
        )
        locks.session.start()
        steps = acquiring(locks.session, lock, claim, None, look=look, also_watch=lambda: ((keys.wake, wake),))
        found: Any = threads.claimed(locks.session, lock, claim, steps)
        return found  # type: ignore[no-any-return]

    # --- outcomes

    def _open(self, outcome: OutcomeRecord, memo: Memo) -> Callable[[], Any] | None:
        """What returns the value, or raises the failure; None where it was forgotten since it was looked up."""
        try:
            data = fetch(self.locks.db, self.locks.space, outcome.payload, memo)
        except BlobMissingError:
            if run(self.locks.db, self._memoized, self.rows.keys(memo), strategy=IDEMPOTENT) == outcome:
                raise
            return None
        return functools.partial(self._opened, outcome, data, memo)

    def _opened(self, outcome: OutcomeRecord, data: bytes, memo: Memo) -> Any:
        if outcome.error:
            raise functions.load_failure(data, outcome.error, outcome.traceback)
        return functions.load_value(data, memo.uri)

    def flush(self) -> None:
        """Write the counts of calls now; they are also written every second and at exit."""
        self._counting.flush()
