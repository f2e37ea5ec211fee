"""The strategy `native`: FoundationDB's own idempotency ids (options 504 and 505), and the resolution they lack.

FoundationDB resolves 1021 by itself. What it leaves unknown (1031, 1039, 1025, a cancelled wait, a restart) is resolved
here with the same means: a dummy commit on the id's conflict key, then a scan of the ids of the versions in question.

The ids are strong random ones given by option 504, since the generator behind option 505 repeats in 7.3
(apple/foundationdb#11446). Option 505 then has the client expire the id as soon as the commit is acknowledged; so a
missing row alone proves nothing about a commit whose future was abandoned. The loop never abandons one; where a body's
own timeout, a cancellation or an interruption did, the transaction itself is asked: the client notes the commit's
version there before it expires the id. Ids of the caller's go by option 504 alone, and stay until they are expired.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from fdb_schema import fdb_error_code
from idempotent_txn.attempts.classification import GIVEN_UP
from idempotent_txn.attempts.guarding import AUTOMATIC_IDEMPOTENCY, IDEMPOTENCY_ID
from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.attempts.strategy import StrategyName
from idempotent_txn.errors import CommitUnknownResultFatal
from idempotent_txn.ids.floor import VersionFloor
from idempotent_txn.ids.identity import native_form, random_id, random_ids
from idempotent_txn.ids.lookup import NATIVE, fence, look_up

_Attempt = tuple[bytes, int, Any, bool] | list[Any]
"""The token of an attempt: its id, a version from before its commit, its transaction, whether the id ends with the commit.

It is a list, with the deadline, where the version is to be found out by `prepare`, of the attempt itself: that spares a trip.
"""


class Native:
    """Native ids in one database. Shared by threads."""

    name: StrategyName = "native"

    def __init__(self, db: Any) -> None:
        self._db = db
        self._floor: Final = VersionFloor(db)
        # Not by way of the attempt's transaction, of which its body may not change the id.
        plain: Any = type(db.create_transaction())
        self._set_option: Final[Any] = plain._set_option
        # The embedded engine has both options in one call.
        self._at_once: Final = hasattr(plain, "set_idempotency_id")
        self._set_id: Final[Any] = getattr(plain, "set_idempotency_id", None)

    def begin(self, tr: Any, run_id: bytes | None, deadline: float | None) -> _Attempt:
        # Without a call, which nearly every transaction is spared so.
        known = self._floor
        floor = known.latest if monotonic() < known.due else -1
        if run_id is None:
            try:
                id = random_ids.pop()
            except IndexError:
                id = random_id()
            if self._at_once:
                self._set_id(tr, id, True)
            else:
                self._name(tr, id, True)
        else:
            id = native_form(run_id)
            self._name(tr, id, False)
        return (id, floor, tr, run_id is None) if floor >= 0 else [id, floor, tr, run_id is None, deadline]

    def begin_again(self, tr: Any, token: _Attempt) -> None:
        self._name(tr, token[0], token[3])

    def _name(self, tr: Any, id: bytes, automatic: bool) -> None:
        if automatic and self._at_once:
            self._set_id(tr, id, True)
            return
        self._set_option(tr, IDEMPOTENCY_ID, id, len(id))
        if automatic:
            self._set_option(tr, AUTOMATIC_IDEMPOTENCY, None, 0)

    def prepare(self, tr: Any, token: _Attempt, want_stamp: bool) -> None:
        if type(token) is not list:
            return
        try:
            if "chose_read_version" not in tr.__dict__:  # by its body: a client takes any, also one that is yet to come
                token[1] = self._floor.of(tr)
                return
        except Exception as error:
            if fdb_error_code(error) not in GIVEN_UP:  # else its commit will tell
                raise
        token[1] = self._floor.version(token[4])

    def committed(self, tr: Any, token: _Attempt) -> None:
        return None

    def abandoned(self, token: _Attempt) -> None:
        return None

    def resolve(self, token: _Attempt) -> Committed | bool:
        id, floor, tr = token[:3]
        last = fence(self._db, (NATIVE,), id)
        try:
            # In this order: a row that is missing because the client expired it was noted on the transaction before.
            return look_up(self._db, NATIVE, id, floor, last) or was_acknowledged(tr)
        except CommitUnknownResultFatal:
            if was_acknowledged(tr):
                return True
            raise


def was_acknowledged(tr: Any) -> bool:
    """Whether the client was told that `tr` committed, whatever became of the future that would have said so."""
    try:
        return int(tr.get_committed_version()) > 0
    except Exception as error:
        if fdb_error_code(error) is None:
            raise
        return False


def is_offered(db: Any) -> bool:
    """Whether this engine, and this version of its client, knows option 504."""
    tr = db.create_transaction()
    try:
        tr._set_option(IDEMPOTENCY_ID, bytes(16), 16)
    except Exception as error:
        if fdb_error_code(error) is None:
            raise
        return False
    return True
