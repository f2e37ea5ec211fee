"""What one client's session knows of one future. Handles refer to it; nothing here reads or waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fdb_datamodel import MailEntry

if TYPE_CHECKING:
    from futures_worker.client.basis.session_life import SessionLife


class FutureHandle:
    """What `Future` is, for code that it is made of."""

    __slots__ = ()


class FutureRecord:
    """One future, as far as one session knows it. All handles that wait for it there share it.

    `life` is that of the session which holds the future for this record, and lets it go once nobody refers to the record.
    """

    __slots__ = (
        "__weakref__",
        "callbacks",
        "entry",
        "epoch",
        "id",
        "life",
        "name",
        "stored",
        "streams",
        "subscribed",
        "trouble",
    )

    def __init__(self, future_id: bytes, name: str = "", *, stored: bool, subscribed: bool) -> None:
        self.life: SessionLife | None = None
        self.id = future_id
        self.name = name
        self.stored = stored  # whether the submit is committed
        self.subscribed = subscribed  # whether its end will be mailed to the session
        self.streams = False  # whether it is known to yield items
        self.entry: MailEntry | None = None  # how it ended, once mailed
        self.epoch = 0  # mail of an earlier epoch is old news
        self.trouble: BaseException | None = None  # why it couldn't be submitted
        self.callbacks: list[tuple[bool, Callable[[], object]]] | None = None  # whether any thread may call it; it

    @property
    def ended(self) -> bool:
        """Whether it is known how the future ended, or that it never will be one."""
        return self.entry is not None or self.trouble is not None

    @property
    def in_database(self) -> bool:
        """Whether the database knows of it, or did."""
        return self.stored

    def expect_again(self, epoch: int) -> None:
        """Its result was lost: what is waited for is the end of `epoch`, of which nobody was asked to tell."""
        self.entry, self.epoch, self.subscribed = None, epoch, False

    def told(self) -> str:
        """How it ended, as far as it is known here: cancelled, realized, failed; "pending" before."""
        if self.entry is None:
            return "pending" if self.trouble is None else "refused"
        failure = self.entry.failure
        return "cancelled" if failure is not None and failure.reason == "cancelled" else str(self.entry.kind)

    def __repr__(self) -> str:
        label = f" {self.name}" if self.name else ""
        ended = f" {self.told()}" if self.entry is not None else ""
        return f"<Future {UUID(bytes=self.id)}{label}{ended}>"

    def __del__(self) -> None:
        life = getattr(self, "life", None)
        if life is not None:
            life.drop(self.id)


class CallRecord(FutureRecord):
    """A call of an actor. `what`: its method, arguments and dependencies."""

    __slots__ = ("link", "recorded", "what", "written")

    def __init__(self, call: bytes, name: str, link: Any, what: tuple[str, bytes, tuple[bytes, ...]]) -> None:
        super().__init__(call, name, stored=True, subscribed=True)
        self.link = link  # that it goes out by
        self.recorded = False  # whether the cluster knows it before its end, or is being told
        self.written = False  # whether it has been
        self.what = what

    @property
    def in_database(self) -> bool:
        return self.written
