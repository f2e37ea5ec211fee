"""The port between the retry loop and a strategy: what is done around a body so that its outcome can be asked."""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

from idempotent_txn.attempts.outcome import Committed

StrategyName = Literal["native", "lanes", "ids", "off"]
STRATEGIES: tuple[StrategyName, ...] = ("native", "lanes", "ids", "off")


class Strategy(Protocol):
    """One way to know whether an attempt committed. Shared by all threads; an attempt's state is its token.

    `begin` → body (→ `begin_again`) → `prepare` → commit → exactly one of `committed`, `abandoned`, `resolve`.
    """

    name: StrategyName

    def begin(self, tr: Any, run_id: bytes | None, deadline: float | None) -> Any:
        """Called before the body, on a fresh transaction; returns the attempt's token."""

    def begin_again(self, tr: Any, token: Any) -> None:
        """Called after a body that began `tr` afresh: gives it again what `begin` set on it."""

    def prepare(self, tr: Any, token: Any, want_stamp: bool) -> None:
        """Called after the body, before the commit: adds the evidence of the commit to it."""

    def committed(self, tr: Any, token: Any) -> None:
        """The commit was acknowledged."""

    def abandoned(self, token: Any) -> None:
        """The attempt certainly did not commit, and can't any more."""

    def resolve(self, token: Any) -> Committed | bool:
        """The outcome of an attempt of which nobody knows: afterwards nothing of it is in flight.

        Returns the original commit (True where the strategy keeps no versionstamp) or False.

        Raises:
            CommitUnknownResultFatal: the evidence may be gone already.
        """


class Off:
    """No evidence: for transactions that are idempotent anyway. An unknown outcome runs the body again."""

    name: StrategyName = "off"

    def begin(self, tr: Any, run_id: bytes | None, deadline: float | None) -> Any:
        return tr

    def begin_again(self, tr: Any, token: Any) -> None:
        return None

    def prepare(self, tr: Any, token: Any, want_stamp: bool) -> None:
        return None

    def committed(self, tr: Any, token: Any) -> None:
        return None

    def abandoned(self, token: Any) -> None:
        return None

    def resolve(self, token: Any) -> bool:
        token.cancel()  # what was not sent yet never is
        return False


OFF: Final = Off()
