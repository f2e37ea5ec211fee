"""Drives the worker's core without a process, a socket or a clock: plays the shell for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fdb_datamodel import Claim, Claims, Outcome, Requirements, WorkerId
from futures_worker import payload
from futures_worker.worker import messages
from futures_worker.worker.deciding.core import WorkerCore
from futures_worker.worker.deciding.instructions import (
    ChildSaid,
    ChildStarted,
    Event,
    InputsReady,
    Instruction,
    PrepareInputs,
    RunTurn,
    SendTasks,
    SpawnChild,
    TurnEnded,
    WorkSignalled,
)

ME = WorkerId("127.0.0.1", 7000, b"i" * 16)
SECOND = 1_000_000  # microseconds


def claim(number: int, **fields: Any) -> Claim:
    values: dict[str, Any] = {"code": b"f", "name": f"task {number}"} | fields
    return Claim(number.to_bytes(16, "big"), ME, bytes(10), **values)


def claims(*items: Claim, more: bool = False, stale: tuple[bytes, ...] = ()) -> Claims:
    result = Claims(items)
    result.more, result.stale = more, stale
    return result


def failure(error: BaseException) -> bytes:
    return payload.dump_exception(error).to_bytes()


class Driver:
    """Plays the shell: children fork at once, inputs are ready at once; what else happens is the test's to say."""

    def __init__(self, slots: int = 1, total: Requirements | None = None) -> None:
        self.core = WorkerCore(ME, slots, total or Requirements(4, "4GiB", 1))
        self.now = 100.0
        self.log: list[Instruction] = []
        self.hold_inputs = False

    def say(self, *events: Event, after: float = 0.0) -> list[Instruction]:
        """Events to the core; all instructions that follow, those the driver answered itself left out."""
        self.now += after
        seen: list[Instruction] = []
        pending: list[Event] = list(events)
        while True:
            instructions = self.core.step(pending, self.now, self.now)
            pending = []
            for instruction in instructions:
                if isinstance(instruction, SpawnChild):
                    pending.append(ChildStarted(instruction.child))
                elif isinstance(instruction, PrepareInputs) and not self.hold_inputs:
                    for task in instruction.tasks:
                        task.digest = task.claim.code
                        if task.claim.dependencies:
                            inputs = task.claim.inputs
                            task.dependencies = [None if d not in inputs else b"input" for d in task.claim.dependencies]
                    pending.append(InputsReady(instruction.tasks))
                else:
                    seen.append(instruction)
            if not pending:
                self.log += seen
                self.check()
                return seen

    def start(self, *items: Claim, more: bool = False) -> list[Instruction]:
        """The first turn, which claims these."""
        (turn,) = self.only(RunTurn, self.say(WorkSignalled()))
        return self.say(TurnEnded(claims(*items, more=more), turn))

    def claim(self, *items: Claim, more: bool = False) -> list[Instruction]:
        """A bell, and a turn that claims these."""
        (turn,) = self.only(RunTurn, self.say(WorkSignalled()))
        assert turn.limit >= len([item for item in items if not item.dependencies])
        return self.say(TurnEnded(claims(*items, more=more), turn))

    def result(
        self, child: int, seq: int, microseconds: int = 10, value: bytes = b"v", after: float = 0.0
    ) -> list[Any]:
        return self.say(ChildSaid(child, [[messages.RESULT, seq, microseconds, value]]), after=after)

    @staticmethod
    def only(kind: type[Any], instructions: Iterable[Instruction]) -> list[Any]:
        return [i for i in instructions if isinstance(i, kind)]

    def child_of(self, task: int) -> int:
        key = task.to_bytes(16, "big")
        return next(c.number for c in self.core.children.values() if any(t.claim.id == key for t in c.queue))

    def seq_of(self, task: int) -> int:
        return self.core.tasks[task.to_bytes(16, "big")].seq

    def check(self) -> None:
        """What holds after every step."""
        core = self.core
        core.validate()
        if core.draining and core.idle and not core.preparing:
            assert core.finished


def sent(instructions: Iterable[Instruction]) -> list[int]:
    return [int.from_bytes(t.claim.id, "big") for i in instructions if isinstance(i, SendTasks) for t in i.tasks]


def outcomes(instructions: Iterable[Instruction]) -> list[Outcome]:
    return [o for i in instructions if isinstance(i, RunTurn) for o in i.outcomes]


def answer_ring(d: Driver, *items: Claim) -> list[Instruction]:
    """A ring that is answered now, or as soon as the core's patience allows."""
    instructions = d.say(WorkSignalled())
    while not d.only(RunTurn, instructions):
        deadline = d.core.deadline()
        assert deadline is not None
        instructions = d.say(after=deadline - d.now)
    (turn,) = d.only(RunTurn, instructions)
    return d.say(TurnEnded(claims(*items), turn))
