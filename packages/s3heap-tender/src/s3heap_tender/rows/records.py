"""The records of the sysdb and the values its API returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self
from uuid import UUID

from fdb_schema import Record, RecordError
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.states import State

MICROSECONDS: Final = 1_000_000
NEVER_STARTED: Final = -1
_LARGEST: Final = 1 << 62
OVERLAPS: Final = ("skip", "buffer_one", "buffer_all", "cancel_other")
CATCH_UPS: Final = ("once", "all")


@dataclass(frozen=True, slots=True)
class Backoff(Record):
    """How long a failed generation waits: `initial` × `factor`^(failures − 1) seconds, at most `maximum`.

    `jitter` is the share of that which is drawn (seeded by task, generation and attempt) and added. Where
    `obey_cadence`, a retry also starts no sooner than a cadence after the failed start.
    """

    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 600.0
    jitter: float = 0.1
    obey_cadence: bool = True


@dataclass(frozen=True, slots=True)
class TaskRow(Record):
    """A task in the sysdb. Times and durations are µs of the cluster clock."""

    partition: UUID
    name: str
    state: State
    gen: int  # the generation scheduled, running, or last run
    live_gen: int  # items of lower generations are done
    due: int  # of `gen`, a whole number of ms
    created: int
    cadence: int
    min_records: int = 1
    max_wait: int | None = None
    jitter: int = 0
    backoff: Backoff = Backoff()
    max_attempts: int = 5
    overlap: str = "skip"
    catch_up: str = "once"
    step: int = 1  # grows with every transaction that touches the row; orders the trace
    epoch: int = 0  # grows with every start; fences claims
    attempt: int = 0  # grows in fail and redrive, never at a re-claim; 0 at a new generation
    failures: int = 0  # of this generation, since it began or was redriven
    last_start: int = NEVER_STARTED
    completion: int = 0  # the log is processed up to here
    session: str = ""  # of the claim, while running
    claim_tail: int = 0  # the log's end when this attempt was first claimed; a retake keeps it
    pending: int = 0  # runs asked for and still to be given a generation
    waiting_for_records: bool = False  # scheduled by max_wait, below min_records
    paused: bool = False
    dead: bool = False  # gave up: a dead letter waits for redrive
    last_error: str = ""
    past_dues: tuple[int, ...] = ()  # that this generation had and that lie after its last start
    again: int = 0  # writes said to end the log below its known end, as of the last transaction that counted them
    claim_again: int = 0  # `again` when the attempt was claimed
    again_done: int = 0  # `again` up to which runs were made
    partition_name: str = ""  # as the creator gave it; "" where that was a UUID
    started_wall: int = 0  # wall clock of whoever claimed, µs: for people, compared with nothing
    leeway: int = 0  # µs after the last start within which that run began
    asked_for: bool = False  # the generation is one of those that were pending

    @classmethod
    def from_array(cls, array: tuple[Any, ...]) -> Self:
        """The row of an unpacked array. Raises `RecordError` also for numbers that no transition can go on from.

        They would fail whole transactions, and with those the tasks that share them.
        """
        row = super(TaskRow, cls).from_array(array)
        growing = (row.gen, row.live_gen, row.step, row.epoch, row.attempt, row.failures, row.pending)
        moments = (row.due, row.created, row.last_start + 1, row.cadence, row.jitter, row.max_wait or 0, row.leeway)
        if min(*growing, *moments) < 0 or max(*growing, *moments) > _LARGEST:
            raise RecordError(f"TaskRow of {row.name!r:.100} has a number that no release wrote: {row!r:.900}")
        if any(type(due) is not int for due in row.past_dues):
            raise RecordError(f"TaskRow.past_dues can't be {row.past_dues!r:.100}: it holds no times")
        return row


@dataclass(frozen=True, slots=True)
class DeadLetterRow(Record):
    """A generation that failed `max_attempts` times, as its row stores it."""

    partition: UUID
    name: str
    attempt: int
    failures: int
    at: int  # cluster clock, µs
    error: str
    upto_offset: int = 0  # the log's end at the last start


@dataclass(frozen=True, slots=True)
class RunOutput(Record):
    """The end of what a task's last run printed, as its row stores it."""

    gen: int
    epoch: int
    ok: bool  # it was finished, not failed
    at: int  # cluster clock, µs
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A generation that failed `max_attempts` times; `SysDb.redrive(task, gen)` runs it again."""

    task: UUID
    gen: int
    partition: UUID
    name: str
    attempt: int
    failures: int
    at: float  # seconds of the cluster clock
    error: str  # of the last failure
    upto_offset: int  # the log's end at the last start


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its caller sees it. Times are seconds of the cluster clock, durations seconds."""

    id: UUID
    partition: UUID
    name: str
    state: str  # scheduled, running or waiting
    gen: int
    live_gen: int
    epoch: int
    attempt: int
    due: float
    cadence: float
    last_start: float | None
    completion_offset: int
    min_records: int
    max_wait: float | None
    jitter: float
    backoff: Backoff
    max_attempts: int
    overlap: str
    catch_up: str
    paused: bool
    dead: bool
    pending_runs: int
    last_error: str
    payload: bytes = b""
    partition_name: str = ""  # as the creator gave it; "" where that was a UUID
    started_wall: float | None = None  # wall clock at the last start, seconds since 1970: for people

    @property
    def item(self) -> HeapItem:
        """The heap item of the current generation."""
        return HeapItem(self.partition, self.id, self.gen, round(self.due * 1000))


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one generation once; fenced by `gen` and `epoch`."""

    task: Task
    gen: int
    epoch: int
    attempt: int
    upto_offset: int  # the log's end when this attempt was first claimed: what its run is certain to see
    session: str
    started: float  # seconds of the cluster clock
    leeway: float = 0.0  # seconds after `started` within which the run is to begin, where two ticks are too short
    asked: float = field(default=0.0, compare=False, repr=False)  # own monotonic clock; `started` is of a later moment

    @property
    def id(self) -> UUID:
        """The task's id."""
        return self.task.id


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """What a trigger returns to say that its run read the log up to `offset`, a count of records.

    Nothing else a trigger returns is taken for an offset: programs say success with all kinds of numbers.
    """

    offset: int

    def __post_init__(self) -> None:
        if isinstance(self.offset, bool) or not isinstance(self.offset, int) or self.offset < 0:
            raise ValueError(f"an offset is a count of records, 0 or more, not {self.offset!r}")


@dataclass(frozen=True, slots=True)
class Intent:
    """A push that is still to be done: an item, and the row's exact bytes to clear it by."""

    item: HeapItem
    shard: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Dirty:
    """A partition that was written to: its marker's exact bytes."""

    partition: UUID
    shard: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a deleted task: its row's exact bytes to clear it by."""

    task: UUID
    deleted: int  # cluster clock, µs
    value: bytes


def task_of(task: UUID, row: TaskRow, payload: bytes = b"") -> Task:
    """The caller's view of a row."""
    return Task(
        id=task,
        partition=row.partition,
        name=row.name,
        state=row.state.value,
        gen=row.gen,
        live_gen=row.live_gen,
        epoch=row.epoch,
        attempt=row.attempt,
        due=row.due / MICROSECONDS,
        cadence=row.cadence / MICROSECONDS,
        last_start=None if row.last_start == NEVER_STARTED else row.last_start / MICROSECONDS,
        completion_offset=row.completion,
        min_records=row.min_records,
        max_wait=None if row.max_wait is None else row.max_wait / MICROSECONDS,
        jitter=row.jitter / MICROSECONDS,
        backoff=row.backoff,
        max_attempts=row.max_attempts,
        overlap=row.overlap,
        catch_up=row.catch_up,
        paused=row.paused,
        dead=row.dead,
        pending_runs=row.pending,
        last_error=row.last_error,
        payload=payload,
        partition_name=row.partition_name,
        started_wall=row.started_wall / MICROSECONDS or None,
    )


def item_of(task: UUID, row: TaskRow) -> HeapItem:
    """The heap item of the row's current generation."""
    return HeapItem(row.partition, task, row.gen, row.due // 1000)


def dead_letter_of(task: UUID, gen: int, row: DeadLetterRow) -> DeadLetter:
    """The caller's view of a dead letter."""
    return DeadLetter(
        task,
        gen,
        row.partition,
        row.name,
        row.attempt,
        row.failures,
        row.at / MICROSECONDS,
        row.error,
        row.upto_offset,
    )
