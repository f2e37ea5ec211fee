"""Processes that follow keys by watches alone, while others change them, and any of them is killed or stopped. Run by test_watch_storm.py.

    python watch_storm.py NAME DURABILITY SEED ROUNDS [DEFECT]

Each round changes keys in many ways and places at once, and then waits until every process that follows has seen the last value of each of
its keys. Nobody reads a key but when a watch of it has ended. Exit code 0 when all was seen in time, 1 when a watch never fired.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import fdb_embedded
from fdb_embedded.engine import watches
from fdb_embedded.sharing import interest, slots

HOT = [b"hot/%02d" % n for n in range(24)]
COLD = [b"cold/%04d" % n for n in range(300)]
SEEN_WITHIN = float(os.environ.get("WATCH_STORM_SECONDS", "30"))
FEW_BITS = 511  # so that keys share bits, and many are taken for watched ones that aren't


# --- defects that must be found ---


def uncounted(self: Any, page: Any, key: bytes) -> None:
    """A key that is withdrawn takes the bits of others along."""
    place = self.keys.pop(key, None)
    for at, mask in zip(place[::2], place[1::2], strict=True) if place else ():
        page.clear_bit(at, mask)


def forgetful(self: Any) -> None:
    """What is to be looked at leaves the page, and isn't noted."""
    for place, _ in self.engine.store.page.slots.hits():
        self.engine.store.page.slots.clear_hit(place)


def plant(defect: str) -> None:
    if defect == "uncounted":
        interest.Interest.withdraw = uncounted  # type: ignore[method-assign]
    elif defect == "unpaid":  # nobody looks for commits of which nobody told
        slots.Slots.debts = lambda _: {}  # type: ignore[method-assign]
    elif defect == "forgetful":
        collect = watches.Watches._collect
        chance = random.Random(1)

        def forgets(self: Any) -> None:
            if chance.random() < 0.3:
                forgetful(self)
            collect(self)

        watches.Watches._collect = forgets  # type: ignore[method-assign]
    elif defect == "late":  # a watch is looked at before commits are asked for it
        tell = watches.Watches._tell

        def late(self: Any, added: Any) -> None:
            self._fresh.clear()
            time.sleep(0.002)
            tell(self, added)

        watches.Watches._tell = late  # type: ignore[method-assign]
    elif defect:
        raise SystemExit(f"no such defect: {defect}")


# --- who follows ---


def follow(db: Any, seed: int) -> None:
    """Print each value of each key that is seen; keys are divided among threads, each with its own way to wait."""
    chance = random.Random(seed)
    out = threading.Lock()

    def look(names: list[bytes]) -> list[Any]:
        tr = db.create_transaction()
        seen = [(name, tr[name].value) for name in names]
        started = [tr.watch(name) for name in names]
        tr.commit().wait()
        with out:
            for name, value in seen:
                print(name.decode(), (value or b"-").decode())
            sys.stdout.flush()
        return started

    def one_by_one(names: list[bytes]) -> None:
        held = dict(zip(names, look(names), strict=True))
        while True:
            for name in names:
                if held[name].wait_for(0.0 if chance.random() < 0.9 else 0.02):
                    held[name] = look([name])[0]
                elif chance.random() < 0.02:
                    held[name].cancel()
                    held[name] = look([name])[0]
            next(iter(held.values())).wait_for(0.01)

    def called_back(names: list[bytes]) -> None:
        ended: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def begin(name: bytes) -> None:
            look([name])[0].on_ready(lambda _: ended.put(name))

        for name in names:
            begin(name)
        while True:
            begin(ended.get())

    def alone(name: bytes) -> None:
        while True:
            look([name])[0].wait()

    chance.shuffle(HOT)
    ways = [(one_by_one, HOT[:8]), (called_back, HOT[8:16]), *((alone, name) for name in HOT[16:20])]
    tr = db.create_transaction()
    cold = [tr.watch(name) for name in COLD]
    tr.commit().wait()
    threads = [threading.Thread(target=way, args=(names,), daemon=True) for way, names in ways]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    assert len(cold) == len(COLD)
    os._exit(0)


# --- who changes ---


def change(db: Any, chance: random.Random, turn: str) -> None:
    value = b"%s" % turn.encode()
    name = chance.choice(HOT)
    what = chance.random()
    tr = db.create_transaction()
    if what < 0.6:
        tr[name] = value
    elif what < 0.7:
        tr.clear(name)
    elif what < 0.8:
        first = chance.randrange(len(HOT))
        tr.clear_range(b"hot/%02d" % first, b"hot/%02d" % (first + chance.randrange(3)))
    elif what < 0.9:
        tr.options.set_next_write_no_write_conflict_range()
        tr[name] = value
    else:
        for name in chance.sample(HOT, 3):
            tr[name] = value
        tr[b"other"] = value
    with contextlib.suppress(Exception):
        tr.commit().wait()


def write(db: Any, seed: int) -> None:
    """Change keys as often as asked; if asked to, be killed between the last commit and the telling of it."""
    chance = random.Random(seed)
    tell = slots.Slots.tell
    dies = False

    def tells(self: Any, *arguments: Any) -> None:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(self, *arguments)

    slots.Slots.tell = tells  # type: ignore[method-assign]
    for line in sys.stdin:
        count, dying = map(int, line.split())
        for number in range(count):
            dies = dying > 0 and number == count - 1
            change(db, chance, f"{seed}.{number}.{chance.randrange(10**9)}")
        print("done", flush=True)


# --- who judges ---


class Follower:
    """A process that follows, and what it has seen."""

    def __init__(self, command: list[str], seed: int) -> None:
        arguments = [*command, "follow", str(seed)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seen: dict[bytes, bytes] = {}
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, value = line.split()
            self.seen[name.encode()] = value.encode()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def judge(name: str, durability: str, seed: int, rounds: int, defect: str) -> int:
    chance = random.Random(seed)
    db = fdb_embedded.open(name, durability=durability)
    command = [sys.executable, __file__, name, durability, str(seed), str(rounds), defect]
    followers = [Follower(command, seed + number) for number in range(2)]
    following = 20

    def writer(number: int) -> subprocess.Popen[str]:
        arguments = [*command, "write", str(1000 * seed + number)]
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    writers = [writer(number) for number in range(2)]
    count = len(writers)
    try:
        for turn in range(rounds):
            for one in writers:
                assert one.stdin is not None
                one.stdin.write(f"{chance.randrange(1, 60)} {int(chance.random() < 0.3)}\n")
                one.stdin.flush()
            stopped = chance.choice(followers).process if chance.random() < 0.5 else None
            if stopped is not None:
                stopped.send_signal(signal.SIGSTOP)
            for number in range(chance.randrange(40)):
                change(db, chance, f"judge.{turn}.{number}")
            for number, one in enumerate(writers):
                assert one.stdout is not None
                if not one.stdout.readline():
                    end(one)
                    writers[number] = writer(count)
                    count += 1
            if stopped is not None:
                stopped.send_signal(signal.SIGCONT)
            if chance.random() < 0.1:
                followers[0].end()
                followers[0] = Follower(command, seed + 100 + turn)
            expected = {key: db[key] for key in HOT}
            deadline = time.monotonic() + SEEN_WITHIN
            for one_of in followers:
                while True:
                    seen = one_of.seen.copy()
                    wrong = [key for key, value in seen.items() if value != bytes(expected[key] or b"-")]
                    if len(seen) == following and not wrong:
                        break
                    if time.monotonic() > deadline:
                        print(f"seed {seed}, round {turn}: {wrong} of {len(seen)} keys were never seen to change")
                        return 1
                    time.sleep(0.005)
        print(f"seed {seed}: {rounds} rounds, {count} writers")
        return 0
    finally:
        for one_of in followers:
            one_of.end()
        for one in writers:
            end(one)
        fdb_embedded.close(db)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def main() -> int:
    name, durability, seed, rounds = sys.argv[1:5]
    defect, role = sys.argv[5] if len(sys.argv) > 5 else "", sys.argv[6:]
    interest._LAST_BIT = FEW_BITS
    plant(defect)
    if not role:
        return judge(name, durability, int(seed), int(rounds), defect)
    db = fdb_embedded.open(name, durability=durability)
    (follow if role[0] == "follow" else write)(db, int(role[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
