"""What to do with a commit that did not simply succeed: wait for it, and find out whether it took place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import fdb_error_code
from fdb_schema.errors import COMMIT_UNKNOWN_RESULT_FATAL
from idempotent_txn.attempts.classification import GIVEN_UP, is_not_committed
from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.attempts.strategy import Strategy
from idempotent_txn.errors import CommitUnknownResultFatal

HAD_COMMITTED: Final = "The transaction that was interrupted had committed."
DID_NOT_COMMIT: Final = "The transaction that was interrupted did not commit, and can't any more."
_PATIENCE: Final = 8
"""How often an exception that is no interruption may come out of waiting or asking before it is believed."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A commit of which everything is known."""

    commit: Committed | bool
    """The commit (True where its versionstamp isn't kept by the strategy), or False: it didn't, and can't any more."""
    code: int
    """FoundationDB's error that came out of the commit; 0 where it succeeded after all."""
    interruption: BaseException | None
    """What interrupted the wait, to be raised now that the outcome is known."""
    known: bool = True
    """Whether there is evidence that it didn't commit: "off" leaves none, and takes it for not committed."""


def settle_commit(strategy: Strategy, tr: Any, token: Any, commit: Any, error: BaseException) -> Settled:
    """Settle the commit of `tr`, out of which `error` came. Interruptions are kept back until it is done.

    Raises:
        CommitUnknownResultFatal: the outcome can't be told any more, or the database can't be asked.
    """
    interruption: BaseException | None = None
    code = fdb_error_code(error)
    if code is None:
        interruption = error
        code = _wait_again(commit)
        if code == 0:
            strategy.committed(tr, token)
            note_outcome(interruption, True)
            return Settled(True, 0, interruption)
    if code is not None and (is_not_committed(code) or (code in GIVEN_UP and _is_never_made(tr))):
        strategy.abandoned(token)
        if interruption is not None:
            note_outcome(interruption, False)
        return Settled(False, code, interruption)
    if code == COMMIT_UNKNOWN_RESULT_FATAL:
        raise CommitUnknownResultFatal(
            "the commit was in flight for so long that its idempotency id may have been expired: "
            "nobody can tell whether it took place; look at the data and start the process again"
        ) from error
    failures = 0
    while True:
        try:
            found = strategy.resolve(token)
            break
        except CommitUnknownResultFatal:
            raise
        except Exception as problem:
            failures += 1
            if failures >= _PATIENCE:
                raise CommitUnknownResultFatal(
                    f"whether a commit took place is unknown, and the database doesn't tell ({problem}): look at the data when "
                    "it answers again"
                ) from problem
        except BaseException as again:
            interruption = interruption or again
    if interruption is not None and strategy.name != "off":
        note_outcome(interruption, bool(found))
    return Settled(found, code or 0, interruption, strategy.name != "off")


def _is_never_made(tr: Any) -> bool:
    """Whether the embedded engine says of a commit that was given up that it was never begun. A cluster's client doesn't know."""
    ask = getattr(tr, "is_never_made", None)
    return ask is not None and bool(ask())


def despite_interruptions(step: Callable[..., object], *args: Any) -> BaseException | None:
    """Run a `step` that can be run again from its beginning, until it is done; returns the first interruption of it."""
    interruption: BaseException | None = None
    while True:
        try:
            step(*args)
            return interruption
        except BaseException as again:
            if is_no_chance(again, interruption):
                raise
            interruption = interruption or again


def is_no_chance(error: BaseException, before: BaseException | None) -> bool:
    """Whether an error out of settling an attempt is more than an interruption.

    What a signal handler raises may be any exception but the database's; one that comes again is the attempt's own.
    """
    return isinstance(error, Exception) and (
        before is not None or fdb_error_code(error) is not None or isinstance(error, CommitUnknownResultFatal)
    )


def note_outcome(interruption: BaseException, committed: bool) -> None:
    """Have the interruption say, once, what became of the transaction."""
    note = HAD_COMMITTED if committed else DID_NOT_COMMIT
    if note not in getattr(interruption, "__notes__", ()):
        interruption.add_note(note)


def had_committed(interruption: BaseException) -> bool:
    """Whether an interruption that came out of `run` says that the transaction had committed."""
    return HAD_COMMITTED in getattr(interruption, "__notes__", ())


def _wait_again(commit: Any) -> int | None:
    """Wait for the commit's future in spite of interruptions; its error code, 0 for success, None where it has none."""
    if commit is None:
        return None
    failures = 0
    while True:
        try:
            commit.wait()
            return 0
        except Exception as error:
            code = fdb_error_code(error)
            if code is not None:
                return code
            failures += 1
            if failures >= _PATIENCE:
                return None
        except BaseException:
            # The first interruption is kept; more of them change nothing while the commit is in flight.
            continue
