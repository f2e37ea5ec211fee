"""Takes in connections on one listening socket: who proves itself in time is given on, and nothing that comes ends it.

One thread waits for all peers that have yet to prove themselves; each costs a descriptor and a few hundred bytes. There are
limits to their number and to their time: where there are too many, one of the address that most of them come from has to go, the
one that came first, so that whoever knows the secret, and says so at once, gets in at all times. Where the process is short of descriptors or memory the peers wait in the
kernel's queue until it no longer is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from futures_worker.errors import MainspringError, WireError
from futures_worker.ports import wire
from futures_worker.ports.handshake import (
    HELLO_BYTES,
    MAGIC,
    REFUSED,
    Identity,
    Secrets,
    ServerHandshake,
    UnknownSecretError,
    as_secrets,
)

MOST_UNPROVEN: Final = 256
"""Peers that may be about to prove themselves at one time; fewer where the process may have few descriptors."""
MOST_PARKED: Final = 256
"""Proven peers that wait for a place."""
AT_ONCE: Final = 64
"""Peers taken from the kernel's queue before the others are looked at again."""
SHORT_PAUSE: Final = 0.05
"""Seconds until a process that was short of something tries again."""
BACKLOG: Final = 1024
"""Peers that may wait in the kernel's queue."""

_MAPPED: Final = bytes(10) + b"\xff\xff"

log = logging.getLogger("futures_worker")


@dataclass(slots=True)
class _Peer:
    sock: socket.socket
    source: bytes
    shake: ServerHandshake
    until: float  # monotonic; when its time is over
    hello: bytearray = field(default_factory=bytearray)
    waiting: bool = False  # for another look at the secrets


def source_of(place: object) -> bytes:
    """Where a peer comes from: its IPv4 address, or of an IPv6 address the network, of which one has a whole one."""
    if not isinstance(place, tuple):
        return b""
    ip = str(place[0]).partition("%")[0]
    if ":" not in ip:
        return socket.inet_aton(ip)
    packed = socket.inet_pton(socket.AF_INET6, ip)
    return packed[12:] if packed.startswith(_MAPPED) else packed[:8]


class Acceptor:
    """`on_peer` is called by the acceptor's thread with each proven connection; False: there is no place, ask again later."""

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes | Secrets,
        on_peer: Callable[[wire.Connection], bool],
        *,
        identity: Identity | None = None,
        name: str = "acceptor",
        has_place: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sock` listens; the caller closes it. `identity`: whom peers mean by it; None: objects at its address.

        `has_place`: whether there is one for a peer that proves itself; else it is told so, which ends its connection.
        """
        self._sock = sock
        self._secrets = as_secrets(secret)
        self._on_peer = on_peer
        self._identity = identity or wire.identity_of(sock)
        self._has_place = has_place
        self._peers: dict[int, _Peer] = {}  # by descriptor, those that came first are first
        self._sources: Counter[bytes] = Counter()  # of those
        self._parked: deque[wire.Connection] = deque()
        self._closing = False
        self._lock = threading.Lock()
        self._looking = False  # for changed secrets, in another thread
        self._looked = False  # since the loop last saw to it
        self._said = 0.0
        self._paused_until = 0.0  # monotonic; 0: peers are taken from the kernel's queue
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST_UNPROVEN if limit < 0 else max(8, min(MOST_UNPROVEN, limit // 8))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._listening = sock.fileno()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take peers in."""
        self.thread.start()

    def poke(self) -> None:
        """There may be a place for a peer that waits for one. From any thread."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End; whoever has not been given on is cut off."""
        self._closing = True
        self.poke()
        if self.thread.is_alive():
            self.thread.join(5)
        with self._lock:
            if self._wake >= 0 and not self.thread.is_alive():
                os.close(self._wake)
                self._epoll.close()
                self._wake = -1

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:
                if self._closing:
                    break
                with contextlib.suppress(Exception):  # without memory there are no words either
                    self._say(error)
                time.sleep(SHORT_PAUSE)
        for peer in list(self._peers.values()):
            self._drop(peer)
        for connection in self._parked:
            connection.close()

    def _turn(self) -> None:
        for descriptor, _ in self._epoll.poll(self._patience()):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor == self._listening:
                self._take()
            elif descriptor in self._peers:
                self._hear(self._peers[descriptor])
        if self._closing:
            return
        if self._looked:
            self._looked = False
            for peer in [one for one in self._peers.values() if one.waiting]:
                self._answer(peer)
        now = time.monotonic()
        for peer in list(self._peers.values()):
            if peer.until > now:
                break
            self._drop(peer)
        while self._parked and self._give(self._parked[0]):
            self._parked.popleft()
        if self._paused_until and self._paused_until <= now:
            self._paused_until = 0.0
            self._epoll.modify(self._listening, select.EPOLLIN)

    def _patience(self) -> float:
        if self._paused_until or self._parked:
            return SHORT_PAUSE
        first = next(iter(self._peers.values()), None)
        return -1 if first is None else max(0.0, first.until - time.monotonic()) + 0.001

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, place = self._sock.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                if self._closing:
                    return
                self._shortage(error)
                return
            try:
                sock.setblocking(False)
                wire.prepare(sock)
                shake = ServerHandshake(self._secrets, self._identity, self._has_place)
                peer = _Peer(sock, source_of(place), shake, time.monotonic() + wire.HANDSHAKE_TIMEOUT)
                sock.send(peer.shake.greeting)
                self._epoll.register(sock.fileno(), select.EPOLLIN)
            except OSError:
                sock.close()
                continue
            self._peers[sock.fileno()] = peer
            self._sources[peer.source] += 1
            if len(self._peers) > self._most:
                self._make_room()

    def _shortage(self, error: OSError) -> None:
        """No descriptor, or no memory, for one more: it is the host's trouble, and passes."""
        self._say(error)
        if self._peers:
            self._make_room()
        self._paused_until = time.monotonic() + SHORT_PAUSE
        self._epoll.modify(self._listening, 0)

    def _make_room(self) -> None:
        """Who comes from one place, however often, is in nobody's way but his own."""
        most = max(self._sources.values())
        self._drop(next(peer for peer in self._peers.values() if self._sources[peer.source] == most))

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(HELLO_BYTES - len(peer.hello))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.hello += data
        if not data or not MAGIC.startswith(bytes(peer.hello[: len(MAGIC)])):
            self._drop(peer)
        elif len(peer.hello) == HELLO_BYTES:
            self._epoll.unregister(peer.sock.fileno())
            self._answer(peer)

    def _answer(self, peer: _Peer) -> None:
        try:
            greeted = peer.shake.answer(bytes(peer.hello))
            peer.sock.send(greeted.reply)
        except UnknownSecretError:
            if not peer.waiting:
                peer.waiting = True
                self._look()
            else:
                with contextlib.suppress(OSError):
                    peer.sock.send(REFUSED)
                self._drop(peer)
            return
        except (WireError, OSError):
            self._drop(peer)
            return
        except MainspringError as error:
            self._say(error)
            self._drop(peer)
            return
        if greeted.halves is None:
            self._drop(peer)
            return
        self._forget(peer)
        peer.sock.setblocking(True)
        connection = wire.Connection(peer.sock, greeted.halves)
        if self._parked or not self._give(connection):
            self._parked.append(connection)
            if len(self._parked) > MOST_PARKED:
                self._parked.popleft().close()

    def _give(self, connection: wire.Connection) -> bool:
        """Whether the connection is no longer the acceptor's."""
        try:
            return self._on_peer(connection)
        except Exception as error:  # no thread, no memory, no descriptor for this one
            connection.close()
            self._say(error)
            return True

    def _look(self) -> None:
        """Have the secrets looked at by another thread: the database may be slow."""
        if self._looking:
            return
        self._looking = True

        def look() -> None:
            try:
                self._secrets.refresh()
            except Exception as error:
                self._say(error)
            finally:
                self._looking, self._looked = False, True
                self.poke()

        try:
            threading.Thread(target=look, name="secrets", daemon=True).start()
        except RuntimeError as error:  # no thread
            self._say(error)
            self._looking, self._looked = False, True

    def _drop(self, peer: _Peer) -> None:
        descriptor = peer.sock.fileno()
        self._forget(peer)
        with contextlib.suppress(OSError):
            self._epoll.unregister(descriptor)
        peer.sock.close()

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.sock.fileno(), None) is not None:
            self._sources[peer.source] -= 1
            if not self._sources[peer.source]:
                del self._sources[peer.source]

    def _say(self, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._said > 10 or not self._said:
            self._said = now
            log.warning("connections are refused or have to wait: %s: %s", type(error).__name__, error)
