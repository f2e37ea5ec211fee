"""What clients asked and saw: transactions as records, and the lines of the files that carry them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Outcome(StrEnum):
    """What a client knows of its transaction's commit."""

    ok = "ok"
    failed = "failed"  # it certainly did nothing
    unknown = "unknown"  # the client died, or an error left it open


@dataclass(frozen=True, slots=True)
class Read:
    """A whole list as a transaction saw it, its own appends so far included; () for a key that isn't there."""

    key: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """One value, unique in the history, put at the end of a list."""

    key: str
    value: int


@dataclass(frozen=True, slots=True)
class Get:
    """A register's value; None where nothing was ever written."""

    key: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Put:
    """One value, unique in the history, written to a register."""

    key: str
    value: int


Operation = Read | Append | Get | Put
_KINDS: dict[str, type[Operation]] = {"r": Read, "a": Append, "g": Get, "p": Put}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


@dataclass(slots=True)
class Transaction:
    """One attempt of a transaction. Times are nanoseconds of the machine's monotonic clock, which its processes share."""

    name: str  # unique: process and number
    invoked: int  # before its first operation
    ended: int | None = None  # after its outcome was known; None: never
    outcome: Outcome = Outcome.unknown
    operations: list[Operation] = field(default_factory=list)


def operation_line(operation: Operation) -> list[Any]:
    """An operation as JSON has it."""
    if isinstance(operation, Read):
        return ["r", operation.key, list(operation.values)]
    return [_LETTERS[type(operation)], operation.key, operation.value]


def begun(transaction: Transaction) -> str:
    """The line written before a transaction's commit: what it asked and saw, lest its client dies in it."""
    return json.dumps(
        ["b", transaction.name, transaction.invoked, [operation_line(one) for one in transaction.operations]]
    )


def ended(transaction: Transaction) -> str:
    """The line written once the outcome is known."""
    return json.dumps(["e", transaction.name, transaction.ended, transaction.outcome.value])


def read_history(files: Iterable[Path]) -> Iterator[Transaction]:
    """The transactions of the files that clients wrote. A last line that a kill cut off is passed over."""
    for file in files:
        open_ones: dict[str, Transaction] = {}
        for line in file.read_text().split("\n")[:-1]:
            kind, name, at, what = json.loads(line)
            if kind == "b":
                operations = [_operation(*one) for one in what]
                open_ones[name] = Transaction(name, at, operations=operations)
            else:
                one = open_ones.pop(name)
                one.ended, one.outcome = at, Outcome(what)
                yield one
        yield from open_ones.values()


def _operation(letter: str, key: str, value: Any) -> Operation:
    if letter == "r":
        return Read(key, tuple(value))
    kind: Any = _KINDS[letter]
    made: Operation = kind(key, value)
    return made
