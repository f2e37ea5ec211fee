"""What clients of the simulation ask futures for: options and tasks as they are drawn, and how each may end."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final

from fdb_datamodel import id_for_key
from futures_worker import Client
from futures_worker.client.future import record_of
from futures_worker.errors import (
    FutureFailedError,
    FutureTimeoutError,
    NoWorkerError,
    ObjectLostError,
    SoftTimeLimitExceeded,
    UpstreamDependencyFailedException,
    WorkerLostError,
)
from simulation import attempts, rows, workers
from simulation.attempts import EARLY, LIMITS, SMALL, Book, trusted
from simulation.machine import Process
from simulation.sites import Site
from simulation.stand_ins import machine
from simulation.tasks import Meant, wished
from simulation.world import CLUSTER, World

PATIENT: Final = {"max_retries": 10**6, "max_worker_losses": 10**6}
KINDS: Final = {
    "plain": 8, "failing": 2, "shaky": 2, "long": 1, "brief": 1, "queued": 1, "soft": 2, "once": 1, "shared": 2,
    "later": 1, "parent": 2, "cleaning": 2, "put": 2, "never again": 1,
}  # fmt: skip
LONG: Final = 60.0
"""Seconds for which a task rests that is to be ended before."""
_KEYS: Final = 4


@dataclass
class Shared:
    """A future that several clients submit by one key, and what it came to."""

    key: str
    holders: list[Process] = field(default_factory=list)
    value: Any = None
    again: bool = False
    """Whether it was submitted again when nobody had it any more: then it may be gone."""

    def was_forsaken(self) -> bool:
        """Whether one of those who had it was silent for so long that it may be gone for whoever submitted its key later."""
        return any(process.silent > workers.SESSION_TTL / 2 for process in self.holders)

    def held(self) -> bool:
        """Whether somebody has it."""
        return any(not process.dead for process in self.holders)


@dataclass(eq=False, repr=False)
class Wish:
    """A future of a client that lives."""

    kind: str
    number: int
    does: dict[str, Any]
    options: dict[str, Any]
    total: int = 0
    """What it is to come to: its number and those of its inputs, and so on."""
    inputs: Sequence[Wish] = ()
    handle: Any = None
    asked_to_cancel: bool = False
    shared: Shared | None = None

    @property
    def id(self) -> bytes:
        return record_of(self.handle).id

    @property
    def may_fail(self) -> bool:
        """Whether it may end without a value."""
        found = [self]
        for one in found:
            hurt = one.kind in ("long", "queued", "put", "never again") or one.options["max_retries"] < 100
            if one.asked_to_cancel or hurt:
                return True
            found += [given for given in one.inputs if given not in found]
        return False

    def __repr__(self) -> str:
        return f"{self.kind} {self.number} {self.does} {self.options} {attempts.of(self.handle)}"

    # --- how it may end

    def returned(self, value: tuple[int, Any, list[Any]]) -> list[Wish]:
        """Checks what it came to; what it submitted, and goes on."""
        known = attempts.of(self.handle)
        number, beside, made = value
        size = self.does.get("size", 0)
        assert not size or beside == b"x" * size, f"{self} has {len(beside)} bytes"
        assert number == self.total and self.kind != "failing", f"{number} is not {self.total}, of {self}"
        if self.does["seconds"] == LONG and self.kind != "cleaning":
            assert self.kind == "soft" or not trusted(known), f"{self} returned, and was to be ended before"
            assert beside == b"soft" or not trusted(known), f"{self} wasn't told of its soft limit"
        elif self.kind == "soft":
            assert beside != b"soft" or not trusted(known), f"{self} was told of a soft limit that it didn't reach"
        if self.shared is not None:
            known_value = self.shared.value = self.shared.value or beside
            again = self.shared.again or self.shared.was_forsaken()
            assert known_value == beside or again, f"{self} came to {beside}, and to {known_value}"
        return [
            Wish("child", at, self.does["child"], PATIENT, at, handle=one, asked_to_cancel=self.asked_to_cancel)
            for at, one in enumerate(made)
        ]

    def failed(self, world: World, error: Exception) -> None:
        """Checks why it has no value."""
        known = attempts.of(self.handle)
        if isinstance(error, UpstreamDependencyFailedException):
            first = [one for one in self.inputs if one.id == error.chain[0].bytes]
            allowed = any(one.may_fail for one in first)
        elif isinstance(error, CancelledError):
            allowed = self.asked_to_cancel
        elif isinstance(error, ObjectLostError):
            allowed = self.kind in ("put", "never again") and self.does["size"] > SMALL and world.befallen > 0
        elif isinstance(error, Meant):
            allowed = str(error) == f"{self.number}" and self._may_raise(known)
        elif isinstance(error, FutureTimeoutError):
            allowed = self._may_time_out(known)
        elif isinstance(error, WorkerLostError):
            died = Site.crashes and self.options["max_retries"] < 100
            allowed = bool(died or (world.harmed and self.options["max_worker_losses"] < 100))
        elif isinstance(error, SoftTimeLimitExceeded):
            allowed = self.kind == "soft" and self.does["fails softly"]
            allowed = allowed and (self.does["seconds"] == LONG or not trusted(known))
        else:  # one that had begun, and may not begin again, was ended with its worker
            allowed = self.kind == "once" and any(one.child.parent.leaves and not one.how for one in known)
        if not allowed:
            raise AssertionError(f"{self} failed so, and wasn't to: {error!r}") from error

    def _may_raise(self, known: Sequence[attempts.Attempt]) -> bool:
        """Whether it was tried as often as it was to be, and no more often."""
        raised = [one for one in known if one.how == "raised"]
        most = 1 + self.options["max_retries"]
        often = len(raised) >= most or Site.crashes > 0  # a process may die before the task's own code begins
        return self.kind == "failing" and often and sum(one.trusted for one in raised) <= most

    def _may_time_out(self, known: Sequence[attempts.Attempt]) -> bool:
        if self.kind == "queued":
            return not known
        if self.kind in ("brief", "long"):
            return self.does["seconds"] == LONG or not trusted(known) or (self.kind == "long" and not known)
        return False


class Wishes:
    """Draws them, for all clients of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shared = [Shared(f"key {number}") for number in range(_KEYS)]
        self.used: set[str] = set()
        """Keys that were submitted."""

    def submit(self, process: Process, client: Client, known: Sequence[Wish]) -> Wish:
        """One more."""
        chance = self.world.chance
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "put":
            try:
                return self._put(client)
            except NoWorkerError:  # none is there, or each left, or died, while it took it
                kind = "plain"
        does: dict[str, Any] = {"seconds": chance.choice((0.0, 0.0, 0.01, 0.3, 4.0))}
        wish = Wish(kind, chance.randrange(1000), does, dict(PATIENT))
        if kind not in ("shared", "later"):
            wish.inputs = [one for one in known if _may_be_given(one, chance)][:3]
        if chance.random() < 0.2:
            wish.options["resources"] = {"cpu": 1, "ram": 1 << 30}
        if chance.random() < 0.3:
            wish.options["priority"] = chance.choice((-5, 5))
        if chance.random() < 0.2 and kind != "shared":
            wish.options["limits"] = does["limits"] = chance.sample(sorted(LIMITS), chance.choice((1, 1, 2)))
            if "seldom" in does["limits"] and Book.attempts.first_start is None:
                Book.attempts.first_start = machine().now
        _DRAWN[kind](wish, chance)
        if kind == "shared":
            self._share(wish, process)
        wish.total = wish.number + sum(one.total for one in wish.inputs)
        begun = machine().now
        inputs = [one.handle for one in wish.inputs]
        wish.handle = client.submit(wished, wish.number, does, inputs, **wish.options)
        expected = Book.attempts.expect(wish.id)
        expected.once, expected.backoff = kind == "once", wish.options.get("backoff", 0.0)
        if kind == "long":
            expected.times_out = begun
        if kind == "later":
            expected.not_before = begun + does["later"] * EARLY
        return wish

    def _put(self, client: Client) -> Wish:
        chance = self.world.chance
        number, size = chance.randrange(1000), chance.choice((100, 50_000, 50_000))
        made = client.put((number, b"x" * size, []))
        return Wish("put", number, {"seconds": 0.0, "size": size}, PATIENT, number, handle=made)

    def copy(self, client: Client, one: Wish) -> None:
        """Onto another worker, or away to it. How it ends is seen to when it is awaited."""
        found = client.workers()
        if found and one.does.get("size", 0) > SMALL:
            way = self.world.chance.choice((client.clone, client.transfer))
            with contextlib.suppress(FutureFailedError, NoWorkerError, CancelledError, *rows.GONE):
                way(one.handle, self.world.chance.choice(found))

    def _share(self, wish: Wish, process: Process) -> None:
        which = wish.number = wish.number % _KEYS
        shared = self.shared[which]
        if shared.key in self.used and not shared.held():
            if self.world.chance.random() < 0.2:
                shared.again = True
            else:
                shared = self.shared[which] = Shared(f"{shared.key}'")
        self.used.add(shared.key)
        wish.options["key"], wish.shared = shared.key, shared
        maybe = shared.again or any(one.silent > workers.SESSION_TTL / 2 for one in shared.holders)
        Book.attempts.expect(id_for_key(CLUSTER, shared.key)).again |= maybe
        shared.holders.append(process)

    def cancel(self, process: Process, one: Wish) -> None:
        """Once at most, with or without what it submitted."""
        chance = self.world.chance
        if one.asked_to_cancel or one.kind in ("shared", "child"):
            return
        one.asked_to_cancel = True
        Book.attempts.expect(one.id).times_out = 0.0
        grace = chance.choice((1.0, 8.0, 40.0)) if one.kind == "cleaning" else chance.choice((None, None, 3.0))
        children = chance.random() < 0.7
        family = [one.id, *Book.attempts.children.get(one.id, ())] if children else [one.id]
        try:
            if one.handle.cancel(children=children, grace=grace):
                Book.attempts.cancelled(family, grace or 0.0)
        except rows.GONE:
            rows.was_silent(process)


def _may_be_given(one: Wish, chance: random.Random) -> bool:
    may_be_gone = one.shared is not None and one.shared.again
    return chance.random() < (0.1 if one.may_fail else 0.3) and not may_be_gone


# --- what each kind does


def _failing(wish: Wish, chance: random.Random) -> None:
    wish.does["raises"] = 10**6
    wish.options["max_retries"] = chance.choice((0, 1, 1, 3))
    if chance.random() < 0.5:
        wish.options["backoff"] = chance.choice((0.3, 4.0))


def _shaky(wish: Wish, chance: random.Random) -> None:
    wish.does["raises"] = chance.choice((1, 2, 5))
    if chance.random() < 0.5:
        wish.options["backoff"] = chance.choice((0.3, 4.0))
    if not Site.crashes and chance.random() < 0.5:
        wish.options["max_retries"] = wish.does["raises"]  # just enough


def _long(wish: Wish, chance: random.Random) -> None:
    wish.does["seconds"] = LONG
    wish.options["timeout"] = {"total": chance.choice((1.0, 5.0, 20.0))}


def _brief(wish: Wish, chance: random.Random) -> None:
    wish.does["seconds"] = chance.choice((0.0, 0.3, LONG))
    wish.options["timeout"] = chance.choice((2.0, 5.0))
    wish.options["max_retries"] = chance.choice((0, 1))


def _queued(wish: Wish, chance: random.Random) -> None:
    wish.options["timeout"] = {"queue": chance.choice((0.05, 0.5, 3.0))}


def _soft(wish: Wish, chance: random.Random) -> None:
    wish.does["seconds"] = chance.choice((0.0, 0.3, LONG))
    wish.does["fails softly"] = chance.random() < 0.3
    wish.options["soft_timeout"] = chance.choice((2.0, 5.0))
    if wish.does["fails softly"]:
        wish.options["max_retries"] = chance.choice((0, 1))


def _once(wish: Wish, _chance: random.Random) -> None:
    wish.options.update(max_retries=0, max_worker_losses=0, max_oom=0, allow_reconstruction=False)


def _plain(wish: Wish, chance: random.Random) -> None:
    wish.does["size"] = chance.choice((0, 0, 100, 50_000))


def _never_again(wish: Wish, _chance: random.Random) -> None:
    wish.does["size"] = 50_000
    wish.options["allow_reconstruction"] = False


def _shared(wish: Wish, _chance: random.Random) -> None:
    wish.does["counts"] = True


def _later(wish: Wish, chance: random.Random) -> None:
    seconds = wish.does["later"] = chance.choice((0.5, 5.0, 20.0))
    if chance.random() < 0.7:
        wish.options["after"] = seconds
    else:
        wish.options["at"] = time.time() + seconds


def _parent(wish: Wish, chance: random.Random) -> None:
    wish.does["children"], wish.does["waits"] = chance.randint(1, 4), chance.random() < 0.4
    wish.does["child"] = {"seconds": chance.choice((0.0, 0.3, 4.0))}


def _cleaning(wish: Wish, chance: random.Random) -> None:
    wish.does["seconds"] = chance.choice((0.0, 3.0, 20.0))
    wish.does["cleans"] = chance.choice((0.0, 0.3, 3.0, LONG))


_DRAWN: Final = {
    "plain": _plain, "failing": _failing, "shaky": _shaky, "long": _long, "brief": _brief, "queued": _queued,
    "soft": _soft, "once": _once, "shared": _shared, "later": _later, "parent": _parent, "cleaning": _cleaning,
    "never again": _never_again,
}  # fmt: skip
