"""The values that cross the package's API: what callers hand in and get back. Storage formats are in `codec`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from fdb_datamodel.rows.away import Away
from fdb_datamodel.rows.ids import as_id, new_future_id
from fdb_datamodel.rows.requirements import NOTHING, Requirements, Shape
from fdb_datamodel.rows.states import FutureState

NO_SESSION = bytes(16)
SHORTAGE = "shortage"  # the reason of a failure that says what the host of a worker was short of


class CodeDigest(bytes):
    """The SHA-256 (32 bytes) of code stored by `put_code`; plain `bytes` in its place are the code itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WorkerId:
    """One start of a worker process: where it listens, and the 16 random bytes that tell this start from others."""

    ip: str
    port: int
    incarnation: bytes

    @property
    def address(self) -> tuple[str, int, bytes]:
        """By which others dial it: this start, and no other at its place."""
        return self.ip, self.port, self.incarnation

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}/{self.incarnation.hex()[:8]}"


@dataclass(frozen=True, slots=True)
class FutureResult:
    """One stored result, or one copy of it.

    inline: the result's bytes themselves (small results; they survive the worker). Otherwise `name` is the object's name
    in the store of `worker`. size: bytes. token: of the claim that produced it (10 bytes; b"" until stored).
    wall_us: wall clock in µs since 1970, for people to read.
    """

    inline: bytes | None = None
    size: int = 0
    name: str = ""
    worker: WorkerId | None = None
    token: bytes = b""
    wall_us: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt, or the future for good, failed.

    reason: "error" (the code raised), "crash" (its child process died), "worker-lost", "oom", "cancelled", "timeout",
    "shortage", "upstream", "object-lost", "actor-died", "unpickle", "result-pickle", "oversize", "unschedulable", or a caller's own word.
    message: one line for people. payload: the pickled exception (opaque here). traceback: the remote traceback's text.
    chain: ids from the direct upstream to the cause (reason "upstream"; of a long chain the middle is left out). epoch: of
    the cause. attempt: which start. cause: the message of the future that failed first, where that isn't this one.
    began_us, worker: when that attempt was claimed, by the wall clock, and by whom (`ip:port`); for people.
    """

    reason: str = "error"
    message: str = ""
    payload: bytes = b""
    traceback: str = ""
    chain: tuple[bytes, ...] = ()
    epoch: int = 0
    attempt: int = 0
    token: bytes = b""
    wall_us: int = 0
    cause: str = ""
    began_us: int = 0
    worker: str = ""

    def bounded(self) -> Failure:
        """Itself, or with what is too long to be stored cut: a payload is left out, texts lose their beginning or end."""
        if len(self.payload) <= 50_000 and len(self.traceback) <= 20_000 and len(self.message) <= 2_000:
            return self
        return replace(
            self,
            payload=self.payload if len(self.payload) <= 50_000 else b"",
            traceback=self.traceback if len(self.traceback) <= 20_000 else "… " + self.traceback[-20_000:],
            message=self.message if len(self.message) <= 2_000 else self.message[:2_000] + " …",
        )


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a retry: initial * factor ** (charged attempts - 1), at most `maximum`; seconds."""

    initial: float = 0.0
    factor: float = 2.0
    maximum: float = 60.0


@dataclass(frozen=True, slots=True)
class Locality:
    """Where a future should run: `worker`, because it holds the result of `reason` (a future's id).

    Soft unless `pinned`: after `wait` seconds of the cluster clock, or when the worker dies, it goes to the pool.
    """

    worker: WorkerId
    reason: bytes | None = None
    pinned: bool = False
    wait: float = 1.0


@dataclass(slots=True)
class FutureSpec:
    """A future to submit. Only `code` has no default; what is left at its default costs no row.

    id: 16 bytes (or UUID) made by the client; session: 16 bytes, who is mailed when it ends.
    args: one opaque payload with futures replaced by references; dependencies: the ids among them, to be waited for.
    queue_timeout, run_timeout, total_timeout, unschedulable_timeout: seconds or None. name: for people.
    call_options: opaque bytes for the worker (for example the pickled `retry_on`).
    keep: never collected, only deleted. ttl: seconds it is kept after it ended and nobody holds it, instead of the cluster's.
    """

    code: bytes = b""
    args: bytes = b""
    id: bytes = field(default_factory=new_future_id)
    session: bytes = NO_SESSION
    dependencies: tuple[bytes, ...] = ()
    requirements: Requirements | None = None
    max_retries: int = 3
    max_worker_losses: int = 3
    max_oom: int = 3
    max_reconstructions: int = 10
    allow_reconstruction: bool = True
    priority: int = 0  # greater runs first, within a shape
    locality: Locality | None = None
    backoff: Backoff | None = None
    queue_timeout: float | None = None
    run_timeout: float | None = None
    total_timeout: float | None = None
    unschedulable_timeout: float | None = None
    name: str = ""
    call_options: bytes = b""
    keep: bool = False
    ttl: float | None = None
    parent: bytes = b""  # 16 bytes: the future of the task that submits it, and whose cancel is its own
    max_restarts: int | None = None  # starts after the first one, whatever ended those before, drained ones too
    dataset: bytes = b""  # what the partitions of one dataset have in common, for people; b"": it is none's
    limits: tuple[str, ...] = ()  # names of limits of which it needs a permit to begin
    after: float | None = None  # seconds of the cluster clock that it waits first, whatever it depends on
    durable: bool = False  # a program: what it asks for is recorded, and found again by its next attempt

    def __post_init__(self) -> None:
        if type(self.id) is not bytes:
            self.id = as_id(self.id)


@dataclass(slots=True)
class Claim:
    """One start of a future on one worker: what to run, and the token every later transition is fenced by.

    token: 10 bytes, ordered like versionstamps: a later claim of the same future has a greater one.
    attempt: counts starts from 1 and never falls. inputs: id of each dependency → its stored result.
    """

    id: bytes
    worker: WorkerId
    token: bytes
    attempt: int = 1
    epoch: int = 0
    session: bytes = NO_SESSION
    code: bytes = b""
    args: bytes = b""
    dependencies: tuple[bytes, ...] = ()
    inputs: Mapping[bytes, FutureResult] = field(default_factory=dict)
    shape: Shape = (0, 0, 0)
    run_timeout: float | None = None
    name: str = ""
    call_options: bytes = b""
    assigned: bool = False  # from this worker's assignments, not from the pool
    reason: bytes | None = None  # the object an assignment named
    listened: bool = False  # others may wait for it
    limited: bool = False  # it has permits, which its end gives back
    claimed_with: bytes = b""  # the first of those that were claimed together, with which its worker's row lists it

    @property
    def future_id(self) -> UUID:
        return UUID(bytes=self.id)


class Claims(list[Claim]):
    """The claims a turn made, and what its scan learned.

    blocked: shapes that fit the worker's total but not what is free now, or were passed over. more: the pool holds more that fits.
    stale: ids of outcomes whose claim was lost (somebody else decided; drop them). retried: ids whose failure leaves them
    unfinished. unsettled: edges or timers are left over: call `advance`. passed: the scan passed entries that don't fit.
    cut: what comes next fits, but would take longer than `Capacity.seconds` allows.
    """

    blocked: tuple[Requirements, ...] = ()
    more: bool = False
    passed: bool = False
    stale: tuple[bytes, ...] = ()
    retried: tuple[bytes, ...] = ()
    unsettled: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one claim ended; made by the class methods."""

    claim: Claim
    event: str
    result: FutureResult | bytes | None = None
    failure: Failure | None = None
    permanently: bool = False
    lost: tuple[bytes, ...] = ()
    absent: tuple[tuple[bytes, WorkerId], ...] = ()
    started: bool = True
    requirements: Requirements | None = None
    away: Away | None = None

    @classmethod
    def realized(cls, claim: Claim, result: FutureResult | bytes) -> Outcome:
        """It ran; bytes are an inline result."""
        return cls(claim, "realize_future", result)

    @classmethod
    def failed(
        cls, claim: Claim, failure: Failure, permanently: bool = False, requirements: Requirements | None = None
    ) -> Outcome:
        """It raised, crashed, or ran out of memory (`failure.reason` decides what is charged).

        `requirements`: what the retry needs instead, for example more ram.
        """
        return cls(claim, "fail_future", None, failure, permanently, requirements=requirements)

    @classmethod
    def relinquished(cls, claim: Claim, reason: str = "drained", started: bool = False) -> Outcome:
        """It is given back unfinished; only reason "worker-lost" counts against a budget.

        `started`: its code may have run. A future that may start once only then fails.
        """
        failure = Failure(reason, f"worker {claim.worker} gave it back: {reason}")
        return cls(claim, "relinquish_claim", None, failure, started=started)

    @classmethod
    def left(cls, claim: Claim, away: Away) -> Outcome:
        """A program that waits, and holds nothing meanwhile. Charged nothing."""
        return cls(claim, "leave_program", away=away)

    @classmethod
    def short(cls, claim: Claim, message: str, payload: bytes = b"", started: bool = False) -> Outcome:
        """The worker's host was short of something: charged nothing, and tried again after a pause that grows."""
        return cls(claim, "relinquish_claim", None, Failure(SHORTAGE, message, payload), started=started)

    @classmethod
    def missed_inputs(
        cls, claim: Claim, lost: Iterable[bytes], absent: Iterable[tuple[bytes, WorkerId]] = ()
    ) -> Outcome:
        """It couldn't start: the results of these dependencies can't be got. Charged nothing; waits for them again.

        `absent`: (dependency, holder) where a live holder said that it has no such object.
        """
        return cls(claim, "miss_inputs", lost=tuple(lost), absent=tuple(absent))


class MailEntry(NamedTuple):
    """One message of a mailbox. To a client: a future ended. To a worker: `kind` "cancel", "free" or "late". To who hears of output: "output".

    kind: "realized" | "failed" | "cancel" | "free" | "late" (its queue timeout passed: give it back unless it began). result: with "realized" and "free" (what to free).
    grace: with "cancel", seconds that the task has to clean up.
    """

    id: bytes
    kind: str
    result: FutureResult | None = None
    failure: Failure | None = None
    epoch: int = 0
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker registers once per incarnation. Wall times are for people."""

    slots: int = 1
    total: Requirements = NOTHING
    object_store: int = 0  # bytes
    pid: int = 0
    boot_id: str = ""  # which boot of the host, and which namespace, `pid` belongs to
    host: str = ""
    wall_us: int = 0
    pid_start: int = 0  # ticks after boot at which the process began: another one may have its pid later


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's sign of life: `counter` changes at every beat; the rest is its load."""

    counter: int = 0
    started_at_us: int = 0
    slots: int = 1
    total: Requirements = NOTHING
    free_slots: int = 0
    free: Requirements = NOTHING
    object_store: int = 0
    object_store_free: int = 0
    wall_us: int = 0
    cpu_used: float | None = None  # processors that it and its tasks really use; None: not known
    memory_used: int | None = None  # bytes, likewise


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One row of `list_workers`."""

    id: WorkerId
    info: WorkerInfo
    heartbeat: Heartbeat | None
    claims: int = 0
    assignments: int = 0


@dataclass(frozen=True, slots=True)
class FutureInfo:
    """Everything `show` and `ls` print about one future; nothing in it was unpickled."""

    id: bytes
    state: FutureState
    reason: str  # why it is in that state: waiting on what, unschedulable why, lost to which death
    name: str = ""
    session: bytes = NO_SESSION
    attempts: int = 0
    charged: int = 0
    losses: int = 0
    out_of_memory: int = 0
    epoch: int = 0
    max_retries: int = 3
    priority: int = 0
    requirements: Requirements = NOTHING
    worker: WorkerId | None = None  # that claimed it, or it is assigned to
    dependencies: tuple[bytes, ...] = ()
    waiting_on: tuple[bytes, ...] = ()
    result: FutureResult | None = None
    copies: tuple[FutureResult, ...] = ()
    failure: Failure | None = None  # terminal
    last_failure: Failure | None = None  # of the latest failed attempt
    allow_reconstruction: bool = True
    code_size: int | None = None
    args_size: int = 0
    wall_us: int = 0  # submitted at
    details: Mapping[str, Any] = field(default_factory=dict)
    claimed_us: int = (
        0  # wall clock of the latest claim, also of the attempt that failed for good; 0 where there was none
    )

    @property
    def ended_us(self) -> int:
        """Wall clock of its end; 0 where it hasn't ended."""
        if self.failure is not None:
            return self.failure.wall_us
        return self.result.wall_us if self.result is not None else 0

    @property
    def address(self) -> str | None:
        """The address of the worker that has it, made its result, or had it when it failed for good."""
        if self.worker is not None:
            return f"{self.worker.ip}:{self.worker.port}"
        return (self.failure.worker or None) if self.failure is not None else None


class TaskOutput(NamedTuple):
    """What an attempt wrote to its standard output and error: the end of it. size: bytes in all, with what isn't kept."""

    attempt: int
    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its name, the future or worker it was found at, and what was found."""

    invariant: str
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.subject}: {self.found}"
