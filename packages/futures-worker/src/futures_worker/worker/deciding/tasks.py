"""What the worker's core knows of its tasks, its children and the pace of its work. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from fdb_datamodel import Claim, Named
from futures_worker.objects.object_names import result_name


class Home(NamedTuple):
    """What code runs in: a process is for one. setting: packed; folder: its digest; where: the path of its files, here.

    gpus: the ids of those that it is given, as CUDA_VISIBLE_DEVICES has them; None where the worker gives out none.
    """

    setting: bytes = b""
    folder: bytes = b""
    where: str = ""
    gpus: str | None = None


ANYWHERE: Final = Home()
"""Of code that has no setting of its own."""


@dataclass(slots=True, eq=False)
class Task:
    """One claim on its way through the worker."""

    claim: Claim
    cpu: int  # thousandths
    ram: int  # bytes
    gpu: int  # thousandths
    named: Named = ()  # thousandths of other resources
    devices: tuple[tuple[int, int], ...] = ()  # the gpus it has: places of theirs, and thousandths
    digest: bytes = b""  # of its code
    home: Home = ANYWHERE
    seq: int = -1  # number within the child it was sent to
    dependencies: list[bytes | str | None] | str | None = None  # results of inputs (None: of the task it is behind), or
    # paths of parcels; or a parcel of these
    parcels: list[str] | None = None  # files to remove when the task ends
    args: bytes | str = b""  # payload, or the path of a parcel
    cancelled: bool = False
    soft_timeout: float | None = None  # seconds that it runs until it is interrupted
    preparing: bool = False  # whether its inputs are being brought
    behind: Task | None = None  # of this worker, whose result it waits for: claimed ahead
    follower: Task | None = None  # the other end
    orphaned: bool = False  # what it was claimed behind came to nothing: it goes back
    skippable: bool = False  # its child may come to say that it hasn't begun it, and go on with others
    late: bool = False  # its queue timeout passed: it goes back unless it has begun
    grace: float = 0.0  # seconds that it has to clean up, once it is cancelled
    closed: bool = False  # nothing that it took is taken any more, though its process may still end
    large: bool = False  # with what it waits for, its inputs won't fit a message: they are brought again then

    @property
    def object_name(self) -> str:
        """Name of the object if its result is stored: unique to this attempt."""
        return result_name(self.claim.id, self.claim.epoch, self.claim.attempt)

    @property
    def label(self) -> str:
        """How messages name it."""
        name = f" ({self.claim.name})" if self.claim.name else ""
        return f"future {self.claim.future_id}{name}"


class ChildState(StrEnum):
    """States of a child process; allowed steps are in `CHILD_TRANSITIONS`."""

    starting = "starting"  # asked for, not forked yet
    running = "running"  # takes tasks; idle if its queue is empty
    blocked = "blocked"  # its task waits for another future and holds no slot
    dying = "dying"  # killed or retired; its end has not been reported yet


CHILD_TRANSITIONS: dict[ChildState, frozenset[ChildState]] = {
    ChildState.starting: frozenset((ChildState.running, ChildState.dying)),
    ChildState.running: frozenset((ChildState.blocked, ChildState.dying)),
    ChildState.blocked: frozenset((ChildState.running, ChildState.dying)),
    ChildState.dying: frozenset(),
}


@dataclass(slots=True, eq=False)
class Child:
    """One child process: tasks sent to it in order, of which it runs the first."""

    number: int
    state: ChildState = ChildState.starting
    home: Home | None = None  # of the tasks that it was sent; None: it may be any
    queue: deque[Task] = field(default_factory=deque)
    head_since: float = 0.0  # when the first task of the queue can have begun
    next_seq: int = 0
    ran: int = 0  # tasks it ended
    full: bool = False  # its socket has no room until it reads some
    rescued: bool = False  # what could be taken back from behind the task it runs has been
    awaits: tuple[bytes, ...] = ()  # futures its task waits for, while it is blocked
    expected_until: float = 0.0  # what it awaits has ended here: until then its slot is kept for it
    resident: bool = False  # an actor lives in it
    leave_by: float = 0.0  # when it is killed unless it ended by itself
    limited: int = -1  # the number of the task that was interrupted at its soft limit
    kill_by: float = 0.0  # when it is killed unless the first task, which was cancelled and told so, has ended
    kill_reason: str = ""  # "timeout", "cancelled", ... if the worker killed it
    killed_for: Task | None = None  # and what it ran then, as far as was known

    def become(self, state: ChildState) -> None:
        """One step of the table."""
        if state not in CHILD_TRANSITIONS[self.state]:
            raise AssertionError(f"child {self.number} can't go from {self.state} to {state}")
        self.state = state

    def take(self, seq: int) -> Task | None:
        """Removes and returns the task of that number."""
        queue = self.queue
        if queue and queue[0].seq == seq:
            self.kill_by = 0.0
            return queue.popleft()
        for task in queue:
            if task.seq == seq:
                queue.remove(task)
                return task
        return None


HORIZON = 0.5
"""Seconds of work per slot in hand at most, by what tasks of those very functions took."""
SHORT = 0.0002
"""Seconds up to which a task is short: several may be sent, and reported, together."""


class Pace:
    """How long tasks take, per function (by `Claim.code`), learned from what ran; seconds.

    `known` is what is expected of each. A function that never ran is as long as any (`HORIZON`), unless many different ones
    were short when they ran for the first time: code that is made anew for each task, with its values inside.
    """

    WEIGHT = 0.2
    MOST_FUNCTIONS = 4096
    NEWCOMERS = 16

    def __init__(self) -> None:
        self.known: dict[bytes, float] = {}
        self.unknown = HORIZON
        self._streaks: dict[bytes, int] = {}
        self._first_runs: deque[float] = deque(maxlen=self.NEWCOMERS)
        self._short: set[bytes] = set()  # of the known

    def observe(self, code: bytes, seconds: float) -> None:
        """One task of a function ended after `seconds`."""
        known = self.known.get(code)
        if known is None:
            if len(self.known) >= self.MOST_FUNCTIONS:
                self.known.clear()
                self._streaks.clear()
                self._short.clear()
            expected = seconds
            self._first_runs.append(seconds)
            if len(self._first_runs) == self.NEWCOMERS:
                self.unknown = min(HORIZON, max(self._first_runs))
        else:
            # A longer task than expected counts at once, shorter ones by and by: to expect too much costs less.
            expected = seconds if seconds > 4 * known else known + self.WEIGHT * (seconds - known)
        self.known[code] = expected
        (self._short.add if expected < HORIZON else self._short.discard)(code)
        self._streaks[code] = self._streaks.get(code, 0) + 1 if seconds <= SHORT else 0

    def of(self, code: bytes) -> float | None:
        """Expected seconds of a task of that function; None if none ran yet."""
        return self.known.get(code)

    def cost(self, code: bytes) -> float:
        """Seconds of a slot's `HORIZON` that a task of that function takes up."""
        return min(HORIZON, self.known.get(code, self.unknown))

    @property
    def any_short(self) -> bool:
        """Whether there may be anything of which more than one task fits into a slot's `HORIZON`."""
        return bool(self._short) or self.unknown < HORIZON

    def streak(self, code: bytes) -> int:
        """How many tasks of that function in a row, up to the last, were short."""
        return self._streaks.get(code, 0)
