"""The client's end of a line to the worker that answers its lone requests (see `futures_worker.ports.line`).

A thread that waits for the one request on the line blocks on its socket instead of the mailbox. Whatever else there is to
wait for interrupts it: the request is then asked for like any other.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any, Final

import msgpack

from fdb_datamodel import Claim, MailEntry, WorkerId
from futures_worker.errors import MainspringError, WireError
from futures_worker.ports import line

PATIENCE: Final = 0.5  # seconds on a line after which the database is asked
SEND_SECONDS: Final = 2.0  # for a request that the worker doesn't read
TRIES_BEFORE: Final = 2  # lone requests in a row to one worker before it is called


class Line:
    """At most one connection, to the worker that was idle last; one request at a time."""

    def __init__(self, connect: Callable[[tuple[str, int, bytes]], Any]) -> None:
        """`connect(address)` opens an authenticated connection for pushing."""
        self._connect = connect
        self._worker: WorkerId | None = None
        self._seen = 0  # lone requests to that worker so far
        self._socket: Any = None
        self._records: Any = None
        self._unpacker: Any = None
        self._poll: Any = None
        self._wake = -1
        self._overdue_at = 0.0
        self.awaited = b""  # the future on the line
        self.answered = 0  # requests that were answered on it, for tests

    def open_to(self, worker: WorkerId) -> bool:
        """Whether a request for this worker can be sent; after a few of them it is called. For the committing thread."""
        if worker != self._worker:
            self.hang_up()
            self._worker, self._seen = worker, 0
        if self._socket is None:
            self._seen += 1
            if self._seen != TRIES_BEFORE + 1:
                return False
            with contextlib.suppress(MainspringError, OSError):  # then they go by the database
                self._take(self._connect((worker.ip, worker.port, worker.incarnation)))
        return self._socket is not None and not self.awaited

    def send(self, claim: Claim) -> bool:
        """Send a request that is committed; whether it went."""
        packed = line.request(claim)
        if packed is None or self._socket is None:
            return False
        packed = self._records.pack(packed)
        sock = self._socket
        try:
            sent = sock.send(packed)
            if sent < len(packed):  # more than the buffer of the socket takes at once
                sock.settimeout(SEND_SECONDS)
                sock.sendall(packed[sent:])
                sock.setblocking(False)
        except OSError:
            self.hang_up()
            return False
        self._overdue_at = time.monotonic() + PATIENCE
        self.awaited = claim.id
        return True

    def overdue(self) -> bool:
        """Whether the answer has taken so long that the database is to be asked."""
        return time.monotonic() >= self._overdue_at

    def wait(self, seconds: float) -> tuple[bool, MailEntry | None]:
        """Wait for the answer, at most `seconds` and no longer than it is worth; (whether the line is done with it, how it ended).

        (True, None): ask the database. (False, None): neither the answer came nor an interruption.
        """
        awaited, sock = self.awaited, self._socket
        if sock is None or self._worker is None:
            self.awaited = b""
            return True, None
        seconds = max(0.0, min(seconds, self._overdue_at - time.monotonic()))
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                return True, None
            try:
                data = sock.recv(1 << 16)
                if not data:
                    raise ConnectionError("the worker hung up")
                for part in self._records.feed(data):
                    self._unpacker.feed(part)
                    for message in self._unpacker:
                        future_id, entry = line.read_answer(message, self._worker)
                        if future_id == awaited:
                            self.awaited = b""
                            self.answered += 1
                            return True, entry
            except (OSError, ValueError, RecursionError, WireError, msgpack.UnpackException):
                self.hang_up()
                return True, None
        return False, None

    def interrupt(self) -> None:
        """Make a thread that waits on the line ask the database; callable from any thread."""
        if self.awaited and self._wake >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)

    def hang_up(self) -> None:
        """Close the connection."""
        sock, self._socket = self._socket, None
        self._worker, self._seen = None, 0
        if sock is not None:
            sock.close()
            os.close(self._wake)
            self._wake = -1
            self.awaited = b""

    def _take(self, connection: Any) -> None:
        sock = connection.sock
        sock.setblocking(False)
        self._records = connection.records()
        self._socket = sock
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unpacker = line.unpacker()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
