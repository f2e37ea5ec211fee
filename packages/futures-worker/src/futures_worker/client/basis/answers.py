"""What an actor answers on one connection, taken in so that an interrupt (KeyboardInterrupt) anywhere loses nothing of it."""

from __future__ import annotations

import select
from typing import Final

import msgpack

from fdb_datamodel import MailEntry, actors
from futures_worker.errors import WireError
from futures_worker.ports import wire

READ_BYTES: Final = 1 << 18


class Answers:
    """One connection's receiving side. Its link's turn to read says whose it is."""

    def __init__(self, connection: wire.Connection) -> None:
        self.sock = connection.sock
        self.records = connection.records()
        self._poll = select.poll()
        self._poll.register(self.sock.fileno(), select.POLLIN)
        self._came: list[bytes] = []  # received, and not `taken`
        self._before = (self.records.state(), b"")  # what was left when something was taken last

    def receive(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for something to take in; whether there is. Raises OSError."""
        if self._came:
            return True  # of somebody who was interrupted
        if timeout and not self._poll.poll(timeout * 1000):
            return False
        try:
            self._came.extend(
                map(self.sock.recv, (READ_BYTES,))
            )  # nothing comes between a call by C and what C makes of it
        except BlockingIOError:
            return False
        return True

    def decode(self) -> tuple[list[MailEntry], str]:
        """The answers in what was received, and why there will be no more ("": there may be). The same again until `taken`."""
        state, begun = self._before
        self.records.go_back(state)
        entries: list[MailEntry] = []
        over = "" if self._came[-1] else "the process that ran it is gone"
        data = bytearray(begun)
        end = 0
        try:
            for part in self.records.feed(b"".join(self._came)):
                data += part
        except WireError as error:
            over = f"the connection broke: {error}"
        try:
            unpacker = msgpack.Unpacker(max_buffer_size=1 << 30, use_list=False)
            unpacker.feed(data)
            for answer in unpacker:
                entries.append(actors.read_answer(*answer))
                end = unpacker.tell()
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            over = f"the connection broke: {error}"
        self._after = (self.records.state(), bytes(data[end:]))
        return entries, over

    def taken(self) -> None:
        """What `decode` gave has been delivered."""
        self._came, self._before = [], self._after
