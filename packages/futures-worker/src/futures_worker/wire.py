"""Frames between processes over TCP, and the proof that both ends know the cluster's secret before any frame is read.

Handshake, 8-byte magic first, all sizes fixed, so that a stranger costs a few hundred bytes and never a parser:

    server -> client   MAGIC (8) | server nonce (32)
    client -> server   MAGIC (8) | client nonce (32) | HMAC-SHA256(secret, "client" | server nonce | client nonce) (32)
    server -> client   HMAC-SHA256(secret, "server" | client nonce | server nonce) (32)

A frame is `header length (4, big endian) | body length (8, big endian) | header (msgpack map) | body (raw bytes)`. Headers
are metadata and never pickled; a body is whatever the two ends agreed on. Both lengths are checked against limits before
anything is allocated. The channel is authenticated at its start, not encrypted: it listens on loopback by default.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import msgpack

from futures_worker.errors import AuthenticationError, WireError

MAGIC = b"mspring1"
NONCE_BYTES = 32
REFUSED = (
    b"refused." * 4
)  # in the place of a proof: without it, a peer that dies meanwhile would look like one that refuses
SECRET_BYTES = 32
HANDSHAKE_TIMEOUT = 5.0
"""Seconds a peer has to prove itself before the connection is dropped."""
KEEPALIVE_SECONDS = 60
"""Seconds of silence after which a server asks whether the peer's host is still there."""
MAX_HEADER = 64 << 10
"""Bytes of a frame's header."""
MAX_BODY = 64 << 30
"""Bytes of a frame's body, unless the caller sets a smaller limit."""

_LENGTHS = struct.Struct(">IQ")

Header = dict[str, Any]


def new_secret() -> bytes:
    """A fresh cluster secret: 32 random bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(secret, role + first + second, hashlib.sha256).digest()


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
    while len(view):
        count = sock.recv_into(view)
        if count == 0:
            raise WireError("the peer closed the connection in the middle of a message")
        view = view[count:]


class Connection:
    """One authenticated connection: frames in, frames out. Not safe for use by several threads at once."""

    def __init__(self, sock: socket.socket, *, max_body: int = MAX_BODY) -> None:
        self.sock = sock
        self.max_body = max_body

    def send(self, header: Mapping[str, Any], body: bytes | bytearray | memoryview = b"") -> None:
        """Sends one frame."""
        packed: bytes = msgpack.packb(header)
        view = memoryview(body).cast("B")
        if len(packed) > MAX_HEADER:
            raise WireError(f"header of {len(packed)} bytes is over the limit of {MAX_HEADER}")
        prefix = _LENGTHS.pack(len(packed), len(view)) + packed
        if len(view) <= 64 << 10:
            self.sock.sendall(prefix + bytes(view))
        else:
            self.sock.sendall(prefix)
            self.sock.sendall(view)

    def send_file(self, header: Mapping[str, Any], descriptor: int, size: int) -> None:
        """Sends one frame whose body is the first `size` bytes of an open file, without copying them through Python."""
        packed: bytes = msgpack.packb(header)
        self.sock.sendall(_LENGTHS.pack(len(packed), size) + packed)
        offset = 0
        while offset < size:
            sent = os.sendfile(self.sock.fileno(), descriptor, offset, min(size - offset, 1 << 30))
            if sent == 0:
                raise WireError(f"object file ended at byte {offset} of {size}")
            offset += sent

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
        try:
            header = msgpack.unpackb(_receive_exactly(self.sock, header_size))
        except (ValueError, msgpack.UnpackException) as exc:
            raise WireError(f"the peer sent a header that is no msgpack: {exc}") from exc
        if not isinstance(header, dict):
            raise WireError(f"the peer sent a header that is no map but {type(header).__name__}")
        return header, body_size

    def receive_into(self, view: memoryview) -> None:
        """Reads exactly `len(view)` bytes of a body into `view`."""
        _receive_into(self.sock, view)

    def receive(self) -> tuple[Header, bytearray]:
        """Reads a whole frame."""
        header, size = self.receive_header()
        body = bytearray(size)
        _receive_into(self.sock, memoryview(body))
        return header, body

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def accept(sock: socket.socket, secret: bytes, *, max_body: int = MAX_BODY) -> Connection:
    """The server's half of the handshake on a fresh socket; the socket blocks without limit afterwards.

    Raises `AuthenticationError` if the peer does not know the secret, `WireError` if it speaks something else.
    """
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    sock.settimeout(HANDSHAKE_TIMEOUT)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose host vanished says nothing for ever: its connection must not hold a place for good.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2000 * KEEPALIVE_SECONDS)
        nonce = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(MAGIC + nonce)
        reply = _receive_exactly(sock, len(MAGIC) + NONCE_BYTES + 32, deadline)
        if not reply.startswith(MAGIC):
            raise WireError("the peer speaks another protocol")
        peer_nonce = reply[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        if not hmac.compare_digest(reply[-32:], _proof(secret, b"client", nonce, peer_nonce)):
            sock.sendall(REFUSED)
            raise AuthenticationError("the peer does not know this cluster's secret")
        sock.sendall(_proof(secret, b"server", peer_nonce, nonce))
    except (TimeoutError, ConnectionError) as exc:
        raise WireError(f"the peer left during the handshake: {exc}") from exc
    sock.settimeout(None)
    return Connection(sock, max_body=max_body)


def connect(
    address: tuple[str, int], secret: bytes, *, timeout: float = HANDSHAKE_TIMEOUT, max_body: int = MAX_BODY
) -> Connection:
    """Connects to a worker and proves knowledge of the secret, the worker's as well as ours.

    `timeout` (seconds) limits connecting with the proof, and each later read or write. Raises `AuthenticationError` if the other end does
    not know the secret, `WireError` if it is no worker or dies meanwhile, `OSError` if nobody listens there.
    """
    where = f"{address[0]}:{address[1]}"
    deadline = time.monotonic() + timeout
    sock = socket.create_connection(address, timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = _receive_exactly(sock, len(MAGIC) + NONCE_BYTES, deadline)
        if not greeting.startswith(MAGIC):
            raise WireError(f"{where} is no worker of this version: it speaks another protocol")
        peer_nonce = greeting[len(MAGIC) :]
        nonce = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(MAGIC + nonce + _proof(secret, b"client", peer_nonce, nonce))
        try:
            answer = _receive_exactly(sock, 32, deadline)
        except (WireError, ConnectionError) as exc:
            raise WireError(f"{where} left during the handshake: {exc}") from exc
        if answer == REFUSED:
            raise AuthenticationError(f"{where} refused this cluster's secret: is it a worker of another cluster?")
        if not hmac.compare_digest(answer, _proof(secret, b"server", nonce, peer_nonce)):
            raise AuthenticationError(f"{where} does not know this cluster's secret")
        sock.settimeout(timeout)
        return Connection(sock, max_body=max_body)
    except BaseException:
        sock.close()
        raise
