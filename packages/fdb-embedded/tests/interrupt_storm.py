"""One process in trouble: threads commit while they are interrupted, timed out, cancelled and reset. Run by test_interrupt_storm.py.

    python interrupt_storm.py NAME DURABILITY FIRST_SEED SEEDS

Exit code 0 when every commit that was acknowledged is there once, none that was refused is there, nobody waits for ever,
and a new transaction works; else a message and, for who hangs, the stacks of all threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import fdb_embedded

THREADS = 4  # besides the main one
STEPS = 40
HANGS_AFTER = 60.0
REFUSED = frozenset({1007, 1020, 2101})
OPEN = frozenset(
    {1021, 1025, 1031, 1100, 1101, 2017, 2020}
)  # may have been made (1100 and 2020 are of its versionstamp)

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Attempt:
    """A commit with a name of its own, and what its thread was told of it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.told = "nothing"
        self.code = -1
        self.disturbed = False  # reset by another thread: a success may be that of nothing
        self.tr: Any = None
        self.commit: Any = None
        self.stamp: Any = None
        self.watch: Any = None


class Storm:
    """One seed."""

    def __init__(self, db: Any, seed: int) -> None:
        self.db = db
        self.seed = seed
        self.error: type[Exception] = fdb_embedded.load().FDBError
        self.attempts: list[Attempt] = []
        self.tried: dict[int, Attempt] = {}  # by each thread, the last
        self.live: dict[int, Attempt] = {}  # the same, once it commits
        self.exposed = self.over = False
        self.hits = 0

    # --- the threads that commit ---

    def step(self, number: int, count: int, chance: random.Random) -> None:
        attempt = Attempt(b"%d/%d/%06d" % (self.seed, number, count))
        tr = attempt.tr = self.db.create_transaction()
        self.attempts.append(attempt)
        self.tried[number] = attempt
        if chance.random() < 0.2:
            tr.options.set_timeout(chance.choice((1, 2, 5, 20)))
        if chance.random() < 0.5:
            tr[b"hot"].wait()
        if chance.random() < 0.3:
            tr[b"hot"] = attempt.name
        if chance.random() < 0.3:
            tr.set_idempotency_id(b"id of " + attempt.name.rjust(16), chance.random() < 0.5)
        tr.add(b"count/%d" % number, (1).to_bytes(8, "little"))
        tr[b"row/" + attempt.name] = b""
        tr.set_versionstamped_value(b"stamp/" + attempt.name, bytes(14))
        if chance.random() < 0.5:
            attempt.stamp = tr.get_versionstamp()
        if chance.random() < 0.3:
            attempt.watch = tr.watch(b"watched/%d" % chance.randrange(3))
        if chance.random() < 0.2:
            tr[b"watched/%d" % chance.randrange(3)] = attempt.name
        self.live[number] = attempt
        commit = attempt.commit = tr.commit()
        if chance.random() < 0.1:
            time.sleep(0)
        if chance.random() < 0.9:
            commit.wait()
            attempt.told = "committed"
        if attempt.stamp is not None and chance.random() < 0.5:
            attempt.stamp.wait()

    def work(self, number: int, chance: random.Random) -> None:
        for count in range(STEPS):
            try:
                self.step(number, chance.randrange(1 << 20) * STEPS + count, chance)
            except self.error as error:
                attempt = self.tried.get(number)
                if attempt is not None and attempt.told == "nothing":
                    attempt.code = error.code  # type: ignore[attr-defined]
                    attempt.told = "an error"
            except KeyboardInterrupt:
                self.hits += 1

    def run(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        for _ in range(3):  # an interrupt may strike between two steps
            with contextlib.suppress(KeyboardInterrupt):
                self.work(number, chance)

    # --- those that disturb them ---

    def interrupt(self, workers: list[threading.Thread]) -> None:
        chance = random.Random(f"{self.seed} interrupts")
        main = threading.main_thread().ident
        assert main is not None
        while not self.over:
            time.sleep(chance.expovariate(1 / 0.0007))
            if chance.random() < 0.4:
                signal.pthread_kill(main, signal.SIGINT)
            else:
                _raise_in(ctypes.c_ulong(chance.choice(workers).ident or 0), ctypes.py_object(KeyboardInterrupt))

    def disturb(self) -> None:
        chance = random.Random(f"{self.seed} disturbs")
        while not self.over:
            time.sleep(chance.expovariate(1 / 0.0005))
            attempt = self.live.get(chance.randrange(THREADS + 1))
            if attempt is None:
                continue
            what = chance.randrange(4)
            if what == 0:
                attempt.tr.cancel()
            elif what == 1:
                attempt.disturbed = True
                attempt.tr.reset()
            elif what == 2 and attempt.commit is not None:
                attempt.commit.cancel()
            elif what == 3:
                with contextlib.suppress(self.error):
                    attempt.tr.get(b"hot").wait()  # used during the commit

    # --- one seed, and what must be true after it ---

    def play(self) -> None:
        workers = [threading.Thread(target=self.run, args=(n,), name=f"worker {n}") for n in range(1, THREADS + 1)]
        for thread in workers:
            thread.start()
        disturbers = [threading.Thread(target=self.interrupt, args=(workers,)), threading.Thread(target=self.disturb)]
        signal.signal(signal.SIGINT, self.on_signal)
        for thread in disturbers:
            thread.start()
        try:
            self.exposed = True
            self.run(0)
        except KeyboardInterrupt:
            pass
        self.exposed = False
        for thread in workers:
            thread.join()
        self.over = True
        for thread in disturbers:
            thread.join()
        self.check()

    def on_signal(self, *_: Any) -> None:
        if self.exposed:
            raise KeyboardInterrupt

    def check(self) -> None:
        db = self.db
        deadline = time.monotonic() + HANGS_AFTER
        committer = db.dpointer.engine.committer
        while committer.unsettled or committer.queue:  # what nobody waits for is made all the same
            assert time.monotonic() < deadline, "commits that were left aren't taken up"
            time.sleep(0.001)
        for what in ("commit", "stamp", "watch"):
            for attempt in self.attempts:
                attempt.tr = None  # what was never committed ends with it
                future = getattr(attempt, what)
                if future is not None:
                    ready = future.wait_for(max(0.0, deadline - time.monotonic()))
                    assert ready, f"the {what} of {attempt.name!r} (told {attempt.told}, {attempt.code}) never ends"
            db[b"after"] = b"%d" % self.seed
            for n in range(3):
                db[b"watched/%d" % n] = b"after %d" % self.seed
        rows = {key[4:] for key, _ in db.create_transaction().read_range(b"row/", b"row0")}
        stamps = dict(db.create_transaction().read_range(b"stamp/", b"stamp0"))
        assert {key[6:] for key in stamps} == rows, "a commit is there in part"
        made = Counter(int(name.split(b"/")[1]) for name in rows)
        for n in range(THREADS + 1):
            count = int.from_bytes(db[b"count/%d" % n] or b"", "little")
            assert count == made[n], f"{made[n]} commits of thread {n} are there, {count} took place"
        for attempt in self.attempts:
            there = attempt.name in rows
            said = f"{attempt.name!r} was told {attempt.told}, {attempt.code}"
            if attempt.told == "committed":
                assert there or attempt.disturbed, f"{said} and isn't there"
            elif attempt.told == "an error":
                assert attempt.code in REFUSED | OPEN, said
                assert not (there and attempt.code in REFUSED), f"{said} and is there"
            stamp = attempt.stamp
            if stamp is not None and stamp.fpointer.done and not stamp.fpointer.error and not attempt.disturbed:
                assert stamps.get(b"stamp/" + attempt.name) == stamp.fpointer.value, said
        assert not db.dpointer.watches, "watches that have ended count against the limit"
        engine = db.dpointer.engine
        assert not engine.committer.unsettled and not engine.committer.queue
        told = Counter((attempt.told, attempt.code) for attempt in self.attempts)
        print(f"seed {self.seed}: {self.hits} interrupts, {len(rows)} made, told {dict(told)}", flush=True)
        db.clear_range(b"", b"\xff")


def main() -> None:
    name, durability, first, count = sys.argv[1:5]
    sys.setswitchinterval(0.0002)
    db = fdb_embedded.open(name, **({} if name.startswith("memory:") else {"durability": durability}))
    for seed in range(int(first), int(first) + int(count)):
        faulthandler.dump_traceback_later(HANGS_AFTER + 30, exit=True)
        db.clear_range(b"", b"\xff")
        try:
            Storm(db, seed).play()
        except AssertionError as error:
            sys.exit(f"seed {seed} of {name}, {durability}: {error}")
    faulthandler.cancel_dump_traceback_later()
    fdb_embedded.close(db)


if __name__ == "__main__":
    main()
