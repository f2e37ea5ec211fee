"""Serves a worker's objects to other processes, after each has proved that it knows the cluster's secret.

Requests and answers are frames of `futures_worker.ports.wire`:

    {"op": "get", "name", "boot", "yielding"}    -> {"ok": true, "path": str, "size": int}     same boot: map the file
                                               -> {"ok": true, "size": int} + body           otherwise
                                               -> {"ok": false, "reason": "missing" or, if yielding, "busy"}
    {"op": "put", "name": str} + body          -> {"ok": true, "size": int}
    {"op": "grant", "name", "size", "boot"}    -> {"ok": true, "path": str}                  same boot: write the object there
                                               -> {"ok": false, "reason": str}
    {"op": "adopt", "name": str, "size": int}  -> {"ok": bool, "size": int}                  it is written
    {"op": "delete", "name": str}              -> {"ok": bool}
    {"op": "runs", "id": bytes}                -> {"ok": true, "runs": bool}                 whether that future's task began
    {"op": "stack", "id": bytes}               -> {"ok": true} + text                        where that future's task is now
                                               -> {"ok": false}                              it isn't running
    {"op": "push"}                             -> {"ok": true}, then the connection is a line: `futures_worker.ports.line`
    {"op": "hello"}                            -> {"ok": true, "incarnation": bytes, "pid": int, "objects": int, ...}
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fdb_schema import boot_id
from futures_worker.errors import AddressInUseError, MainspringError, ObjectLostError, OversizeError, WireError
from futures_worker.objects.object_files import check_name
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import SPREAD_FROM
from futures_worker.ports import wire
from futures_worker.ports.acceptor import Acceptor
from futures_worker.ports.handshake import Identity, Secrets

MAX_CONNECTIONS = 256
"""Connections served at once; for a further one the one that asked for nothing for the longest is closed."""
STALL_SECONDS = 60.0
"""For a piece (a MiB) of a body; where every place is taken, who takes longer is closed for one that comes: somebody on the way holds it."""
MOST_SENDING = 2
"""Large objects sent to other hosts at the same time; who may be put off is, and finds another copy meanwhile."""


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises `AddressInUseError` if another process listens there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(128)
    except OSError as exc:
        sock.close()
        raise AddressInUseError(
            f"can't listen on {address}:{port}: {exc.strerror}; another process (a worker?) uses it: "
            "choose another --port, or 0 for any free one"
        ) from exc
    return sock


class StoreServer:
    """Accepts connections on a listening socket and serves one `ObjectStore`, a thread per connection."""

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes | Secrets,
        store: ObjectStore,
        about: Callable[[], dict[str, Any]],
        on_push: Callable[[wire.Connection], None] | None = None,
        runs: Callable[[bytes], bool] = lambda _: False,
        stack: Callable[[bytes], str | None] = lambda _: None,
        *,
        identity: Identity | None = None,
    ) -> None:
        """`on_push` is given the connection of each client that asks for a line, to keep. `runs`: whether a future runs now. `stack`: where its task is.

        `identity`: whom clients mean by this server; None: objects at the address of the socket.
        """
        self._runs = runs
        self._stack = stack
        self._on_push = on_push
        self._sock = sock
        self._store = store
        self._about = about
        self._boot = boot_id()
        self._acceptor = Acceptor(sock, secret, self._admit, identity=identity, name="object-server")
        self._sending = threading.Semaphore(MOST_SENDING)
        self._connections: set[socket.socket] = set()
        self._idle: dict[socket.socket, None] = {}  # those that wait for a request, longest first
        self._busy: dict[socket.socket, wire.Connection] = {}  # those whose request is being answered
        self._lock = threading.Lock()
        self._closing = False

    def start(self) -> None:
        """Starts to accept connections."""
        self._acceptor.start()

    def close(self) -> None:
        """Stops accepting and cuts every connection."""
        with self._lock:
            self._closing = True
            connections = list(self._connections)
        self._acceptor.close()
        self._sock.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _admit(self, connection: wire.Connection) -> bool:
        """Give a proven peer a thread; False while every place is taken: an idle connection is closed for it, or one that stalls.

        Clients keep connections open for their next request, and open a new one where that was closed.
        """
        with self._lock:
            if self._closing:
                connection.close()
                return True
            if len(self._connections) >= MAX_CONNECTIONS:
                longest = next(iter(self._idle), None) or self._stalled()
                if longest is not None:
                    self._idle.pop(longest, None)
                    self._busy.pop(longest, None)
                    with contextlib.suppress(OSError):
                        longest.shutdown(socket.SHUT_RDWR)
                return False
            self._connections.add(connection.sock)
        try:
            threading.Thread(target=self._serve, args=(connection,), name="object-peer", daemon=True).start()
        except BaseException:
            with self._lock:
                self._connections.discard(connection.sock)
            raise
        return True

    def _stalled(self) -> socket.socket | None:
        """The connection whose body has come no further for the longest, if that is long. Called with the lock held."""
        first = min(self._busy.values(), key=lambda connection: connection.moved, default=None)
        return first.sock if first is not None and time.monotonic() - first.moved > STALL_SECONDS else None

    def _serve(self, connection: wire.Connection) -> None:
        granted: set[str] = set()
        peer = connection.sock
        try:
            with connection:
                while True:
                    if not granted:  # else it writes into what it was granted
                        with self._lock:
                            self._idle[peer] = None
                    self._answer(connection, granted)
                    with self._lock:
                        self._busy.pop(peer, None)
        except (EOFError, WireError, OSError, MemoryError):
            pass  # the peer left or broke the protocol: its connection ends, nobody else's
        finally:
            peer.close()
            for name in granted:
                self._store.withdraw(name)
            with self._lock:
                self._connections.discard(peer)
                self._idle.pop(peer, None)
                self._busy.pop(peer, None)
            self._acceptor.poke()

    def _answer(self, connection: wire.Connection, granted: set[str]) -> None:
        header, size = connection.receive_header()
        with self._lock:
            self._idle.pop(connection.sock, None)
            self._busy[connection.sock] = connection
        op = header.get("op")
        if op == "get":
            self._get(connection, header, size)
        elif op == "put":
            self._put(connection, header, size)
        elif op == "grant" and size == 0:
            self._grant(connection, header, granted)
        elif op == "adopt" and size == 0:
            self._adopt(connection, header, granted)
        elif op == "delete" and size == 0:
            connection.send({"ok": self._store.delete(_name(header))})
        elif op == "hello" and size == 0:
            connection.send({"ok": True, **self._about()})
        elif op == "runs" and size == 0:
            wanted = header.get("id")
            connection.send({"ok": True, "runs": isinstance(wanted, bytes) and self._runs(wanted)})
        elif op == "stack" and size == 0:
            wanted = header.get("id")
            found = self._stack(wanted) if isinstance(wanted, bytes) else None
            connection.send({"ok": found is not None}, (found or "").encode(errors="replace"))
        elif op == "push" and size == 0 and self._on_push is not None:
            connection.send({"ok": True})
            self._on_push(connection.dup())
            raise EOFError("the connection goes on as a line")
        else:
            raise WireError(f"the peer asked for {op!r}, which this version doesn't know")

    def _get(self, connection: wire.Connection, header: wire.Header, size: int) -> None:
        if size:
            raise WireError("a get has no body")
        name = _name(header)
        if self._boot and header.get("boot") == self._boot:
            located = self._store.locate(name)
            if located is not None:
                connection.send({"ok": True, "path": str(located[0]), "size": located[1]})
                return
        opened = self._store.open(name)
        if opened is None:
            connection.send({"ok": False, "reason": "missing"})
            return
        descriptor, length = opened
        polite = length >= SPREAD_FROM and bool(header.get("yielding"))
        try:
            if polite and not self._sending.acquire(blocking=False):
                connection.send({"ok": False, "reason": "busy"})
                return
            try:
                connection.send_file({"ok": True, "size": length}, descriptor, length)
            finally:
                if polite:
                    self._sending.release()
        finally:
            os.close(descriptor)

    def _grant(self, connection: wire.Connection, header: wire.Header, granted: set[str]) -> None:
        name = _name(header)
        wanted = _size(header)
        if not self._boot or header.get("boot") != self._boot:
            connection.send({"ok": False, "reason": "another host"})
            return
        try:
            path = self._store.grant(name, wanted)
        except OversizeError as exc:
            connection.send({"ok": False, "reason": str(exc)})
            return
        granted.add(name)
        connection.send({"ok": True, "path": str(path)})

    def _adopt(self, connection: wire.Connection, header: wire.Header, granted: set[str]) -> None:
        name = _name(header)
        if name not in granted:
            raise WireError(f"the peer adopts {name}, which it wasn't granted")
        try:
            stored = self._store.adopt_granted(name, _size(header))
        except ObjectLostError as exc:
            connection.send({"ok": False, "reason": str(exc)})
            return
        granted.discard(name)
        connection.send({"ok": True, "size": stored})

    def _put(self, connection: wire.Connection, header: wire.Header, size: int) -> None:
        name = _name(header)
        try:
            stored = self._store.add_stream(name, size, _pieces(connection, size))
        except MainspringError as exc:
            if isinstance(exc, WireError):
                raise
            for _ in _pieces(connection, size):
                pass  # refused before any of it was read; the next frame follows it
            connection.send({"ok": False, "reason": str(exc)})
            return
        connection.send({"ok": True, "size": stored})


def _pieces(connection: wire.Connection, size: int) -> Iterator[memoryview]:
    """The body of a frame, a piece at a time."""
    buffer = memoryview(bytearray(min(size, 1 << 20)))
    while size > 0:
        piece = buffer[: min(size, len(buffer))]
        connection.receive_into(piece)
        size -= len(piece)
        yield piece


def _size(header: wire.Header) -> int:
    size = header.get("size")
    if not isinstance(size, int) or not 0 <= size <= wire.MAX_BODY:
        raise WireError(f"the peer names a size of {size!r} bytes")
    return size


def _name(header: wire.Header) -> str:
    try:
        return check_name(str(header.get("name")))
    except ValueError as exc:
        raise WireError(str(exc)) from exc
