"""The batcher, and an interruption at each place of it: nobody hangs, and every acknowledged write is there once."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from support.interrupting import Interruption, arrivals, raised

from idempotent_txn import Batcher
from idempotent_txn.batching import batcher as module
from idempotent_txn.batching.recording import replay

FILES = ("idempotent_txn/batching/batcher.py", "idempotent_txn/batching/merging.py")
PATIENCE = 60


def of_the_batcher(code: CodeType) -> bool:
    return code.co_filename.endswith(FILES)


def put(tr: Any, name: bytes) -> bytes:
    tr[b"effect/" + name + b"/" + uuid.uuid4().bytes] = b""
    tr.add(b"added", (1).to_bytes(8, "little"))
    return name


def read_and_put(tr: Any, name: bytes) -> bytes:
    tr[b"read/" + name].value
    return put(tr, name)


def effects(db: Any) -> Counter[bytes]:
    return Counter(row.key.split(b"/")[1] for row in db.get_range(b"effect/", b"effect0"))


class Scene:
    """A thread whose commit is held until somebody queues behind it (or gave up), and others that are queued already."""

    def __init__(self, db: Any, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
        self.db = db
        self.batcher = Batcher(db)
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.over = threading.Event()
        self.done: Counter[bytes] = Counter()
        self.threads: list[threading.Thread] = []
        first = True

        def held(tr: Any, recordings: Any) -> None:
            nonlocal first
            if first:
                first = False
                self.entered.set()
                assert self.opened.wait(PATIENCE)
            replay(tr, recordings)

        monkeypatch.setattr(module, "replay", held)
        self.start(b"holder")
        assert self.entered.wait(PATIENCE)
        for number in range(others):
            self.start(b"other-%d" % number)
        self.wait_for_queue(others)
        self.others = others

    def start(self, name: bytes) -> None:
        def work() -> None:
            assert self.batcher.run(put, name) == name
            self.done[name] += 1

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def wait_for_queue(self, length: int) -> None:
        pause = threading.Event()
        while len(self.batcher._queue) < length and not self.over.is_set():
            pause.wait(0.0005)

    def open_soon(self, late: int) -> None:
        """Once this scene's interrupted thread is queued (and `late` more behind it), or is gone."""

        def work() -> None:
            self.wait_for_queue(self.others + 1)
            for number in range(late):
                self.start(b"late-%d" % number)
            self.wait_for_queue(self.others + 1 + late)
            self.opened.set()

        opener = threading.Thread(target=work, daemon=True)
        opener.start()
        self.threads.append(opener)

    def check(self, here: Interruption, delivered: BaseException | None) -> None:
        self.over.set()
        self.opened.set()
        mine = effects(self.db)[b"mine"]
        for thread in list(self.threads):
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"somebody hangs after an interruption at {here.where}"
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"somebody hangs after an interruption at {here.where}"
        next_call = threading.Thread(target=lambda: self.batcher.run(put, b"next"), daemon=True)
        next_call.start()
        next_call.join(PATIENCE)
        assert not next_call.is_alive(), f"the next call hangs after an interruption at {here.where}"
        found = effects(self.db)
        assert found.pop(b"next") == 1
        assert found.pop(b"mine", 0) == mine <= 1, f"a commit came after its caller was told ({here.where})"
        if not here.came or here.lost:
            assert delivered is None and mine == 1
        else:
            assert isinstance(delivered, KeyboardInterrupt), here.where
            for note in getattr(delivered, "__notes__", ()):
                assert mine == ("did not" not in note), f"{here.where}: {note}"
        assert found == self.done, here.where
        assert all(count == 1 for count in found.values())
        assert self.batcher._leader is None and not self.batcher._queue
        assert not self.batcher._mutex.locked()
        assert not self.batcher._under_way


def alone(db: Any, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene.__new__(Scene)
    scene.db, scene.batcher, scene.done, scene.threads = db, Batcher(db), Counter(), []
    scene.over, scene.opened = threading.Event(), threading.Event()
    return scene


def behind_a_commit(db: Any, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(db, monkeypatch, 1)
    scene.open_soon(0)
    return scene


def given_the_lead(db: Any, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(db, monkeypatch, 0)
    scene.open_soon(2)
    return scene


def emptied(db: Any, monkeypatch: pytest.MonkeyPatch, scene: Callable[..., Scene]) -> Scene:
    """A scene on a database in which there is nothing but the packages' own rows."""
    db.clear_range(b"", b"\x15")
    db.clear_range(b"\x16", b"\xff")
    return scene(db, monkeypatch)


SCENES = [alone, behind_a_commit, given_the_lead]


@pytest.mark.parametrize("body", [put, read_and_put])
@pytest.mark.parametrize("scene", SCENES)
def test_an_interruption_of_the_main_thread_anywhere(
    memory_db: Any, monkeypatch: pytest.MonkeyPatch, scene: Callable[..., Scene], body: Any
) -> None:
    number = 0
    while True:
        here = emptied(memory_db, monkeypatch, scene)
        delivered = None
        with arrivals(number, of_the_batcher) as interruption:
            try:
                here.batcher.run(body, b"mine")
            except KeyboardInterrupt as error:
                delivered = error
        here.check(interruption, delivered)
        if not interruption.came:
            break
        number += 1
    assert number > 8


@pytest.mark.parametrize("scene", SCENES)
def test_an_interruption_of_any_thread_at_each_line(
    memory_db: Any, monkeypatch: pytest.MonkeyPatch, scene: Callable[..., Scene]
) -> None:
    """No signal does that to a thread, but whoever raises into one should not hang the others either."""
    number = 0
    while True:
        here = emptied(memory_db, monkeypatch, scene)
        delivered: list[BaseException] = []
        interruptions: list[Interruption] = []

        def work() -> None:
            with raised(number, of_the_batcher) as interruption:  # noqa: B023
                interruptions.append(interruption)  # noqa: B023
                with contextlib.suppress(BaseException):
                    try:
                        here.batcher.run(put, b"mine")  # noqa: B023
                    except KeyboardInterrupt as error:
                        delivered.append(error)  # noqa: B023

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"hangs itself after an interruption at {interruptions[0].where}"
        here.check(interruptions[0], delivered[0] if delivered else None)
        if not interruptions[0].came:
            break
        number += 1
    assert number > 8
