"""The state machine, once: which moves an item may make, who makes them, and which operation is which.

Rows: A not in the sysdb, B in it and scheduled or running, C in it and waiting for writes. Columns: 1 some item of the
task is on the heap, 2 none is. An operation changes the row (one FoundationDB transaction) or the column (one
conditional write of one object), never both. Everything else asks this module: the transitions name their operation,
the history checker and the protocol model compare what they saw with it, and the documentation's picture is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from s3heap_tender.errors import TransitionError


class Row(Enum):
    """Where the sysdb has a task."""

    A = "not in sysdb"
    B = "scheduled or running"
    C = "waiting"


class Column(Enum):
    """Whether the heap has an item of the task."""

    ON_HEAP = 1
    NOT_ON_HEAP = 2


class State(Enum):
    """A task's state as its row stores it; the first two are row B."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    WAITING = "waiting"


ROW_OF: Final[dict[State | None, Row]] = {
    None: Row.A,
    State.SCHEDULED: Row.B,
    State.RUNNING: Row.B,
    State.WAITING: Row.C,
}

Cell = tuple[Row, Column]
A1: Final[Cell] = (Row.A, Column.ON_HEAP)
A2: Final[Cell] = (Row.A, Column.NOT_ON_HEAP)
B1: Final[Cell] = (Row.B, Column.ON_HEAP)
B2: Final[Cell] = (Row.B, Column.NOT_ON_HEAP)
C1: Final[Cell] = (Row.C, Column.ON_HEAP)
C2: Final[Cell] = (Row.C, Column.NOT_ON_HEAP)
CELLS: Final[tuple[Cell, ...]] = (A1, A2, B1, B2, C1, C2)


def cell_name(cell: Cell) -> str:
    """`A1` … `C2`."""
    return f"{cell[0].name}{cell[1].value}"


@dataclass(frozen=True, slots=True)
class Move:
    """One allowed move between cells."""

    source: Cell
    target: Cell
    label: str  # the name in the document that started the design
    operations: frozenset[str]  # what may make it
    who: str
    why: str


def _move(source: Cell, target: Cell, label: str, operations: str, who: str, why: str) -> Move:
    return Move(source, target, label, frozenset(operations.split()), who, why)


_RESCHEDULE = "sweep resume run_now backfill"

MOVES: Final[tuple[Move, ...]] = (
    _move(A2, B2, "NEW1", "create", "API", "a new task is due at once: row, generation 1, intent"),
    _move(B2, B1, "NEW2, push", "push", "tender", "a conditional write puts the current generation on the heap"),
    _move(B1, C1, "YES2", "finish", "runner", "the run is over and its log has nothing more to read"),
    _move(C1, B1, "YES3", _RESCHEDULE, "tender, API", "there was a write (or a request): next generation, intent"),
    _move(C2, B2, "YES3", _RESCHEDULE, "tender, API", "the same, with nothing left on the heap"),
    _move(B1, A1, "YES1", "delete", "API, janitor", "row and intent are deleted, a tombstone stays"),
    _move(C1, A1, "YES1", "delete", "API, janitor", "row and intent are deleted, a tombstone stays"),
    _move(C2, A2, "YES1", "delete", "API, janitor", "row and intent are deleted, a tombstone stays"),
    _move(B2, A2, "YES1, GC2", "delete", "API, janitor", "row and intent are deleted, a tombstone stays"),
    _move(A1, A2, "GC1", "prune", "pruner", "the task is gone for ever, so its item is done for ever"),
    _move(C1, C2, "prune", "prune", "pruner", "an item carries its generation, so a done one may always go"),
    _move(A2, A1, "stale push", "push", "tender", "a delayed push of a done item: harmless, pruned later"),
    _move(C2, C1, "stale push", "push", "tender", "a delayed push of a done item: harmless, pruned later"),
    _move(B1, B2, "stale prune", "prune", "pruner", "every removed item is done, so an intent is pending"),
)

NEVER: Final[dict[tuple[Cell, Cell], str]] = {
    (A1, B1): "IMP2: ids are never reused",
    (A1, C1): "IMP2: ids are never reused",
    (A2, C2): "NO1: a new task runs at once",
    (B2, C2): "a run starts from an item on the heap, which stays until the run is over",
}
"""Moves within a row or a column that must not happen. Every move that changes both is impossible (the twelve X)."""

_ALLOWED: Final[dict[tuple[Cell, Cell], Move]] = {(move.source, move.target): move for move in MOVES}

Change = tuple[State | None, State | None]
_S, _R, _W = State.SCHEDULED, State.RUNNING, State.WAITING
_REQUEST: Final[frozenset[Change]] = frozenset({(_W, _S), (_S, _S), (_R, _R)})

OPERATIONS: Final[dict[str, frozenset[Change]]] = {
    "create": frozenset({(None, _S)}),
    "sweep": frozenset({(_W, _S), (_S, _S)}),
    "claim": frozenset({(_S, _R)}),
    "retake": frozenset({(_R, _R)}),
    "begin": frozenset({(_R, _R)}),
    "finish": frozenset({(_R, _W), (_R, _S)}),
    "fail": frozenset({(_R, _S)}),
    "dead_letter": frozenset({(_R, _S)}),
    "redrive": frozenset({(_S, _S)}),
    "pause": frozenset({(_S, _S), (_R, _R), (_W, _W)}),
    "resume": frozenset({(_W, _W), (_W, _S), (_S, _S), (_R, _R)}),
    "run_now": _REQUEST | {(_R, _S)},
    "backfill": _REQUEST | {(_W, _W)},
    "reconcile": frozenset({(_S, _S), (_R, _R)}),
    "delete": frozenset({(_S, None), (_R, None), (_W, None)}),
}
"""Every transaction of the sysdb and the changes of a task's state it may make."""

HEAP_OPERATIONS: Final = frozenset({"push", "prune"})
NEW_GENERATION: Final = frozenset({"create", "sweep", "finish", "resume", "run_now", "backfill"})
"""Operations that may begin a generation; all others keep the one they find."""


def move_between(source: Cell, target: Cell) -> Move | None:
    """The allowed move from `source` to `target`; None where there is none, or where the cells are equal."""
    return _ALLOWED.get((source, target))


def why_not(source: Cell, target: Cell) -> str:
    """Why a move is not allowed, for messages."""
    if source[0] != target[0] and source[1] != target[1]:
        return "X: no step changes the sysdb and the heap at once"
    return NEVER.get((source, target), "not in the table")


def check_change(operation: str, before: State | None, after: State | None, task: object) -> None:
    """Assert that `operation` may take a task from `before` to `after`. Raises `TransitionError`."""
    changes = OPERATIONS.get(operation)
    if changes is None:
        raise TransitionError(f"{operation!r} is no operation of the sysdb (task {task})")
    if (before, after) not in changes:
        found = "absent" if before is None else before.value
        wanted = "absent" if after is None else after.value
        raise TransitionError(f"{operation} of task {task} would go from {found} to {wanted}, which the table forbids")
