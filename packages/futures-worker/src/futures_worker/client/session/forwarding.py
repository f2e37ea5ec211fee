"""Output of tasks, brought to the client that submitted them: mail tells of it, and what is new of it is read where workers keep it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from fdb_datamodel import FutureDeletedError, UnknownFutureError, describe_future, read_output
from fdb_schema import ClusterSpace
from futures_worker.client.basis.turn import Flag
from futures_worker.client.session.session import Session
from futures_worker.database import ask

log = logging.getLogger("futures_worker")

READ_SECONDS: Final = 0.25
"""Between two looks at the mail, where no other thread reads it: workers write what is printed as often."""
LAST_SECONDS: Final = 0.6
"""After the end of a task its last words may come so late."""
TROUBLE_SECONDS: Final = 1.0
_REMEMBERED: Final = 10_000
"""Attempts of which it is known how much was shown."""


class OutputLine(NamedTuple):
    """A line that a task printed, to its standard output or error."""

    future_id: UUID
    name: str  # of the future
    attempt: int
    text: str  # without the end of the line


class OutputForwarding:
    """What `Client.forward_output` returns: it goes on until `stop()`, the end of its `with` block, or the client's."""

    def __init__(
        self, session: Session, write: Callable[[OutputLine], object], then: Callable[[], object] = lambda: None
    ) -> None:
        """Begin. `write` is called by a thread of its own, a line at a time; `then` when it is told to stop."""
        self._then = then
        self._session = session
        self._write = write
        self._due: dict[bytes, None] = {}  # futures with something new, in order
        self._shown: OrderedDict[tuple[bytes, int], int] = OrderedDict()  # bytes of an attempt that were shown
        self._woken = Flag()
        self._stop = Flag()
        session.expected.hear = self._hear
        session.life.hear_output(True)
        self._thread = threading.Thread(target=self._run, name="mainspring-output", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show what tasks that have ended printed last, and end. Stopping twice is harmless."""
        if self._stop.is_set():
            return
        self._then()
        late = self._session.expected.last_end + LAST_SECONDS - time.monotonic()
        if late > 0 and not self._session.closed:
            self._stop.wait(late)  # what workers keep a moment after the end
        self._stop.set()
        self._woken.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LAST_SECONDS)  # longer where the database doesn't answer, which holds up nobody
        if self._session.expected.hear == self._hear:
            self._session.expected.hear = None
            self._session.life.hear_output(False)

    def __enter__(self) -> OutputForwarding:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _hear(self, future_id: bytes) -> None:
        """Called by whichever thread reads the mail."""
        self._due[future_id] = None
        self._woken.set()

    def _run(self) -> None:
        while True:
            over = self._stop.is_set() or self._session.closed
            try:
                if not self._session.closed:
                    self._session.reader.read()
                while self._due:
                    future_id = next(iter(self._due))
                    self._due.pop(future_id)
                    self._show(future_id)
            except Exception as error:
                if over:
                    return
                log.warning("what tasks print can't be read now: %s", error)
                self._stop.wait(TROUBLE_SECONDS)
            if over:
                return
            self._woken.wait(READ_SECONDS)
            self._woken.clear()

    def _show(self, future_id: bytes) -> None:
        name, outputs = ask(self._session.db, _read, self._session.space, future_id, strategy="off")
        for output in outputs:
            key = (future_id, output.attempt)
            new = output.size - self._shown.get(key, 0)
            if new <= 0:
                continue
            self._shown[key] = output.size
            self._shown.move_to_end(key)
            if len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)
            lost = new - len(output.data)
            text = output.data[-new:].decode(errors="replace")
            lines = text.replace("\r\n", "\n").replace("\r", "\n").splitlines()
            for line in ([f"... {lost:,} bytes are no longer kept"] if lost > 0 else []) + lines:
                self._tell(OutputLine(UUID(bytes=future_id), name, output.attempt, line))

    def _tell(self, line: OutputLine) -> None:
        try:
            self._write(line)
        except Exception:  # who takes it may be gone; tasks go on
            log.exception("a line of task %s can't be shown", line.future_id)


def _read(tr: Any, space: ClusterSpace, future_id: bytes) -> tuple[str, list[Any]]:
    try:
        name = describe_future(tr, space, future_id).name
    except (UnknownFutureError, FutureDeletedError):
        return "", []
    return name, read_output(tr, space, future_id)
