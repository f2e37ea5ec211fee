"""A forked child goes on with what its parent has open, whatever the parent's other threads were at."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.forks import in_child, paused_child, take_lock

from s3heap_tender import Heap, SysDb
from s3heap_tender.objects.writer import _Group
from s3heap_tender.rows import held
from s3heap_tender.stores.file import FileStore
from s3heap_tender.stores.memory import MemoryStore

pytestmark = pytest.mark.embedded_only("the official client doesn't survive a fork")


def test_a_child_keeps_no_lock_of_a_file_that_another_thread_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    inside, goes_on = threading.Event(), threading.Event()
    whole = FileStore._check

    def slow(*arguments: Any) -> None:
        inside.set()
        assert goes_on.wait(60)
        whole(*arguments)

    monkeypatch.setattr(FileStore, "_check", slow)
    thread = threading.Thread(target=lambda: store.put("a", b"one", if_match=None))
    thread.start()
    assert inside.wait(60)
    with paused_child():
        goes_on.set()
        thread.join(60)
        for lock in (tmp_path / ".locks").iterdir():
            take_lock(lock)


def test_a_child_waits_for_no_thread_of_its_parent(shared_db: Any) -> None:
    sysdb = SysDb(shared_db)
    task = sysdb.create_task("p", "t", cadence=5)
    with Heap(MemoryStore(), sysdb) as heap:
        heap.push(task)
        writer = heap.writer(sysdb.layout.shard_of(task.id))
        item = next(iter(heap.peek(1)))

        def child() -> None:
            sysdb.now()
            sysdb.trace.lines = []
            sysdb.trace.line("op")
            assert heap.push(item)
            heap.close()
            sysdb.close()

        (bucket,) = writer._open
        writer._groups[bucket] = _Group()  # which a thread of the parent's was to write
        locks = sysdb._clock_lock, sysdb._session_lock, sysdb.trace._lock, heap.io._lock, held._lock
        for lock in (*locks, writer._write_lock, writer._queue_lock, heap._writers._lock):
            lock.acquire()
        try:
            assert in_child(child) == 0
        finally:
            writer._groups.clear()
            for lock in (*locks, writer._write_lock, writer._queue_lock, heap._writers._lock):
                lock.release()
    sysdb.close()
