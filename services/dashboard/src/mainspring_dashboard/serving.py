"""HTTP connections that ask for nothing, or don't read what they asked for, hold no place: each has a time, and there is a limit to their number."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 10.0
"""From the beginning of a connection, or the end of an answer, until the headers of the next request are there."""
READING_SECONDS: Final = 10.0
"""In which whoever reads slower than answers are written takes `LEAST_READ` bytes or all that is left."""
LEAST_READ: Final = 1 << 14
MOST_SILENT: Final = 256
"""Connections that we wait for; for one more the oldest is closed."""


class PatientProtocol(H11Protocol):
    """A connection of uvicorn's that is closed if no request comes in time, or its answer isn't read."""

    silent: ClassVar[dict[PatientProtocol, None]] = {}  # those that we wait for, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = 0
        self._over: asyncio.TimerHandle | None = None
        self._await_peer(REQUEST_SECONDS)

    def _await_peer(self, seconds: float) -> None:
        self._heard()
        self._unread = self.transport.get_write_buffer_size()
        self._over = self.loop.call_later(seconds, self._give_up)
        self.silent[self] = None
        if len(self.silent) > MOST_SILENT:
            oldest = next(iter(self.silent))
            oldest._heard()
            oldest.transport.abort()

    def _give_up(self) -> None:
        if self._unread - self.transport.get_write_buffer_size() >= LEAST_READ:
            self._await_peer(READING_SECONDS)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._heard_if_ours()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A byte of a further request ends uvicorn's own patience; it counts as none until all of its headers are there.
        # A connection that is being closed stays until what was written is read.
        if self.cycle.response_complete:
            self._await_peer(READING_SECONDS if self.transport.is_closing() else REQUEST_SECONDS)
        else:
            self._heard_if_ours()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_peer(READING_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._heard_if_ours()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def _heard_if_ours(self) -> None:
        """The peer asked and has read what there is: the next word is the application's."""
        if self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused:
            self._heard()

    def _heard(self) -> None:
        if self._over is not None:
            self._over.cancel()
        self.silent.pop(self, None)


def limits() -> dict[str, Any]:
    """Of `uvicorn.Config`."""
    return {"http": PatientProtocol, "ws": "none", "timeout_keep_alive": 5, "backlog": 1024}
