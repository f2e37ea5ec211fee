"""The database's side of the worker's loop: turns, heartbeats, bells and mail of one incarnation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set
from typing import Any

from fdb_datamodel import (
    Claim,
    Claims,
    DamagedFutureError,
    Failure,
    Heartbeat,
    MailEntry,
    Outcome,
    WorkerFencedError,
    WorkerId,
    claims_of,
    clear_mailbox,
    finish_turn,
    heartbeat,
    is_live,
    pool_bell,
    read_mailbox,
    run_apart,
    see_turn,
    session_bell,
    set_apart,
)
from fdb_schema import ClusterSpace, get_many
from futures_worker.database import is_database_trouble
from futures_worker.worker.deciding.instructions import RunTurn
from futures_worker.worker.running.bells import Bells
from idempotent_txn import run

log = logging.getLogger("futures_worker")

Load = Callable[[int], Heartbeat]
"""Makes a sign of life from its counter."""


class Ledger:
    """What one incarnation writes and reads. Every transaction of it is fenced by the incarnation."""

    def __init__(self, db: Any, space: ClusterSpace, worker: WorkerId, wake: Callable[[], None]) -> None:
        self._db = db
        self._space = space
        self.worker = worker
        self._bells = Bells(db, wake)
        self._pool = pool_bell(space)
        self._own = session_bell(space, worker.incarnation)
        self._cursor = b""
        self._begun: _Begun | None = None
        self._counter = int(time.time() * 1000)  # any start that an earlier incarnation did not have

    def take_turn(self, turn: RunTurn, load: Load | None = None) -> Claims:
        """Reports outcomes and claims what is next, in one transaction; with `load`, a sign of life, too. Raises `WorkerFencedError`."""
        space, worker, pool = self._space, self.worker, self._pool
        begun, self._begun = self._begun, None
        beat = None if load is None else self._next_beat(load)

        def body(tr: Any) -> tuple[Claims, bytes | None]:
            rows = begun.rows if begun is not None and tr is begun.transaction else {}
            claims = finish_turn(tr, space, worker, turn.outcomes, turn.capacity, turn.limit, rows)
            if beat is not None:
                heartbeat(tr, space, worker, beat)
            return claims, get_many(tr, [pool], snapshot=True)[0] if turn.limit else None

        try:
            claims, seen = run(self._db if begun is None else begun, body)
        except DamagedFutureError as error:  # it is failed by itself, and the turn taken again
            set_apart(self._db, space, error)
            claims, seen = run_apart(self._db, space, body)
        if turn.limit:
            self._bells.saw(pool, seen)
        return claims

    def begin_turn(self, claim: Claim) -> None:
        """Begins the transaction of the next turn, which will realize this claim: reads while the claim's task runs."""
        tr = self._db.create_transaction()
        self._begun = _Begun(self._db, tr, see_turn(tr, self._space, self.worker, [claim]))

    def forget_turn(self) -> None:
        """What was begun isn't needed soon: an old snapshot costs the database room."""
        self._begun = None

    def take_turn_apart(self, turn: RunTurn, why: Exception) -> Claims:
        """`take_turn` again after it failed with `why`: each outcome by itself, so that one bad one harms no other.

        An outcome that can't be recorded becomes a permanent failure that says so. Raises `WorkerFencedError`, and what is
        the database's trouble: then the whole turn may be taken again, since what is recorded of it stays so.
        """
        stale: list[bytes] = []
        for outcome in turn.outcomes:
            failure = Failure("error", f"how it ended can't be recorded: {type(why).__name__}: {why}"[:500])
            for attempt in (outcome, Outcome.failed(outcome.claim, failure, permanently=True)):
                try:
                    claims = self.take_turn(RunTurn([attempt], turn.capacity, 0))
                    stale.extend(claims.stale)
                    break
                except WorkerFencedError:
                    raise
                except Exception as exc:
                    if is_database_trouble(exc):
                        raise
                    why = exc
                    log.error("the outcome of future %s can't be recorded: %s", outcome.claim.future_id, exc)
        claims = self.take_turn(RunTurn([], turn.capacity, turn.limit)) if turn.limit else Claims()
        claims.stale = (*claims.stale, *stale)
        return claims

    def _next_beat(self, load: Load) -> Heartbeat:
        self._counter += 1
        return load(self._counter)

    def beat(self, load: Load) -> None:
        """A sign of life; `load` makes it from the counter. Raises `WorkerFencedError`."""
        beat = self._next_beat(load)

        def body(tr: Any) -> bool:
            if not is_live(tr, self._space, self.worker):
                return False
            heartbeat(tr, self._space, self.worker, beat)
            return True

        if not run(self._db, body, strategy="off"):
            raise WorkerFencedError(f"worker {self.worker} was declared dead: its incarnation is gone")

    def arm(self, pool_matters: bool, in_hand: Callable[[], Set[bytes]]) -> tuple[bool, list[MailEntry], list[Claim]]:
        """Arms the bells that have to wake us; whether to look for work at once, mail, and what was pushed."""
        keys = [] if self._bells.armed(self._own) else [self._own]
        if pool_matters and not self._bells.armed(self._pool):
            keys.append(self._pool)
        if not keys:
            return False, [], []
        return self._news(self._bells.arm(*keys), in_hand)

    def rung(self, in_hand: Callable[[], Set[bytes]]) -> tuple[bool, list[MailEntry], list[Claim]]:
        """Whether a bell that tells of work in the pool rang since the last call, mail, and what was pushed."""
        return self._news(self._bells.take_rung(), in_hand)

    def _news(self, rung: Set[bytes], in_hand: Callable[[], Set[bytes]]) -> tuple[bool, list[MailEntry], list[Claim]]:
        if self._own not in rung:
            return bool(rung), [], []
        mail, pushed = self.read_own(in_hand())
        # Our own bell rings for mail, for assignments, and for pushed work, which needs no look at the pool.
        return self._pool in rung or not pushed, mail, pushed

    def read_own(self, in_hand: Set[bytes]) -> tuple[list[MailEntry], list[Claim]]:
        """New mail of this incarnation, removed from the database, and claims that others made for it.

        Where reading fails amid the mail, none of it counts as read.
        """
        session = self.worker.incarnation
        entries: list[MailEntry] = []
        read_to = self._cursor

        def body(tr: Any) -> tuple[bytes | None, list[MailEntry], bytes, list[Claim]]:
            page, cursor = read_mailbox(tr, self._space, session, read_to)
            pushed = [] if entries else claims_of(tr, self._space, self.worker, known=in_hand)
            return get_many(tr, [self._own], snapshot=True)[0], page, cursor, pushed

        bell, page, cursor, pushed = run_apart(self._db, self._space, body, strategy="off")
        while page:
            entries.extend(page)
            read_to = cursor
            bell, page, cursor, _ = run_apart(self._db, self._space, body, strategy="off")
        self._cursor = read_to
        self._bells.saw(self._own, bell)
        if entries:
            try:
                run(self._db, clear_mailbox, self._space, session, self._cursor, strategy="off")
            except Exception as exc:  # it is read, and won't be again; the next mail is cleared with it
                if not is_database_trouble(exc):
                    raise
                log.warning("mail that was read can't be removed now: %s", exc)
        return entries, pushed

    def close(self) -> None:
        """Lets the watches go."""
        self._bells.close()


class _Begun:
    """What `run` takes for a database: the first transaction is one that was begun already, with these rows read."""

    def __init__(self, db: Any, transaction: Any, rows: dict[bytes, bytes | None]) -> None:
        self.__dict__.update(db.__dict__)  # among it what `run` keeps there
        self._db = db
        self._unused: Any = transaction
        self.transaction = transaction
        self.rows = rows

    def create_transaction(self) -> Any:
        unused, self._unused = self._unused, None
        return self._db.create_transaction() if unused is None else unused
