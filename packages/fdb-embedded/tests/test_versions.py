"""Read versions go on while nobody commits, and no commit comes at or below one that was told."""

from __future__ import annotations

import struct
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded

SECOND = 1_000_000


@pytest.fixture
def db() -> Any:
    fdb_embedded.load()
    return fdb_embedded.open(f"memory:versions-{uuid.uuid4().hex}")


def pass_time(db: Any, seconds: float) -> None:
    db.dpointer.engine.store.clock.base += int(seconds * SECOND)


def read_version(db: Any) -> int:
    return int(db.create_transaction().get_read_version().wait())


def commit(db: Any, key: bytes = b"k", value: bytes = b"v") -> int:
    tr = db.create_transaction()
    tr[key] = value
    tr.commit().wait()
    return int(tr.get_committed_version())


def test_read_versions_advance_though_nobody_commits(db: Any) -> None:
    committed = commit(db)
    pass_time(db, 6)
    told = read_version(db)
    assert told >= committed + 5.8 * SECOND
    assert commit(db) > told


def test_an_idle_read_version_can_be_set_and_shows_what_it_stands_for(db: Any) -> None:
    commit(db, b"k", b"old")
    pass_time(db, 6)
    told = read_version(db)
    before, after = db.create_transaction(), db.create_transaction()
    before.set_read_version(told)
    assert before[b"k"] == b"old"
    commit(db, b"k", b"new")
    after.set_read_version(told)
    assert after[b"k"] == b"old"
    assert after.get_read_version().wait() == told
    after[b"other"] = b""
    with pytest.raises(Exception, match="1020"):
        after.commit().wait()


def test_a_version_of_six_seconds_ago_is_too_old_though_nobody_committed(db: Any) -> None:
    committed = commit(db)
    pass_time(db, 6)
    tr = db.create_transaction()
    tr.set_read_version(committed)
    with pytest.raises(Exception, match="1007"):
        tr[b"k"].wait()


def test_who_read_before_a_commit_and_asks_after_it_is_told_a_version_before_it(db: Any) -> None:
    commit(db, b"k", b"old")
    pass_time(db, 6)
    tr = db.create_transaction()
    assert tr[b"k"] == b"old"
    committed = commit(db, b"k", b"new")
    assert tr.get_read_version().wait() == committed - 1


def test_a_read_version_told_during_a_commit_lies_before_that_commit(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(db)
    store = db.dpointer.engine.store
    write_record = store.write_record
    told: list[int] = []

    def ask() -> None:
        pass_time(db, 1)  # the clock goes on while the commit is being written
        told.append(read_version(db))

    def asking(*arguments: Any) -> int:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        position: int = write_record(*arguments)
        return position

    monkeypatch.setattr(store, "write_record", asking)
    committed = commit(db)
    assert told[0] < committed


def test_a_commit_that_was_refused_leaves_read_versions_advancing(db: Any) -> None:
    commit(db)
    tr = db.create_transaction()
    tr[b"k"].wait()
    tr[b"mine"] = b""
    last = commit(db)
    with pytest.raises(Exception, match="1020"):
        tr.commit().wait()
    pass_time(db, 6)
    assert read_version(db) >= last + 5.8 * SECOND


def test_a_process_killed_in_its_commit_holds_read_versions_back_until_the_next_commit_alone(db: Any) -> None:
    last = commit(db)
    page = db.dpointer.engine.store.page
    page.begin_version(page.begun() + 1)  # the last that it did
    pass_time(db, 6)
    assert read_version(db) == last
    last = commit(db)
    pass_time(db, 6)
    assert read_version(db) >= last + 5.8 * SECOND


def test_a_commit_after_a_jump_is_above_what_was_told_whoever_knew_of_the_jump(db: Any) -> None:
    engine = db.dpointer.engine
    commit(db)
    base = engine.store.clock.base
    engine.jump_version(SECOND // 2)
    told = read_version(db)
    engine.store.clock.base = base  # as in a process that hasn't heard of the jump
    engine.store._jumps -= 1
    assert commit(db) > told


def test_the_commit_of_an_id_that_began_before_its_fence_ended_is_kept_out(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its validation begins with what was committed when it was handed over, not with the clock."""
    from fdb_embedded.engine.request import Commit
    from fdb_embedded.pure import idempotency
    from fdb_embedded.pure.overlay import Overlay

    commit(db)
    engine = db.dpointer.engine
    name = b"sixteen bytes id"
    tr = db.create_transaction()
    tr._set_option(504, name, 16)
    tr[b"late"] = b""
    write_record = engine.store.write_record
    begun: list[Any] = []

    def handing_over(*arguments: Any) -> int:
        if not begun:
            pass_time(db, 0.001)
            begun.append(tr.commit())
        position: int = write_record(*arguments)
        return position

    monkeypatch.setattr(engine.store, "write_record", handing_over)
    fence = Commit(Overlay(), [idempotency.SELF_CONFLICT + name], [], None, [], None, None)
    engine.committer.submit(fence)
    fence.wait()
    with pytest.raises(Exception, match="1020"):
        begun[0].wait()
    assert db[b"late"] is None


def test_a_blind_write_commits_after_any_silence(db: Any) -> None:
    commit(db)
    pass_time(db, 60)
    tr = db.create_transaction()
    tr._set_option(504, b"sixteen bytes id", 16)
    tr.add(b"n", struct.pack("<q", 1))
    tr.commit().wait()
    assert db[b"n"] == struct.pack("<q", 1)


def test_conflicting_keys_are_told_to_those_alone_who_asked_for_them(db: Any) -> None:
    prefix = b"\xff\xff/transaction/conflicting_keys/"
    for asks in (False, True):
        commit(db)
        tr = db.create_transaction()
        if asks:
            tr.options.set_report_conflicting_keys()
        tr[b"k"].wait()
        tr[b"mine"] = b""
        commit(db)
        with pytest.raises(Exception, match="1020"):
            tr.commit().wait()
        found = [bytes(row.key)[len(prefix) :] for row in tr.get_range(prefix, prefix + b"\xff\xff")]
        assert found == ([b"k", b"k\x00"] if asks else [])


def test_versions_of_a_copied_directory_advance_beside_the_page_of_its_original(tmp_path: Path) -> None:
    fdb_embedded.load()
    db = fdb_embedded.open(str(tmp_path / "db"))
    last = commit(db)
    page = db.dpointer.engine.store.page
    page.begin_version(page.begun() + 1_000)  # a page that is newer than the data
    fdb_embedded.close(db)
    again = fdb_embedded.open(str(tmp_path / "db"))
    pass_time(again, 6)
    assert read_version(again) >= last + 5.8 * SECOND
    fdb_embedded.close(again)
