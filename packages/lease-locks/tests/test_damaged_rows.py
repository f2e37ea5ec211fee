"""Rows that no release wrote: a listing names each and goes on, and a person's word removes it."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest
from fdb import tuple as fdb_tuple
from typer.testing import CliRunner

from fdb_schema import pack
from idempotent_txn import run
from lease_locks import Duties, Duty, LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.clearing import AbandonedLeases
from lease_locks.cli import app
from lease_locks.duties import DutyReport, duty_reports
from lease_locks.errors import DamagedRowError
from lease_locks.grants.records import HolderRecord
from lease_locks.grants.space import stamp_part
from lease_locks.memo.functions import bind
from lease_locks.memo.pruning import prune
from lease_locks.metrics import lease_metrics

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
        assert set(found) == {first.session.sid, second.session.sid}
        assert all(found.values())


def test_a_time_that_no_calendar_has_ends_no_listing(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, locks.lock("a"):
        record = HolderRecord(owner=b"o" * 16, session=b"s" * 16, ttl_ms=1_000, acquired_us=2**62)
        put(locks.db, locks.space.lock("m").holders + b"\x14" + stamp_part(STAMP), record.encode())
        assert [info.name for info in locks.list()] == ["a", "m"]


def test_a_damaged_row_of_its_session_keeps_nobody_from_what_a_dead_holder_held(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, LeaseManager(any_db, ttl=0.3) as other:
        other.acquire("a")
        sid = other.session.sid
        put(any_db, locks.space.session(sid), b"\xc1")
        assert locks.try_acquire("a") is None
        assert AbandonedLeases(locks).clear() == 0
        with pytest.raises(DamagedRowError, match=sid.hex()):
            run(any_db, locks.session_dead, sid)
        other.session.abandon()
        assert locks.acquire("a", timeout=DEADLINE).held


def test_a_heartbeat_that_is_cut_off_is_no_old_one(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, LeaseManager(any_db) as other:
        other.acquire("a")
        put(any_db, locks.space.heartbeat(other.session.sid), b"\x07")
        assert locks.try_acquire("a") is None


def test_a_line_of_a_history_that_can_not_be_read_costs_a_session_none_of_its_leases(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, LeaseManager(any_db) as other:
        forced, kept = locks.acquire("a"), locks.acquire("b")
        put(any_db, locks.space.lock("a").events + stamp_part(STAMP), b"\xc1")
        other.force_release("a", reason="test")
        locks.session.renew_now(DEADLINE)
        assert forced.lost_reason == "forced"
        kept.check()
        assert [event.kind for event in locks.history("a")] == ["unreadable", "acquired", "forced"]


def test_a_damaged_row_beside_other_holders_ends_no_round_of_the_janitor(shared_url: str) -> None:
    with LeaseManager(shared_url) as locks, locks.lock("a", mode="shared"):
        put(locks.db, *STRAYS["no holder"](locks.space.lock("a")))
        assert AbandonedLeases(locks).clear() == 0
        result = CliRunner().invoke(app, ["doctor", "--json"], env={"MAINSPRING_DB": shared_url})
        assert len(json.loads(result.stdout)["findings"]) == 1


def test_a_report_of_a_duty_that_can_not_be_read_is_written_anew(any_db: Any) -> None:
    with LeaseManager(any_db) as locks:
        put(any_db, locks.space.cluster["duty"].pack(("d",)), b"\xc1")
        assert "can't be read" in duty_reports(any_db, locks.space.cluster)["d"].error
        stop = threading.Event()

        def work() -> int:
            stop.set()
            return 1

        Duties(locks, [Duty("d", 60.0, work)], standby=0.1).run(stop)
        assert duty_reports(any_db, locks.space.cluster)["d"].rounds == 1


def test_a_key_that_no_duty_wrote_hides_no_duty(any_db: Any) -> None:
    with LeaseManager(any_db) as locks:
        duties = locks.space.cluster["duty"]
        put(any_db, duties.pack(("d",)), DutyReport(rounds=3).encode())
        strays = [duties.pack(parts) for parts in ((), (1.5,), (7,), (None,), (b"d",), ("d", "more"))]
        for key in (
            *strays,
            duties.key() + b"\xfd\xfe",
            duties.key() + b"\x02\xfd\xfe\x00",
            duties.key() + b"\x21\x00",
        ):
            put(any_db, key, b"\xc1")
        assert {name: report.rounds for name, report in duty_reports(any_db, locks.space.cluster).items()} == {"d": 3}
        figures = {metric.name: metric.samples for metric in lease_metrics(locks)}
        assert len(figures["mainspring_duty_rounds_total"]) == 1


def refusing(x: int) -> int:
    if x > 1:
        raise KeyError("too many")
    return x


@pytest.mark.parametrize("garbage", [b"\xc1", b"", pack(7)])
@pytest.mark.parametrize("column", ["res", "exc", "inv", "att", "stray"])
def test_a_damaged_row_of_a_call_is_named_and_forgotten(shared_url: str, column: str, garbage: bytes) -> None:
    with LeaseManager(shared_url) as locks:
        runner = MemoizingPicklingRunner(locks, shell=samethread_shell, rerun_exceptions=False)

        def call() -> Any:
            if column != "exc":
                return runner.call(refusing, 1)
            with pytest.raises(KeyError, match="too many"):
                runner.call(refusing, 2)
            return 1

        assert call() == 1
        memo = bind("default", refusing, (2 if column == "exc" else 1,), {}).memo
        keys = runner.rows.keys(memo)
        [token] = [bytes.fromhex(c[4:]) for _, found in runner.rows.scan(locks.db) for c in found if c[:4] == "att:"]
        places = {"res": keys.result, "exc": keys.failure, "inv": keys.invocation, "att": keys.attempt(token)}
        put(locks.db, places.get(column, keys.attempts + b"\x02x\x00"), garbage)
        if column in ("res", "exc"):
            with pytest.raises(DamagedRowError, match="lease-locks invalidate memo:"):
                call()
        else:
            assert call() == 1
            put(locks.db, keys.result, b"\xc1")
            runner.invalidate(refusing, 1)
            assert call() == 1, "computed again"
            put(locks.db, places.get(column, keys.attempts + b"\x02x\x00"), garbage)
        assert prune(locks, older_than=1e6).invocations == 0
        for command in (["inspect", memo.uri], ["inspect", "memo:default"], ["runs"], ["summarize"]):
            shown = CliRunner().invoke(app, command, env={"MAINSPRING_DB": shared_url})
            assert shown.exit_code == 0, shown.exception
            assert ("can't be read" in shown.output) == (command[1:] == [memo.uri] and column != "stray")
        done = CliRunner().invoke(app, ["invalidate", memo.uri], env={"MAINSPRING_DB": shared_url})
        assert done.exit_code == 0, done.exception
        assert call() == 1


def test_the_oldest_is_forgotten_though_it_can_not_be_read(any_db: Any) -> None:
    with LeaseManager(any_db) as locks:
        runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
        assert runner.call(refusing, 1) == 1
        [(memo, _)] = runner.rows.scan(any_db)
        for key in (runner.rows.keys(memo).result, runner.rows.run_key("x")):
            put(any_db, key, b"\xc1")
        assert prune(locks, most_bytes=0).invocations == 1
        assert list(runner.rows.scan(any_db)) == []
