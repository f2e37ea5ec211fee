"""The vocabulary of the worker's core: events that the shell reports, instructions that the shell carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdb_datamodel import Capacity, Claim, Claims, MailEntry, Outcome, Shape, WorkerId
from futures_worker.worker.deciding.tasks import Task

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkSignalled:
    """There may be work to claim: a bell rang, or (`again`) it is time to look whether one was missed."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """This worker is number `rank` of `count` live ones: each prefers its own stripe of the pool.

    `idle_slots`: of the others, by their last heartbeats; `idle_room`: the shape of what the idlest of them has free.
    """

    rank: int
    count: int
    idle_slots: int = 0
    idle_room: Shape = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The transaction of `turn` committed, `seconds` after it was begun."""

    claims: Claims
    turn: RunTurn
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """The database refused the transaction of `turn`, not for what it holds: the same may succeed later."""

    turn: RunTurn


@dataclass(frozen=True, slots=True)
class InputsReady:
    """Code, arguments and the results of the dependencies of these tasks are at hand."""

    tasks: list[Task]


@dataclass(frozen=True, slots=True)
class InputsLost:
    """The results of these dependencies of a task can't be had.

    `absent`: holders that answered, and don't have what the database says they hold.
    """

    task: Task
    lost: tuple[bytes, ...]
    absent: tuple[tuple[bytes, WorkerId], ...] = ()


@dataclass(frozen=True, slots=True)
class InputsBroken:
    """A task can't be started at all: its code is missing, or no room is left for its inputs."""

    task: Task
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InputsShort:
    """A task can't be started now, as the host is short of something."""

    task: Task
    message: str


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child was forked."""

    child: int


@dataclass(frozen=True, slots=True)
class ChildSaid:
    """Messages of a child, in order; see `messages`. Results in the store are adopted already."""

    child: int
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class TasksReturned:
    """Tasks that a child has not begun and never will; `full`: because its socket has no room for more."""

    child: int
    seqs: tuple[int, ...]
    full: bool = False


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child process is gone. `unread`: tasks it never read; `out_of_memory`: the kernel killed it for its memory."""

    child: int
    description: str
    unread: tuple[int, ...] = ()
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """The machine is about to run out of memory, and this child holds most of it."""

    child: int
    description: str


@dataclass(frozen=True, slots=True)
class MailArrived:
    """Mail of this incarnation: futures that were cancelled."""

    entries: tuple[MailEntry, ...]


@dataclass(frozen=True, slots=True)
class Pushed:
    """Futures that clients submitted already claimed by this worker, because they saw it idle."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Finish what runs within `grace` seconds, give back the rest, end."""

    grace: float


@dataclass(frozen=True, slots=True)
class Fenced:
    """This incarnation was declared dead: every claim it held belongs to others now."""


Event = (
    WorkSignalled
    | PeersSeen
    | TurnEnded
    | TurnRefused
    | InputsReady
    | InputsLost
    | InputsBroken
    | InputsShort
    | ChildStarted
    | ChildSaid
    | TasksReturned
    | ChildEnded
    | MemoryShort
    | MailArrived
    | Pushed
    | DrainAsked
    | Fenced
)

# --- instructions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnChild:
    """Fork a child; answer `ChildStarted`."""

    child: int


@dataclass(frozen=True, slots=True)
class KillChild:
    """Kill a child and all of its session; `ChildEnded` follows."""

    child: int


@dataclass(frozen=True, slots=True)
class InterruptTask:
    """Have an exception raised in a task that a child runs, unless it has ended; `cause`: see `interrupts`."""

    child: int
    seq: int
    cause: int


@dataclass(frozen=True, slots=True)
class RetireChild:
    """Let an idle child end by itself; `ChildEnded` follows."""

    child: int


@dataclass(frozen=True, slots=True)
class SendTasks:
    """Send tasks to a child in packets of at most `per_packet`; what its socket has no room for: `TasksReturned`.

    `at`: the time of the step that says so, from when the first of them may be taken to run.
    """

    child: int
    tasks: list[Task]
    per_packet: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take back the packets a child has not read; answer `TasksReturned`."""

    child: int


@dataclass(frozen=True, slots=True)
class PrepareInputs:
    """Bring code, arguments and the results of dependencies here; answer `InputsReady`, `InputsLost` or `InputsBroken`."""

    tasks: list[Task]


@dataclass(frozen=True, slots=True)
class RunTurn:
    """One transaction: report outcomes, claim up to `limit`; answer `TurnEnded`, or `Fenced`."""

    outcomes: list[Outcome]
    capacity: Capacity
    limit: int


@dataclass(frozen=True, slots=True)
class ForgetTask:
    """The task ended here, whatever became of it: remove its parcels."""

    task: Task


@dataclass(frozen=True, slots=True)
class DropObject:
    """Remove an object from the store: its result does not count."""

    name: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Drained: nothing is claimed, nothing runs. Unregister and end."""


Instruction = (
    SpawnChild
    | KillChild
    | InterruptTask
    | RetireChild
    | SendTasks
    | TakeBack
    | PrepareInputs
    | RunTurn
    | ForgetTask
    | DropObject
    | Finish
)
