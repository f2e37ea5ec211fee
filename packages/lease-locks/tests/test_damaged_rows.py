"""Rows that no release wrote: a listing names each and goes on, and a person's word removes it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fdb import tuple as fdb_tuple
from typer.testing import CliRunner

from fdb_schema import pack
from idempotent_txn import run
from lease_locks import LeaseManager
from lease_locks.clearing import AbandonedLeases
from lease_locks.cli import app
from lease_locks.errors import DamagedRowError
from lease_locks.records import HolderRecord
from lease_locks.space import stamp_part

DEADLINE = 60.0
STAMP = b"\x00" * 9 + b"\x01"
STRAYS = {
    "no holder": lambda lock: (lock.holders + b"\x14" + stamp_part(STAMP), b"\xc1"),
    "another record": lambda lock: (lock.holders + b"\x14" + stamp_part(STAMP), pack(7)),
    "a holder's key of text": lambda lock: (lock.holders + fdb_tuple.pack(("junk",)), b""),
    "a holder's key cut off": lambda lock: (lock.holders + b"\x14\x33ab", b""),
    "a holder's key without an end": lambda lock: (lock.holders, b""),
    "a remote's key of text": lambda lock: (lock.holders + b"\x14" + stamp_part(STAMP) + b"\x02x\x00", b""),
    "a waiter's key of text": lambda lock: (lock.queue + fdb_tuple.pack(("junk",)), b""),
    "no waiter": lambda lock: (lock.queue + stamp_part(STAMP), b"\xc1"),
}


def put(db: Any, key: bytes, value: bytes) -> None:
    def write(tr: Any) -> None:
        tr[key] = value

    run(db, write)


def ls(url: str) -> list[str]:
    result = CliRunner().invoke(app, ["ls", "--json"], env={"MAINSPRING_DB": url})
    assert result.exit_code == 0, result.exception
    return [row["name"] for row in json.loads(result.stdout)]


@pytest.mark.parametrize("stray", STRAYS)
def test_a_listing_names_a_row_that_can_not_be_read_and_goes_on(
    shared_url: str, stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LeaseManager(shared_url) as locks, locks.lock("a"), locks.lock("z"):
        key, value = STRAYS[stray](locks.space.lock("m"))
        put(locks.db, key, value)
        assert ls(shared_url) == ["a", "z"]
        named = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(named) == 1
        assert "'m'" in named[0]
        assert repr(key) in named[0]
        assert AbandonedLeases(locks).clear() == 0
        with pytest.raises(DamagedRowError, match="force-release"):
            locks.try_acquire("m")
        result = CliRunner().invoke(app, ["doctor", "--json"], env={"MAINSPRING_DB": shared_url})
        assert repr(key) in json.loads(result.stdout)["findings"][0]["what"]
        forced = CliRunner().invoke(app, ["force-release", "m", "--reason", "test"], env={"MAINSPRING_DB": shared_url})
        assert forced.exit_code == 0, forced.output
        assert locks.acquire("m", timeout=DEADLINE).release()


def test_the_holders_beside_a_damaged_row_are_listed(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, locks.lock("a", mode="shared"):
        put(locks.db, *STRAYS["no holder"](locks.space.lock("a")))
        put(locks.db, *STRAYS["no waiter"](locks.space.lock("a")))
        assert [info.name for info in locks.list()] == ["a"]


def test_who_held_what_a_damaged_row_hides_learns_that_it_was_removed(any_db: Any) -> None:
    with LeaseManager(any_db) as locks:
        lease = locks.acquire("a", timeout=DEADLINE)
        put(locks.db, locks.space.lock("a").holder(lease.token), b"\xc1")
        with LeaseManager(any_db) as other:
            other.force_release("a", reason="test")
            assert lease.lost.wait(DEADLINE)
            assert other.acquire("a", timeout=DEADLINE).held


def test_names_and_sessions_that_can_not_be_are_stepped_over(any_db: Any, caplog: pytest.LogCaptureFixture) -> None:
    with LeaseManager(any_db) as locks, locks.lock("a"), locks.lock("z"):
        names, sessions = locks.space.names, locks.space.sessions
        strays = [names + b"\x02b", names + b"\x02c\xff\x00", names + b"\x02\x07\x00\x02h\x00"]
        strays += [sessions + b"\x01\x00", sessions + b"\x02x\x00", sessions + b"\x33"]
        for key in strays:
            put(locks.db, key, b"\xc1")
        assert [info.name for info in locks.list()] == ["a", "z"]
        assert [sid for sid, _, _ in locks.sessions()] == [locks.session_id]
        assert locks.clear_dead_sessions() == 0
        assert all(repr(key) in caplog.text for key in strays)


def test_sessions_are_listed_past_any_number_of_rows_that_can_not_be_read(any_db: Any) -> None:
    with LeaseManager(any_db) as first, LeaseManager(any_db) as second:

        def write(tr: Any) -> None:
            for n in range(700):
                tr[first.space.session(b"\x00" + n.to_bytes(2, "big"))] = b"\xc1"

        run(first.db, write)
        found = {sid: heartbeat for sid, _, heartbeat in first.sessions()}
        assert set(found) == {first._session.sid, second._session.sid}
        assert all(found.values())


def test_a_time_that_no_calendar_has_ends_no_listing(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, locks.lock("a"):
        record = HolderRecord(owner=b"o" * 16, session=b"s" * 16, ttl_ms=1_000, acquired_us=2**62)
        put(locks.db, locks.space.lock("m").holders + b"\x14" + stamp_part(STAMP), record.encode())
        assert [info.name for info in locks.list()] == ["a", "m"]
