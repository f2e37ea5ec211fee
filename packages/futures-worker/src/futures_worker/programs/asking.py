"""How a program asks: each request is found as it was recorded, or done and recorded by one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, NoReturn, TypeVar

from fdb_datamodel import Away, ClaimLostError, hold_futures, programs
from fdb_datamodel.programs import CANCEL, Request
from fdb_datamodel.rows.ids import show_id
from fdb_schema import ClusterSpace, MainspringError, read_clock
from fdb_schema.clock import MICROSECONDS
from futures_worker.client.context import ClientContext, worker_context
from futures_worker.database import run_patiently
from futures_worker.failure import Failure, dump_exception, load_exception
from futures_worker.payload import ResultPayload
from futures_worker.programs.history import History, Phase
from futures_worker.worker.child.task_context import TaskContext

T = TypeVar("T")

FRESH_SECONDS: Final = 2.0
"""For so long the next request builds on the version of the one before: a database keeps what it compares for five seconds."""


class Left(BaseException):
    """Unwinds the frames of a program that waits without a process, or runs elsewhere. No request is made any more."""


class Asking:
    """The requests of one attempt. Used by the thread that runs it, and no other."""

    def __init__(self, task: TaskContext) -> None:
        self.id = task.id
        self.away: Away | None = None
        self.lost: ClaimLostError | None = None
        self.context: ClientContext = worker_context()
        self._space = self.context.space
        self._claim = programs.ProgramClaim(task.id, task.token)
        self.history = History(
            lambda: self.label,
            lambda start: self.transact(programs.read_requests, task.id, start),
            first=task.attempt == 1 and task.epoch == 0,
        )
        self._noted: Any = None  # the transaction of the last `note`
        self._after = 0  # its version, while the next one may build on it
        self._stale_at = 0.0

    @property
    def label(self) -> str:
        """What it is called in errors."""
        return f"program {show_id(self.id)}"

    def transact(self, fn: Callable[..., T], *args: Any) -> T:
        """`fn(tr, space, *args)` in a transaction, which finds its own effect when it runs again; until the database answers."""
        return run_patiently(self.context.db, fn, self._space, *args, strategy="off")

    def within(self, fn: Callable[..., T], *args: Any) -> T:
        """The same of a function that is fenced by this attempt: `fn(tr, space, claim, *args)`.

        Where another attempt has the program by now, its body is unwound: what it would do of that is not for it to do.
        """
        try:
            return self.transact(fn, self._claim, *args)
        except ClaimLostError as error:
            self.history.enter(Phase.left)
            self.lost = error
            raise Left from error

    def ask(self, kind: str, name: str = "") -> tuple[int, Request | None]:
        """The number of a request, and what it got if it was recorded.

        Raises NondeterministicProgram, `Left`, and what the request was refused with (a step's exception is its result).
        """
        if self.history.phase is Phase.left:
            raise Left  # in a `finally`, or where somebody caught what unwinds the program
        number, found = self.history.next(kind, name)
        if found is not None and found.form == CANCEL.form:
            raise CancelledError(f"{self.label} was cancelled")
        if found is not None and found.error and kind != "step":
            raise load_exception(Failure.from_bytes(found.value or b""))
        return number, found

    def record(self, number: int, form: tuple[str, str], fn: Callable[..., Request], *args: Any) -> Request:
        """`within` for the transaction that does what was asked, and records it; what refuses it is recorded too."""
        return self.history.record(number, self.make(number, form, self.within, fn, *args))

    def make(self, number: int, form: tuple[str, str], do: Callable[..., T], *args: Any) -> T:
        """`do(*args)`, by which a request is made: who catches what it raises goes on with the next one, and so do later attempts."""
        try:
            return do(*args)
        except Exception as error:
            refused = Request(*form, dump_exception(error, skip_frames=1).to_bytes(), error=True)
            self.history.record(number, self.within(programs.record_request, number, refused))
            raise
        except BaseException:
            self.history.undo(number)
            raise

    def note(self, number: int, request: Request, *, now: bool = False, holds: Sequence[bytes] = ()) -> Request:
        """Record a request that there is nothing else to do for. `now`: its `due_us` counts from this moment."""
        found = self.record(number, request.form, self._note, number, request, now, holds)
        self._after = self._noted.get_committed_version()
        self._stale_at = time.monotonic() + FRESH_SECONDS
        self._noted = None
        return found

    def _note(
        self,
        tr: Any,
        space: ClusterSpace,
        claim: programs.ProgramClaim,
        number: int,
        request: Request,
        now: bool,
        holds: Sequence[bytes],
    ) -> Request:
        after, self._after = self._after, 0  # for one try: whatever becomes of that, the next one reads
        self._noted = tr
        if after > 0 and not now and not holds and time.monotonic() < self._stale_at:
            return programs.record_following(tr, space, claim, number, request, after)
        if holds:
            hold_futures(tr, space, holds, outer=self.id)
        return programs.record_request(tr, space, claim, number, request, now=now)

    def leave(self, away: Away) -> NoReturn:
        """Go on without a process, once that is over. Raises CancelledError where the program was cancelled."""
        number = self.history.end
        if self.within(programs.deliver_cancel, number):
            self.history.undo(number)
            self.history.record(number, CANCEL)
        self.raise_if_cancelled()
        self.history.enter(Phase.left)
        self.away = away
        raise Left

    def raise_if_cancelled(self) -> None:
        """Raises CancelledError where that is what comes next: what waits without a record of its own looks for it.

        So each attempt is told in the same place: by the request, or the wait, that comes next.
        """
        if self.history.phase is Phase.left:
            raise Left
        found = self.history.peek()
        if found is not None and found.form == CANCEL.form:
            self.history.position += 1
            raise CancelledError(f"{self.label} was cancelled")

    def contained(self, payload: ResultPayload) -> tuple[bytes, ...]:
        """The futures inside of a value, which live as long as the program."""
        return payload.contained_in(self.context.origin.identity)

    # --- time

    def clock(self) -> int:
        """The cluster's, in µs."""
        return self.transact(lambda tr, space: read_clock(tr, space))

    def deadline(self, timeout: float | None) -> int | None:
        """The end of a wait by the cluster clock, counted from when it was asked for first."""
        if timeout is None:
            return None
        number, found = self.ask("deadline")
        if found is None:
            found = self.note(number, Request("deadline", due_us=round(timeout * MICROSECONDS)), now=True)
        return found.due_us

    def refuse(self, what: str) -> NoReturn:
        """Raises MainspringError."""
        raise MainspringError(
            f"{what} inside of {self.label} would be done again by its next attempt: do it in a step, `step(fn, …)`"
        )
