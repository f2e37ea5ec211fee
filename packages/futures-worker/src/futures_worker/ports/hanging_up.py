"""Hanging up a connection, and seeing that the other end did."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
import time
from typing import Final

READ_BYTES: Final = 1 << 18


def is_at_end(sock: socket.socket) -> bool:
    """Whether the other end hung up and left nothing to read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def let_everything_arrive(sock: socket.socket, seconds: float) -> None:
    """Return once the other end's kernel has all that was sent, after `seconds` at most: closing before that may take it back."""
    until = time.monotonic() + seconds
    sock.shutdown(socket.SHUT_WR)
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    while time.monotonic() < until:
        try:
            if not sock.recv(READ_BYTES):
                return
        except BlockingIOError:
            (unsent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
            if unsent == 0:
                return
            poll.poll(10)
