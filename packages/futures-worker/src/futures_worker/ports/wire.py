"""Frames between processes over TCP, after both ends have proved who they are (`futures_worker.ports.handshake`).

A frame is `header length (4, big endian) | body length (8, big endian) | header (msgpack map) | tag | body`, and a body is
pieces of a MiB (the last one is shorter), each with its tag behind it (`futures_worker.ports.sealing`). Headers are metadata and never
pickled; a body is whatever the two ends agreed on. Both lengths are checked against limits before anything is allocated, and
a header's tag before it is parsed.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import msgpack

from futures_worker.errors import AuthenticationError, WireError
from futures_worker.ports.handshake import (
    GREETING_BYTES,
    HELLO_BYTES,
    MAGIC,
    OBJECTS,
    REFUSED,
    SECRET_BYTES,
    ClientHandshake,
    Destination,
    Identity,
    MisdirectedError,
    NoPlaceError,
    Secrets,
    ServerHandshake,
    UnknownSecretError,
    as_secrets,
    secret_id,
)
from futures_worker.ports.sealing import HEADER, PIECE, TAG_BYTES, Halves, Records

HANDSHAKE_TIMEOUT = 5.0
"""Seconds a peer has to prove itself before the connection is dropped."""
KEEPALIVE_SECONDS = 60
"""Seconds of silence after which a server asks whether the peer's host is still there."""
MAX_HEADER = 64 << 10
"""Bytes of a frame's header."""
MAX_BODY = 64 << 30
"""Bytes of a frame's body, unless the caller sets a smaller limit."""
PIECE_BYTES = 1 << 20
"""Bytes of a body that have a tag of their own; the last piece of a body has fewer."""

_LENGTHS = struct.Struct(">IQ")

Header = dict[str, Any]


def new_secret() -> bytes:
    """A fresh cluster secret: 32 random bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def _receive_exactly(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """`deadline`: of the monotonic clock, for all of it. Raises TimeoutError."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    if deadline is None:
        _receive_into(sock, view)
        return bytes(buffer)
    while len(view):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        count = sock.recv_into(view)
        if count == 0:
            raise WireError("the peer closed the connection in the middle of a message")
        view = view[count:]
    return bytes(buffer)


def _receive_into(sock: socket.socket, view: memoryview) -> None:
    """All of it within the time-out of the socket: byte by byte it could last as long as somebody on the way likes."""
    patience = sock.gettimeout()
    deadline = time.monotonic() + patience if patience else 0.0
    try:
        while len(view):
            count = sock.recv_into(view)
            if count == 0:
                raise WireError("the peer closed the connection in the middle of a message")
            view = view[count:]
            if deadline and len(view):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                sock.settimeout(left)
    finally:
        if deadline:
            sock.settimeout(patience)


class Connection:
    """One authenticated connection: frames in, frames out. Not safe for use by several threads at once."""

    def __init__(self, sock: socket.socket, halves: Halves, *, max_body: int = MAX_BODY) -> None:
        self.sock = sock
        self.halves = halves
        self.max_body = max_body
        self.moved = time.monotonic()  # when the last header or piece of a body was sent or came

    def send(self, header: Mapping[str, Any], body: bytes | bytearray | memoryview = b"") -> None:
        """Sends one frame."""
        packed: bytes = msgpack.packb(header)
        view = memoryview(body).cast("B")
        if len(packed) > MAX_HEADER:
            raise WireError(f"header of {len(packed)} bytes is over the limit of {MAX_HEADER}")
        out = self._head(packed, len(view))
        for at in range(0, len(view), PIECE_BYTES):
            if len(out) > 64 << 10:
                self.sock.sendall(out)
                out.clear()
            out += b"".join(self.halves.sending.seal(PIECE, view[at : at + PIECE_BYTES]))
        self.sock.sendall(out)

    def send_file(self, header: Mapping[str, Any], descriptor: int, size: int) -> None:
        """Sends one frame whose body is the first `size` bytes of an open file."""
        out = self._head(msgpack.packb(header), size)
        piece = memoryview(bytearray(min(size, PIECE_BYTES)))
        offset = 0
        while offset < size:
            part = piece[: min(size - offset, PIECE_BYTES)]
            if os.preadv(descriptor, [part], offset) != len(part):
                raise WireError(f"object file ended before byte {size}")
            out += b"".join(self.halves.sending.seal(PIECE, part))
            self.sock.sendall(out)
            out.clear()
            offset += len(part)
            self.moved = time.monotonic()
        self.sock.sendall(out)

    def _head(self, packed: bytes, body: int) -> bytearray:
        lengths = _LENGTHS.pack(len(packed), body)
        return bytearray(lengths + b"".join(self.halves.sending.seal(HEADER, packed, lengths)))

    def receive_header(self) -> tuple[Header, int]:
        """Reads a frame's header; returns it and the size of the body that follows, which the caller must read.

        Raises `WireError` if either is over its limit, or if the peer is gone; `EOFError` if it left between frames.
        """
        try:
            first = self.sock.recv(_LENGTHS.size)
        except ConnectionError as exc:
            raise EOFError("the peer closed the connection") from exc
        if not first:
            raise EOFError("the peer closed the connection")
        if len(first) < _LENGTHS.size:
            first += _receive_exactly(self.sock, _LENGTHS.size - len(first))
        header_size, body_size = _LENGTHS.unpack(first)
        if header_size > MAX_HEADER:
            raise WireError(f"the peer announced a header of {header_size} bytes, over the limit of {MAX_HEADER}")
        if body_size > self.max_body:
            raise WireError(f"the peer announced a body of {body_size} bytes, over the limit of {self.max_body}")
        packed = bytearray(_receive_exactly(self.sock, header_size + TAG_BYTES))
        tag = bytes(packed[header_size:])
        del packed[header_size:]
        self.halves.receiving.open(HEADER, memoryview(packed), tag, first)
        self.moved = time.monotonic()
        try:
            header = msgpack.unpackb(packed)
        except (ValueError, RecursionError, msgpack.UnpackException) as exc:
            raise WireError(f"the peer sent a header that is no msgpack: {exc}") from exc
        if not isinstance(header, dict):
            raise WireError(f"the peer sent a header that is no map but {type(header).__name__}")
        return header, body_size

    def receive_into(self, view: memoryview) -> None:
        """Reads the next `len(view)` bytes of a body into `view`: whole pieces, but for the end of the body."""
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            _receive_into(self.sock, piece)
            self.halves.receiving.open(PIECE, piece, _receive_exactly(self.sock, TAG_BYTES))
            self.moved = time.monotonic()

    def receive(self) -> tuple[Header, bytearray]:
        """Reads a whole frame."""
        header, size = self.receive_header()
        body = bytearray(size)
        self.receive_into(memoryview(body))
        return header, body

    def records(self) -> Records:
        """For a connection that goes on as a stream: no frame is sent or received any more."""
        return Records(self.halves)

    def dup(self) -> Connection:
        """The same connection under another descriptor; only one of the two is used from now on."""
        return Connection(self.sock.dup(), self.halves, max_body=self.max_body)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def prepare(sock: socket.socket) -> None:
    """Options of an accepted socket."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose host vanished says nothing for ever: its connection must not hold a place for good.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2000 * KEEPALIVE_SECONDS)


def identity_of(sock: socket.socket, role: str = OBJECTS) -> Identity:
    """Of a process that is known by the address it listens on."""
    name = sock.getsockname()
    return Identity(role, *(name[:2] if isinstance(name, tuple) else ("", 0)))


def accept(
    sock: socket.socket, secret: bytes | Secrets, *, identity: Identity | None = None, max_body: int = MAX_BODY
) -> Connection:
    """The server's half of the handshake on a fresh socket; the socket blocks without limit afterwards.

    identity: who this process is; None: objects at the address of the socket. Raises `AuthenticationError` if the peer does
    not know the secret or dialled another process, `WireError` if it speaks something else.
    """
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    sock.settimeout(HANDSHAKE_TIMEOUT)
    known = as_secrets(secret)
    try:
        prepare(sock)
        shake = ServerHandshake(known, identity or identity_of(sock))
        sock.sendall(shake.greeting)
        start = _receive_exactly(sock, len(MAGIC), deadline)
        if start != MAGIC:
            raise WireError("the peer speaks another protocol")
        hello = start + _receive_exactly(sock, HELLO_BYTES - len(MAGIC), deadline)
        try:
            greeted = shake.answer(hello)
        except UnknownSecretError:
            if not known.refresh():
                sock.sendall(REFUSED)
                raise
            greeted = shake.answer(hello)
        sock.sendall(greeted.reply)
    except (TimeoutError, ConnectionError) as exc:
        raise WireError(f"the peer left during the handshake: {exc}") from exc
    if greeted.halves is None:
        raise greeted.error or AuthenticationError("the peer does not know this cluster's secret")
    sock.settimeout(None)
    return Connection(sock, greeted.halves, max_body=max_body)


def connect(
    address: tuple[str, int],
    secret: bytes | Secrets,
    *,
    role: str = OBJECTS,
    incarnation: bytes = b"",
    timeout: float = HANDSHAKE_TIMEOUT,
    max_body: int = MAX_BODY,
) -> Connection:
    """Connects to a process of the cluster and proves knowledge of the secret, its as well as ours, and that it is the one.

    `role` and `incarnation` (b"": any) say whom at that address. `timeout` (seconds) limits connecting with the proof, and each
    later read or write. Raises `AuthenticationError` if the other end does not know the secret, `MisdirectedError` if it is
    another process of the cluster, `NoPlaceError` if that has too many callers, `WireError` if it is no process of one or dies meanwhile, `OSError` if nobody listens there.
    """
    known = as_secrets(secret)
    destination = Destination(role, *address[:2], incarnation)
    if known.find(secret_id(known.newest)) is None:  # it was read long ago: who knew it then need not know today's
        known.refresh()
    try:
        return _connect(destination, known, timeout, max_body)
    except MisdirectedError:
        raise
    except AuthenticationError:
        if not known.refresh():
            raise
        return _connect(destination, known, timeout, max_body)


def _connect(destination: Destination, known: Secrets, timeout: float, max_body: int) -> Connection:
    where = f"{destination.ip}:{destination.port}"
    shake = ClientHandshake(known, destination)
    deadline = time.monotonic() + timeout
    sock = socket.create_connection((destination.ip, destination.port), timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = _receive_exactly(sock, GREETING_BYTES, deadline)
        try:
            sock.sendall(shake.hello(greeting))
        except WireError as exc:
            raise WireError(f"{where} is no worker of this version: {exc}") from exc
        try:
            answer = _receive_exactly(sock, shake.reply_bytes, deadline)
            if answer == REFUSED:
                raise AuthenticationError(f"{where} refused this cluster's secret: is it a worker of another cluster?")
            more = _receive_exactly(sock, shake.more_bytes, deadline) if shake.more_bytes else b""
        except AuthenticationError:
            raise
        except (WireError, ConnectionError) as exc:
            raise WireError(f"{where} left during the handshake: {exc}") from exc
        try:
            halves = shake.finish(answer, more)
        except (AuthenticationError, NoPlaceError) as exc:
            raise type(exc)(f"{where}: {exc}") from exc
        sock.settimeout(timeout)
        return Connection(sock, halves, max_body=max_body)
    except BaseException:
        sock.close()
        raise
