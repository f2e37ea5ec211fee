"""The orchestrator's side of an invocation that is to be computed: invoke or adopt, wait, settle, release."""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import Future
from typing import Any, Final

from fdb_schema.serving.processes import signal_name
from idempotent_txn import run
from lease_locks.errors import LeaseError, LeaseLost
from lease_locks.grants.joining import unadopt
from lease_locks.grants.rows import read_grant
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo import functions
from lease_locks.memo.counting import MICROSECONDS, Counting
from lease_locks.memo.departing import Departures
from lease_locks.memo.remote import InProcess
from lease_locks.memo.rows import MemoKeys, MemoRows, change_attempt, invoke, note_attempt
from lease_locks.memo.shells import Shell
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.payloads import referring, store
from lease_locks.memo.stored.records import (
    CANCELLED,
    FAILED,
    GONE,
    PENDING,
    STARTED,
    STOLEN,
    TIME_OVER,
    AttemptRecord,
    InvocationRecord,
    OutcomeRecord,
    Payload,
    decoded,
)
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting.pausing import REFUSED_LOOK_SECONDS, watch_rang

log = logging.getLogger("lease_locks")

_FOLLOW_SECONDS: Final = 0.1
_REREAD_SECONDS: Final = 15.0  # in case a watch was lost


class NoResultAfterShell(LeaseError):
    """The Shell exited, and its remote had published neither a result nor a failure."""


class InvocationTimedOut(LeaseError, TimeoutError):
    """An invocation ran for its `max_hold`: its remote was cancelled, and its lock is free."""


class InvocationCancelled(LeaseError):
    """An invocation was cancelled by `runner.cancel` or its Future's `cancel`."""


class Orchestrator:
    """Has invocations computed by remotes that its Shell starts, each under a lease that its caller acquired."""

    locks: LeaseManager
    rows: MemoRows
    shell: Shell
    pipeline_id: str
    _counting: Counting
    _in_process: InProcess
    _in_process_id: str
    _departures: Departures

    @property
    def run_id(self) -> str:
        """The name under which this process's calls are counted; see `lease-locks runs`."""
        return self._counting.run_id

    def _execute(self, call: functions.Call, lease: Lease, adopts: tuple[FencingToken, ...]) -> OutcomeRecord | None:
        """Have the invocation computed under `lease`; None where the lock was lost and another's outcome is to be awaited."""
        keys = self.rows.keys(call.memo)
        began = self.locks.session.clocks.monotonic()
        self._departures.begin(keys, lease)
        try:
            try:
                future = self._adopt(keys, lease, adopts) if adopts else None
                if future is None:
                    future = self._invoke(call, keys, lease)
            except LeaseLost as lost:
                # How it ended in the database says nothing of the limit: its own clock had ended it before.
                if "max_hold" in (lost.reason, lease.lost_reason):
                    raise self._timed_out(keys, lease) from lost
                self._check_cancelled(keys, lease)
                return None  # lost before the Shell was called
            except functions.ReboundError:
                raise  # before the Shell was called, too
            except BaseException as error:
                # It can't be known whether the Shell started a remote: one that joined, or is to be adopted, keeps the lock.
                if not self._departures.leave(keys, lease):
                    self._note(keys, lease, state=GONE, note=f"the Shell raised {error!r}"[:400])
                raise
            try:
                shell_error = self._wait(keys, lease, future)
            except BaseException:
                self._departures.leave(keys, lease)  # whatever ends this wait doesn't end the remote
                raise
            outcome = self._settle(call, keys, lease, adopts, shell_error)
            if outcome is not None:
                took = self.locks.session.clocks.monotonic() - began
                self._counting.add(call.memo, MICROSECONDS, max(1, round(took * 1e6)))
            return outcome
        finally:
            self._departures.end(lease)
            self._in_process.calls.pop(call.memo.digest, None)
            self._give_back(lease)

    @property
    def _shell_name(self) -> str:
        return getattr(self.shell, "__name__", None) or type(self.shell).__name__

    def _invoke(self, call: functions.Call, keys: MemoKeys, lease: Lease) -> Future[Any] | None:
        session = self.locks.session
        wall = session.clocks.wall_us()
        data = call.dump()
        attempt = AttemptRecord(PENDING, shell=self._shell_name, invoked_us=wall, run=self.run_id)
        lock = self.locks.space.lock(lease.name)

        def stored() -> Payload:
            return store(session, data, f"the arguments of {call.memo}")

        def invoked(payload: Payload) -> None:
            invocation = InvocationRecord(payload, call.shown(), wall, session.by)

            def body(tr: Any) -> None:
                self.rows.open(tr)
                invoke(tr, session, keys, lock, lease.token, invocation, attempt)

            run(self.locks.db, body, strategy=IDEMPOTENT)

        referring(invoked, stored(), stored)
        self._counting.add(call.memo, "executed", flush=True)
        args = [
            call.memo.uri,
            f"--writer-id={lease.writer_id}",
            f"--db={self.locks.url or ''}",
            f"--cluster={self.locks.cluster}",
            f"--cluster-id={(session.identity or b'').hex()}",
            f"--ttl={self.locks.ttl:g}",
            f"--pipeline-id={self.pipeline_id}",
            f"--invoked-at={wall}",
            f"--invoked-by={session.by}",
            f"--in-process={self._in_process_id}",
        ]
        self._in_process.calls[call.memo.digest] = call
        self._cancel_earlier(keys, lease)
        future = self.shell(args)
        if future is not None and not hasattr(future, "add_done_callback"):
            raise TypeError(
                f"the Shell {self._shell_name} returned a {type(future).__name__}: a Shell returns None once its remote has "
                f"exited, or a Future that ends when it does"
            )
        handle = getattr(future, "handle", None)
        if handle:
            self._note(keys, lease, handle=str(handle))
        return future

    def _cancel_earlier(self, keys: MemoKeys, lease: Lease) -> None:
        """A remote that started under a lock which it has lost since (to its time limit, to a person) runs for nobody: end it."""
        if not hasattr(self.shell, "cancel"):
            return

        def handles(tr: Any) -> list[str]:
            rows = tr.snapshot.get_range(keys.attempts, keys.attempt(bytes(lease.token)))
            found = [AttemptRecord.found(row.value) or AttemptRecord("") for row in rows]
            running = [a for a in found if a.handle and (a.state in (STARTED, CANCELLED) or a.note == TIME_OVER)]
            return [a.handle for a in running if a.shell == self._shell_name]

        for handle in run(self.locks.db, handles, strategy=IDEMPOTENT):
            self._cancel_remote(keys.memo, handle)

    def _cancel_remote(self, memo: Memo, handle: str) -> str:
        """End the remote by its Shell; what became of it, for people. Why a Shell failed to is told to the log only."""
        cancel = getattr(self.shell, "cancel", None)
        if handle and cancel is not None:
            try:
                # one whose time is over ends itself, too, if it is a process of its own
                return "its remote had ended" if cancel(handle) is False else "its remote was cancelled"
            except Exception as error:
                log.warning("the remote of %s can't be cancelled: %s", memo, error)
        return "its remote can't be cancelled by its Shell, and may run on"

    def _timed_out(self, keys: MemoKeys, lease: Lease) -> InvocationTimedOut:
        attempt = run(self.locks.db, change_attempt, keys, lease.token, strategy=IDEMPOTENT)
        what = self._cancel_remote(keys.memo, attempt.handle)
        self._note(keys, lease, state=GONE, note=f"it ran for its max_hold; {what}")
        self._give_back(lease)
        return InvocationTimedOut(f"{keys.memo.uri} ran for its max_hold; {what}")

    def _check_cancelled(self, keys: MemoKeys, lease: Lease) -> None:
        """Raises `InvocationCancelled` where it was before the Shell was called: then nobody computes it."""
        key = keys.attempt(bytes(lease.token))
        attempt = AttemptRecord.found(run(self.locks.db, lambda tr: tr.get(key).value, strategy=IDEMPOTENT))
        if attempt is not None and attempt.state == CANCELLED:
            raise InvocationCancelled(f"{keys.memo.uri} was cancelled: {attempt.note}")

    def _adopt(self, keys: MemoKeys, lease: Lease, adopts: tuple[FencingToken, ...]) -> Future[Any] | None:
        """Take on the pending remote of a dead orchestrator; None where there is none and a Shell must be called."""
        attach = getattr(self.shell, "attach", None)
        for token in reversed(adopts):
            data = run(
                self.locks.db, lambda tr, token=token: tr.get(keys.attempt(bytes(token))).value, strategy=IDEMPOTENT
            )
            attempt = AttemptRecord.found(data)
            if attempt is None or not attempt.handle or attach is None or attempt.shell != self._shell_name:
                continue  # a handle means something only to the Shell that made it
            future: Future[Any] | None = attach(attempt.handle)
            if future is not None:
                log.info("%s: the remote of writer %s is adopted", keys.memo, token.hex)
                self._note_of(keys, token, adopted_by=bytes(lease.token))
                note = f"adopted the remote of {token.hex}"  # in the first row of this attempt
                run(
                    self.locks.db,
                    change_attempt,
                    keys,
                    lease.token,
                    strategy=IDEMPOTENT,
                    handle=attempt.handle,
                    note=note,
                )
                return future
        lock = self.locks.space.lock(lease.name)
        if run(self.locks.db, unadopt, lock, lease.token, strategy=IDEMPOTENT):
            return None
        for token in adopts:
            self._note_of(keys, token, adopted_by=bytes(lease.token))
        return self._until_free(keys, lease)  # it joined while we looked: it runs

    def _until_free(self, keys: MemoKeys, lease: Lease) -> Future[Any]:
        """A Future for a remote that joined and can't be followed: ends when it frees the lock, or is dead."""
        future: Future[Any] = Future()
        locks = self.locks
        lock = locks.space.lock(keys.memo.lock_name)

        def runs(tr: Any) -> bool:
            grant = read_grant(tr, lock, lease.token, snapshot=True)
            joined = [] if grant is None else [sid for sid, _ in grant.joins if sid != locks.session.sid]
            return any(locks.session_dead(tr, sid) is None for sid in joined)

        def work() -> None:
            try:
                # Twice: this thread may have been stopped between its reads and the verdict, and only read.
                while run(locks.db, runs, strategy=IDEMPOTENT) or run(locks.db, runs, strategy=IDEMPOTENT):
                    time.sleep(_FOLLOW_SECONDS)
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="memo-follow", daemon=True).start()
        return future

    def _wait(self, keys: MemoKeys, lease: Lease, future: Future[Any] | None) -> BaseException | str | None:
        """Until the Shell exits, or the outcome is there; what the Shell raised, or how it says the remote exited.

        Raises `InvocationTimedOut` at the end of the lease's `max_hold`.
        """
        if future is None:
            self._note(keys, lease, shell_exit_us=self.locks.session.clocks.wall_us())
            return None
        changed = threading.Event()
        future.add_done_callback(lambda _: changed.set())
        lease.on_lost(lambda _: changed.set())

        def look(tr: Any) -> Any:
            record = AttemptRecord.found(tr.get(keys.attempt(bytes(lease.token))).value)
            over = tr.get(keys.result).present() or (record is not None and record.state in (FAILED, STOLEN, CANCELLED))
            return over, None if over else tr.watch(keys.wake)

        refused = threading.Event()

        def ring(watch: Any) -> None:
            if not watch_rang(watch):
                refused.set()
            changed.set()

        while not future.done():
            changed.clear()
            over, watch = run(self.locks.db, look, strategy=IDEMPOTENT)
            if over:
                break  # the remote freed the lock with its outcome; its exit is only a matter of moments
            try:
                if lease.lost_reason == "max_hold" and not future.done():
                    raise self._timed_out(keys, lease)
                watch.on_ready(ring)
                if not future.done():
                    changed.wait(_REREAD_SECONDS * (0.8 + 0.4 * random.random()))
                if refused.is_set():
                    refused.clear()
                    changed.clear()
                    if not future.done():
                        changed.wait(REFUSED_LOOK_SECONDS)
            finally:
                watch.cancel()
        if not future.done():
            future.add_done_callback(lambda _: self._note_exit(keys, lease))
            return None
        self._note_exit(keys, lease)
        if future.cancelled():
            return "cancelled"
        return future.exception() or _exit(future.result())

    def _note_exit(self, keys: MemoKeys, lease: Lease) -> None:
        try:
            self._note(keys, lease, shell_exit_us=self.locks.session.clocks.wall_us())
        except Exception as error:
            log.debug("the exit of the Shell of %s was not recorded: %s", keys.memo, error)

    def _settle(
        self,
        call: functions.Call,
        keys: MemoKeys,
        lease: Lease,
        adopts: tuple[FencingToken, ...],
        shell_error: BaseException | str | None,
    ) -> OutcomeRecord | None:
        def read(tr: Any) -> tuple[bytes | None, list[bytes | None]]:
            tokens = [lease.token, *adopts]
            return tr.get(keys.result).value, [tr.get(keys.attempt(bytes(token))).value for token in tokens]

        result, attempts = run(self.locks.db, read, strategy=IDEMPOTENT)
        if result is not None:
            return decoded(OutcomeRecord, call.memo, keys.result, result)
        mine = bytes(lease.token)
        found = [AttemptRecord.found(data) for data in attempts]
        records = [r for n, r in enumerate(found) if r is not None and (n == 0 or r.adopted_by == mine)]
        if any(record.state == CANCELLED for record in records):
            raise self._cancelled(call.memo, records)
        self._refuse_late(keys, lease, found[0])
        for record in records:
            if record.state == FAILED and record.failure is not None:
                self._counting.add(call.memo, "failed")
                return record.failure
        if any(record.state == STOLEN for record in records) or not self._still_ours(lease):
            if lease.lost_reason == "max_hold":
                raise self._timed_out(keys, lease)
            return None
        if any(record.adopted_by for record in records):
            return None  # the adopted remote ended without an outcome: look again, and call a Shell this time
        self._note(keys, lease, state=GONE, note=f"no outcome; the Shell said {shell_error!r}"[:400])
        if isinstance(shell_error, BaseException):
            raise shell_error
        raise NoResultAfterShell(
            f"the Shell of {call.memo.uri} exited{f' ({shell_error})' if shell_error else ''} and its remote published "
            f"nothing: see its output, and `lease-locks inspect {call.memo.uri}`"
        )

    def _refuse_late(self, keys: MemoKeys, lease: Lease, own: AttemptRecord | None) -> None:
        """Raises where the time of this very grant is over by the remote's own clock; that of one it was adopted from is no matter."""
        if own is not None and own.state == GONE and own.note == TIME_OVER:
            raise self._timed_out(keys, lease)

    def _cancelled(self, memo: Memo, records: list[AttemptRecord]) -> InvocationCancelled:
        """End its remote as well: whoever cancelled it may not have its Shell."""
        for handle in {record.handle for record in records}:
            self._cancel_remote(memo, handle)
        return InvocationCancelled(f"{memo.uri} was cancelled: {records[0].note}")

    def _still_ours(self, lease: Lease) -> bool:
        lock = self.locks.space.lock(lease.name)
        return bool(run(self.locks.db, lambda tr: tr.get(lock.holder(lease.token)).present(), strategy=IDEMPOTENT))

    def _note(self, keys: MemoKeys, lease: Lease, **changes: Any) -> None:
        self._note_of(keys, lease.token, **changes)

    def _note_of(self, keys: MemoKeys, token: FencingToken, **changes: Any) -> None:
        run(self.locks.db, note_attempt, keys, token, strategy=IDEMPOTENT, **changes)

    def _give_back(self, lease: Lease) -> None:
        """The Shell has exited, well or not: release at once. The remote may have freed the lock, or another hold it."""
        try:
            lease.release()
        except LeaseLost as error:
            log.info("%s", error)


def _exit(code: Any) -> str | None:
    """What a Shell's exit code says of the remote."""
    if not isinstance(code, int) or isinstance(code, bool):
        return None
    if code >= 0:
        return f"its remote's exit code is {code}"
    return f"its remote died of signal {-code}, {signal_name(-code)}"
