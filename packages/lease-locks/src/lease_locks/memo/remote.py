"""The remote's side of an invocation: join early or not at all, run the function, publish and free the lock at once.

`python -m lease_locks.memo MEMO_URI --db=URL --cluster=NAME --writer-id=ID [--ttl=S]`

Exit codes: 0 published, 1 the function failed (and its failure is published), 2 wrong arguments, 47 the lock was stolen
before it started.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fdb_schema import MainspringError, fdb_error_code
from fdb_schema.errors import EXIT_FAILED, EXIT_LOCK_STOLEN, EXIT_OK, EXIT_USAGE
from idempotent_txn import run
from lease_locks.errors import CannotMaintainLock, LockWasStolenError
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager, reach
from lease_locks.memo import functions
from lease_locks.memo.calling.cancelling import end_when_cancelled
from lease_locks.memo.canonical import MemoKeyError
from lease_locks.memo.rows import MemoKeys, MemoRows, change_attempt, publish
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.payloads import fetch, referring, store
from lease_locks.memo.stored.records import PENDING, STARTED, STOLEN, InvocationRecord, OutcomeRecord, Payload, decoded
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting.remotes import join

log = logging.getLogger("lease_locks")


@dataclass(eq=False)
class InProcess:
    """What a remote that runs inside its orchestrator's process uses of it."""

    locks: LeaseManager
    calls: dict[bytes, functions.Call] = field(default_factory=dict)  # by their memo's digest


IN_PROCESS: Final[weakref.WeakValueDictionary[str, InProcess]] = weakref.WeakValueDictionary()
"""Runners of this process by a random id, for Shells that run the remote inside it."""

Options = dict[str, str]


def parse(args: Sequence[str]) -> tuple[Memo, Options]:
    """(memo, options) of a remote's arguments; options it doesn't know are kept and ignored."""
    if not args:
        raise CannotMaintainLock("a remote is given a memo URI and options")
    options: Options = {}
    for arg in args[1:]:
        name, equals, value = arg.partition("=")
        if not equals or not name.startswith("--"):
            raise CannotMaintainLock(f"a remote's option has the form --name=value, not {arg!r:.80}")
        options[name[2:]] = value
    if "writer-id" not in options:
        raise CannotMaintainLock("a remote needs --writer-id: the writer id of the lock it may run under")
    return Memo.from_uri(args[0]), options


def main(args: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run one invocation; returns the exit code. Raises nothing of the function's.

    `own_process`: nothing else runs in this process, which ends when the invocation is cancelled.
    """
    given = list(sys.argv[1:] if args is None else args)
    try:
        memo, options = parse(given)
        token = FencingToken.from_hex(options["writer-id"])
    except (CannotMaintainLock, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    local = IN_PROCESS.get(options.get("in-process", ""))
    if local is not None:
        return _run(local.locks, memo, token, local.calls.get(memo.digest))
    url = options.get("db", "")
    if not url or url.startswith("memory:"):
        print(
            f"error: no other process can open the orchestrator's database ({url or 'its URL is unknown'}): "
            f"open it with an embedded: or fdb: URL, or use samethread_shell",
            file=sys.stderr,
        )
        return EXIT_USAGE
    try:
        identity = bytes.fromhex(options.get("cluster-id", "")) or None
        locks = reach(url, options.get("cluster") or "mainspring", float(options.get("ttl") or 15.0), identity)
        locks.__enter__()
    except (MainspringError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", EXIT_USAGE)
    with locks:
        return _run(locks, memo, token, own_process=own_process)


def _run(
    locks: LeaseManager,
    memo: Memo,
    token: FencingToken,
    live: functions.Call | None = None,
    *,
    own_process: bool = False,
) -> int:
    session = locks.session
    keys = MemoRows(locks.space).keys(memo)
    try:
        lease = _join(locks, keys, token)
    except (LockWasStolenError, CannotMaintainLock) as error:
        _refused(locks, keys, token, str(error))
        print(f"error: {error}", file=sys.stderr)
        return EXIT_LOCK_STOLEN
    freed = ran = False
    try:
        if own_process:
            end_when_cancelled(locks, keys, lease)
        try:
            data = run(locks.db, lambda tr: tr.get(keys.invocation).value, strategy=IDEMPOTENT)
            if data is None:
                raise MainspringError(f"the invocation of {memo} was invalidated before its remote started")
            record = decoded(InvocationRecord, memo, keys.invocation, data)
            # In this process the function itself, not its copy: it sees what it closes over.
            data = fetch(locks.db, locks.space, record.payload, memo)
            call = functions.load_call(data, None if live is None else live.function)
            if live is not None:
                live.check()
            ran = True
            value = functions.dump_value(call(), f"the result of {memo}")
            ran = False
            payload = store(session, value, f"the result of {memo}")
        except BaseException as error:
            # Only what the function raised, or a result that doesn't pickle, is the function's: the database's troubles
            # and an interrupted process are this attempt's, also where a call within the function met them.
            its_own = ran and isinstance(error, Exception) and not _circumstance(error)
            outcome = failure_outcome(locks, token, error)
            _publish(locks, keys, lease, token, outcome, memoize=its_own)
            freed = True
            if not isinstance(
                error, Exception | SystemExit
            ):  # SystemExit is told, whatever Shell the function ran under
                raise
            log.info("the function of %s failed: %s", memo, outcome.error)
            return EXIT_FAILED

        def published(payload: Payload) -> None:
            outcome = OutcomeRecord(payload, bytes(token), session.clocks.wall_us(), session.by)
            _publish(locks, keys, lease, token, outcome)

        referring(published, payload, lambda: store(session, value, f"the result of {memo}"))
        freed = True
        return EXIT_OK
    finally:
        session.ended_elsewhere(lease.part, freed=freed)
        if not freed:  # in a process that lives on its heartbeats would keep the row of what has ended
            session.unjoin(lease.part.lock, lease.token, lease.part.key)


def _circumstance(error: BaseException) -> bool:
    """Whether it says something of leases, memos and the database at the time, and nothing of the function."""
    lasting = isinstance(error, functions.UnpicklableResult | functions.RemoteError | MemoKeyError)
    return fdb_error_code(error) is not None or (isinstance(error, MainspringError) and not lasting)


def _join(locks: LeaseManager, keys: MemoKeys, token: FencingToken) -> Lease:
    session = locks.session
    wall = session.clocks.wall_us()

    def started(tr: Any, grant: Any) -> None:
        change_attempt(tr, keys, token, state=STARTED, started_us=wall, remote=session.by)

    return join(session, keys.memo.lock_name, token, "remote", started)


def _refused(locks: LeaseManager, keys: MemoKeys, token: FencingToken, why: str) -> None:
    """Record a stolen lock on the attempt: never on the function's result or exception."""

    def stolen(tr: Any) -> None:
        found = tr.get(keys.attempt(bytes(token)))
        if found.present() and change_attempt(tr, keys, token).state == PENDING:
            change_attempt(tr, keys, token, state=STOLEN, ended_us=locks.session.clocks.wall_us(), note=why[:400])

    run(locks.db, stolen, strategy=IDEMPOTENT)


def failure_outcome(locks: LeaseManager, token: FencingToken, error: BaseException) -> OutcomeRecord:
    """A function's exception as a row."""
    data, name, text = functions.dump_failure(error)
    if not isinstance(error, Exception):
        data = b""  # carried as text: an interrupted remote must not interrupt those who wait for it
    session = locks.session
    return OutcomeRecord(
        Payload(len(data), data), bytes(token), session.clocks.wall_us(), session.by, error=name, traceback=text
    )


def _publish(
    locks: LeaseManager,
    keys: MemoKeys,
    lease: Lease,
    attempt: FencingToken,
    outcome: OutcomeRecord,
    *,
    memoize: bool = True,
) -> None:
    session = locks.session
    lock = locks.space.lock(keys.memo.lock_name)
    wall = session.clocks.wall_us()
    run(locks.db, publish, session, keys, lock, lease.token, attempt, outcome, wall, memoize, strategy=IDEMPOTENT)
