"""The worker's end of lines: clients whose lone requests come by a socket of the loop (see `futures_worker.ports.line`)."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgpack

from fdb_datamodel import Claim, Claims, FutureResult, Outcome, WorkerId
from futures_worker.errors import WireError
from futures_worker.ports import line
from futures_worker.ports.sealing import Records
from futures_worker.ports.wire import Connection

MOST_LINES = 256
"""Lines at most; a further client's requests go by the database."""
REMEMBERED = 1000
"""Futures found in the database of which a late request is ignored."""


class ClientLines:
    """Lines of one worker, in the shell's one wait."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._lines: dict[int, tuple[socket.socket, Records, Any]] = {}
        self._asked: dict[bytes, int] = {}  # future -> whose request it is
        self._known: deque[bytes] = deque(maxlen=REMEMBERED)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._lines

    def admit(self, connection: Connection) -> None:
        """A client that proved itself wants a line."""
        sock = connection.sock
        if len(self._lines) >= MOST_LINES:
            sock.close()
            return
        sock.setblocking(False)
        self._lines[sock.fileno()] = sock, connection.records(), line.unpacker()
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def listen(self, descriptor: int, worker: WorkerId) -> list[Claim]:
        """A line is readable: the requests that came."""
        sock, records, unpacker = self._lines[descriptor]
        claims: list[Claim] = []
        try:
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the client hung up")
            for part in records.feed(data):
                unpacker.feed(part)
                for message in unpacker:
                    claim = line.read_request(message, worker)
                    if claim.id not in self._known:
                        self._asked[claim.id] = descriptor
                        claims.append(claim)
        except BlockingIOError:
            pass
        except (OSError, ValueError, RecursionError, WireError, msgpack.UnpackException):
            self._dismiss(descriptor)
        return claims

    def found(self, claims: Iterable[Claim]) -> None:
        """Claims that the database told of: their requests come too late, if they come."""
        self._known.extend(claim.id for claim in claims)

    @property
    def waiting(self) -> bool:
        """Whether a request is unanswered."""
        return bool(self._asked)

    def tell(self, outcomes: Iterable[Outcome], claims: Claims) -> bool:
        """After the commit of a turn: answers to those who asked for what ended; whether there were any."""
        before = len(self._asked)
        if not before:
            return False
        for outcome in outcomes:
            descriptor = self._asked.pop(outcome.claim.id, None)
            if descriptor is None or descriptor not in self._lines:
                continue
            result = outcome.result
            if outcome.event == "realize_future" and result is not None and outcome.claim.id not in claims.stale:
                self._send(descriptor, line.answer(outcome.claim, result if type(result) is bytes else _full(result)))
            else:
                self._send(descriptor, line.no_answer(outcome.claim.id))
        return len(self._asked) < before

    def close(self) -> None:
        """Hangs up on everybody."""
        for descriptor in list(self._lines):
            self._dismiss(descriptor)

    def _send(self, descriptor: int, data: bytes) -> None:
        sock, records, _ = self._lines[descriptor]
        data = records.pack(data)
        try:
            sent = sock.send(data)
        except OSError:
            sent = -1
        if sent != len(data):  # it doesn't read what it asked for: it finds it in the database
            self._dismiss(descriptor)

    def _dismiss(self, descriptor: int) -> None:
        sock, _, _ = self._lines.pop(descriptor)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(descriptor)
        sock.close()
        self._asked = {one: whose for one, whose in self._asked.items() if whose != descriptor}


def _full(result: Any) -> FutureResult:
    assert isinstance(result, FutureResult)
    return result
