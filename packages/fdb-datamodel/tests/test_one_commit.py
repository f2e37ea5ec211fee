"""The protocol of docs/design/one-commit.md, explored: every order in which its transactions begin and land, every crash between.

Transactions are FoundationDB's: each reads a snapshot of when it began, and lands unless a key that it read serializably was
written since; additions read nothing. What lands late, or never, is an order like any other. At the end whoever lives goes on,
the dead are found, and nothing may be left over, lost, told wrongly or done twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

Rows = dict[str, object]
Reads = frozenset[str]
Body = Callable[[Rows], tuple[Rows, Reads, str]]
"""Of a snapshot: rows to set (None: cleared; of BALANCE what is added), the keys read serializably, what it found."""

CODE, CLAIM, POOL, RESULT, FAILED, BALANCE, LIVE, SESSION = [
    "code",
    "claim",
    "pool",
    "result",
    "failed",
    "balance",
    "live",
    "session",
]
FIRST, SECOND = "first", "second"  # tokens of the claim that is pushed, and of one from the pool
GUARDS: Final = frozenset({"session", "fence", "failed"})
"""What the protocol asks of its reads beyond today's; each is left out once, to see that it is needed."""


def submit(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """S: the client stores the future, claimed by the worker that it has sent it to; a dead one's goes to the pool."""
    reads = {LIVE, CODE} | ({SESSION} if "session" in guards else set())
    if CODE in rows:
        return {}, frozenset(reads), "known"
    if "session" in guards and SESSION not in rows:
        return {}, frozenset(reads), "reaped"
    if rows.get(BALANCE) == -1:  # the end has landed: a snapshot read
        return {CODE: 1, BALANCE: 1}, frozenset(reads), "stored"
    if LIVE in rows:
        return {CODE: 1, CLAIM: FIRST, BALANCE: 1}, frozenset(reads), "stored"
    return {CODE: 1, POOL: 1}, frozenset(reads), "stored"


def end(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """E: the worker writes the result, whether or not the submit has landed."""
    reads = {name for name, guard in ((LIVE, "fence"), (FAILED, "failed")) if guard in guards}
    if "fence" in guards and LIVE not in rows:
        return {}, frozenset(reads), "fenced"
    if CODE in rows:
        reads |= {CLAIM}
        if rows.get(CLAIM) != FIRST or FAILED in rows or RESULT in rows:
            return {}, frozenset(reads), "lost"
        return {RESULT: FIRST, BALANCE: -1}, frozenset(reads), "ended"
    if "session" in guards:
        reads.add(SESSION)
        if SESSION not in rows:
            return {}, frozenset(reads), "lost"
    return {RESULT: FIRST, BALANCE: -1}, frozenset(reads), "ended"


def cancel(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """C: somebody who knows its id cancels it."""
    reads = frozenset({CODE, RESULT, FAILED, CLAIM, POOL})
    if CODE not in rows or RESULT in rows or FAILED in rows:
        return {}, reads, "nothing"
    changed: Rows = {FAILED: 1, POOL: None, CLAIM: None}
    if rows.get(CLAIM) == FIRST:
        changed[BALANCE] = -1
    return changed, reads, "cancelled"


def declare_dead(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """D: the worker is judged dead; what it has goes to the pool."""
    reads = frozenset({LIVE, BALANCE, CLAIM})
    changed: Rows = {LIVE: None}
    if rows.get(BALANCE) == 1 and rows.get(CLAIM) == FIRST:
        changed |= {CLAIM: None, POOL: 1, BALANCE: -1}
    return changed, reads, "declared"


def reap(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """R: the client's session is over; an end whose submit never landed, and never will, goes."""
    reads = frozenset({SESSION, BALANCE, CODE, RESULT})
    changed: Rows = {SESSION: None}
    if rows.get(BALANCE) == -1 and CODE not in rows:
        changed |= {RESULT: None, BALANCE: 1}
    return changed, reads, "reaped"


def claim(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """P: another worker takes it from the pool."""
    reads = frozenset({POOL, RESULT, FAILED, CLAIM, CODE})
    if POOL not in rows:
        return {}, reads, "nothing"
    if RESULT in rows or FAILED in rows:
        return {POOL: None}, reads, "nothing"
    return {POOL: None, CLAIM: SECOND}, reads, "claimed"


def end_again(rows: Rows, guards: Reads) -> tuple[Rows, Reads, str]:
    """That worker's end, as today's."""
    reads = frozenset({CLAIM, FAILED, RESULT})
    if rows.get(CLAIM) != SECOND or FAILED in rows or RESULT in rows:
        return {}, reads, "lost"
    return {RESULT: SECOND}, reads, "ended"


BODIES: Final = {"S": submit, "E": end, "C": cancel, "D": declare_dead, "R": reap, "P": claim, "F": end_again}


class Open(NamedTuple):
    """A transaction that has begun: what it will write, what it read, whether that was written since."""

    writes: tuple[tuple[str, object], ...]
    reads: Reads
    found: str
    stale: bool


class State(NamedTuple):
    """rows; each actor: None before it begins, an `Open`, or what it found; whether the answer was told."""

    rows: frozenset[tuple[str, object]]
    actors: tuple[tuple[str, Open | str | None], ...]
    told: object = None


def landed(rows: Rows, writes: tuple[tuple[str, object], ...]) -> Rows:
    after = dict(rows)
    for key, value in writes:
        if key == BALANCE:
            value = (after.get(BALANCE, 0) + value) or None  # type: ignore[operator]
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def steps(state: State, guards: Reads) -> Iterator[State]:
    """Every state that comes next."""
    rows, actors = dict(state.rows), dict(state.actors)
    for name, at in actors.items():
        if isinstance(at, str):
            continue
        if at is None:
            if name == "E" and actors["S"] is None:
                continue  # it was not sent yet
            if name == "F" and actors.get("P") != "claimed":
                continue
            writes, reads, found = BODIES[name](rows, guards)
            begun = Open(tuple(writes.items()), reads, found, False)
            yield state._replace(actors=tuple((actors | {name: begun}).items()))
            continue
        if at.stale:  # a conflict: it begins again
            yield state._replace(actors=tuple((actors | {name: None}).items()))
            continue
        changed = {key for key, _ in at.writes}
        others = {
            other: one._replace(stale=one.stale or bool(changed & one.reads)) if isinstance(one, Open) else one
            for other, one in actors.items()
        }
        told = state.told
        if name in ("E", "F") and at.found == "ended":
            told = dict(at.writes)[RESULT] if told is None else told
        yield State(frozenset(landed(rows, at.writes).items()), tuple((others | {name: at.found}).items()), told)


def settled(state: State, guards: Reads, client_lives: bool, worker_lives: bool) -> tuple[Rows, dict[str, str]]:
    """What it comes to: who lives ends what it has begun, the dead are found, the pool is emptied."""
    rows, found = dict(state.rows), {name: at for name, at in state.actors if isinstance(at, str)}

    def go_on(name: str) -> None:
        writes, _, what = BODIES[name](rows, guards)
        after = landed(rows, tuple(writes.items()))
        rows.clear()
        rows.update(after)
        found[name] = what

    if client_lives and "S" not in found:
        go_on("S")
    if worker_lives and "E" not in found and LIVE in rows:
        go_on("E")
    if not client_lives and found.get("R") is None:
        go_on("R")
    if not worker_lives or rows.get(BALANCE) == 1:
        go_on("D")
    go_on("P")
    if rows.get(CLAIM) == SECOND:
        go_on("F")
    return rows, found


def wrong(rows: Rows, found: dict[str, str], told: object, client_lives: bool) -> str:
    """What may never be; empty where all is well."""
    if RESULT in rows and FAILED in rows:
        return "it has two ends"
    if CODE in rows and not (RESULT in rows or FAILED in rows):
        return "it never ends"
    if {POOL, BALANCE} & rows.keys():
        return f"left over: {sorted({POOL, BALANCE} & rows.keys())}"
    if CODE not in rows and (RESULT in rows or FAILED in rows):
        return "an end of nothing"
    if client_lives and found.get("S") == "stored" and CODE not in rows:
        return "it was stored, and is gone"
    if client_lives and told is not None and "R" not in found and rows.get(RESULT) != told:
        return "another result than was told"
    return ""


def explore(actors: str, guards: Reads = GUARDS) -> tuple[int, list[str]]:
    """How many states there are, and what is wrong in them, with who died."""
    first = State(frozenset({(LIVE, 1), (SESSION, 1)}), tuple((name, None) for name in actors))
    seen, left, troubles = {first}, [first], []
    while left:
        state = left.pop()
        for following in steps(state, guards):
            if following not in seen:
                seen.add(following)
                left.append(following)
        for client_lives, worker_lives in itertools.product((True, False), repeat=2):
            rows, found = settled(state, guards, client_lives, worker_lives)
            if trouble := wrong(rows, found, state.told, client_lives):
                troubles.append(f"{trouble}: client {client_lives}, worker {worker_lives}, {state}")
    return len(seen), troubles


@pytest.mark.parametrize("others", ["", "C", "D", "R", "CD", "CR", "DR", "DPF", "CDPF", "DRPF", "CDRPF"])
def test_every_order_of_landing_and_every_death_between_comes_to_one_end(others: str) -> None:
    states, troubles = explore("SE" + others)
    assert states > 5
    assert troubles == []


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_each_guard_is_needed(guard: str) -> None:
    _, troubles = explore("SECDRPF", GUARDS - {guard})
    assert troubles


def test_neither_commit_waits_for_the_other() -> None:
    """Begun before either landed, both land: in either order, without a conflict."""
    rows: Rows = {LIVE: 1, SESSION: 1}
    of_submit, of_end = submit(rows, GUARDS), end(rows, GUARDS)
    assert not {key for key, _ in of_submit[0].items()} & of_end[1]
    assert not {key for key, _ in of_end[0].items()} & of_submit[1]
    one = landed(landed(rows, tuple(of_submit[0].items())), tuple(of_end[0].items()))
    other = landed(landed(rows, tuple(of_end[0].items())), tuple(of_submit[0].items()))
    assert one == other
    assert BALANCE not in one
