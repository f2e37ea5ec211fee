"""HTTP connections that ask for nothing hold no place: each has a time for its first request, and there is a limit to their number."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 10.0
"""From the beginning of a connection, or the end of an answer, until the headers of the next request are there."""
MOST_SILENT: Final = 256
"""Connections without a request; for one more the oldest is closed."""


class PatientProtocol(H11Protocol):
    """A connection of uvicorn's that is closed if no request comes in time."""

    silent: ClassVar[dict[PatientProtocol, None]] = {}  # the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def _await_request(self) -> None:
        self._over = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.transport.abort)
        self.silent[self] = None
        if len(self.silent) > MOST_SILENT:
            oldest = next(iter(self.silent))
            oldest._heard()
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._heard()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._heard()
        # A byte of a further request ends uvicorn's own patience; it counts as none until all of its headers are there.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def _heard(self) -> None:
        self._over.cancel()
        self.silent.pop(self, None)


def limits() -> dict[str, Any]:
    """Of `uvicorn.Config`."""
    return {"http": PatientProtocol, "ws": "none", "timeout_keep_alive": 5, "backlog": 1024}
