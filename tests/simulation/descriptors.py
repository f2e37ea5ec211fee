"""Descriptors of the machine: event counters, streams between processes, and `poll` and `epoll` over them."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import termios
import types
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent

from simulation.machine import Process, Strand
from simulation.stand_ins import machine

FIRST: Final = 1 << 20
"""Descriptors from here on are the machine's; a real one is never so high."""
_EOF: Final = b""


class Descriptor:
    """Something that becomes readable."""

    known: Final[dict[int, Descriptor]] = {}

    def __init__(self) -> None:
        self.number = FIRST + len(self.known)
        self.known[self.number] = self
        self.open = True
        self.waiters: dict[Strand, None] = {}

    def readable(self) -> bool:
        raise NotImplementedError

    def ring(self) -> None:
        """It became readable: wake who polls it."""
        for strand in self.waiters:
            machine().wake(strand)


class Counter(Descriptor):
    """An `eventfd`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def readable(self) -> bool:
        return self.count > 0

    def add(self, value: int) -> None:
        self.count += value
        self.ring()

    def take(self) -> int:
        if not self.count:
            raise BlockingIOError
        count, self.count = self.count, 0
        return count


class Stream(Descriptor):
    """One end of a connection. What is sent arrives a little later, in its order, unless either process is cut off."""

    def __init__(self, owner: Process | None, latency: Callable[[], float]) -> None:
        super().__init__()
        self.owner = owner
        self.peer: Stream
        self._latency = latency
        self._arrived: list[bytes] = []
        self._under_way: deque[bytes] = deque()
        self._over = False
        self._said_all = False
        self._lost = False
        self._timeout: float | None = None
        self._last = 0.0

    # --- as a socket

    def fileno(self) -> int:
        return self.number if self.open else -1

    def setblocking(self, blocking: bool) -> None:
        self._timeout = None if blocking else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def send(self, data: bytes) -> int:
        if self._said_all or self._over:
            raise BrokenPipeError("the peer hung up")
        self.peer.deliver(bytes(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self._arrived and flags & socket.MSG_PEEK:
            return self._arrived[0][:size]
        if self._arrived:
            data = self._arrived.pop(0)
            if len(data) > size:
                self._arrived.insert(0, data[size:])
            return data[:size]
        if self._over and self._lost:
            raise ConnectionResetError("the connection is lost")
        if self._over:
            return _EOF
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        if not self._said_all:
            self._said_all = True
            self.peer.deliver(_EOF)
        if how != socket.SHUT_WR:
            self._over = True
            self.ring()

    def close(self) -> None:
        if self.open:
            self.open = False
            self.shutdown(socket.SHUT_RDWR)

    # --- below

    def readable(self) -> bool:
        return bool(self._arrived) or self._over

    def break_off(self, later: float) -> None:
        """The connection is lost, with all that is under way; this end learns it now, the other one `later` seconds from now."""
        for end in (self, self.peer):
            end._lost = True
            end._under_way.clear()
        self._learn_of_loss()
        machine().after(later, self.peer._learn_of_loss)

    def _learn_of_loss(self) -> None:
        self._over = True
        self.ring()

    def deliver(self, data: bytes) -> None:
        """Called by the other end."""
        here = machine()
        if self._lost:
            return
        self._last = max(self._last, here.now + self._latency())
        self._under_way.append(data)
        here.at(self._last, self._arrive)

    @property
    def unsent(self) -> int:
        """Bytes that the other end hasn't got yet."""
        return sum(map(len, self.peer._under_way))

    def _arrive(self) -> None:
        here = machine()
        cut = max((one.owner.cut_off_until for one in (self, self.peer) if one.owner is not None), default=0.0)
        if cut > here.now:
            self._last = max(self._last, cut)
            here.at(cut, self._arrive)
            return
        if not self._under_way:
            return  # it was lost
        data = self._under_way.popleft()  # whichever is due: they come in their order
        if data == _EOF:
            self._over = True
        else:
            self._arrived.append(data)
        self.ring()


def connection(here: Process | None, there: Process | None, latency: Callable[[], float]) -> tuple[Stream, Stream]:
    """Two ends, of two processes. The death of one closes its end."""
    one, other = Stream(here, latency), Stream(there, latency)
    one.peer, other.peer = other, one
    for end in (one, other):
        if end.owner is not None:
            end.owner.at_death.append(end.close)
    return one, other


class Poll:
    """`select.poll`, of which `epoll` is a kind here; times in milliseconds."""

    scale: float = 1e-3

    def __init__(self) -> None:
        self._registered: dict[int, Descriptor] = {}

    def register(self, descriptor: Any, _mask: int = 0) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._registered[number] = Descriptor.known[number]

    def modify(self, descriptor: Any, mask: int) -> None:
        self.register(descriptor, mask)

    def unregister(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if self._registered.pop(number, None) is None:
            raise ValueError(f"{number} isn't registered")

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        here, me = machine(), getcurrent()
        left = None if timeout is None or timeout < 0 else timeout * self.scale
        ready = self._ready()
        if ready or not isinstance(me, Strand):
            return ready
        if left == 0:  # a look takes a moment, too: who looks again and again sees time pass
            here.block(0.0)
            return self._ready()
        for one in self._registered.values():
            one.waiters[me] = None
        try:
            here.block(left)
        finally:
            for one in self._registered.values():
                one.waiters.pop(me, None)
        return self._ready()

    def close(self) -> None:
        self._registered.clear()

    def _ready(self) -> list[tuple[int, int]]:
        return [(number, select.POLLIN) for number, one in self._registered.items() if one.readable()]


class EPoll(Poll):
    """`select.epoll`; times in seconds."""

    scale = 1.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop between strands: it has nothing to read, but what other threads tell it."""

    def __init__(self) -> None:
        self._told = Counter()
        self._epoll = EPoll()
        self._epoll.register(self._told.number)
        super().__init__(self)  # type: ignore[arg-type]

    def select(self, timeout: float | None) -> list[Any]:
        """As of its selector."""
        if self._epoll.poll(-1 if timeout is None else timeout):
            self._told.take()
        return []

    def _make_self_pipe(self) -> None:
        pass

    _close_self_pipe = _make_self_pipe

    def _write_to_self(self) -> None:
        self._told.add(1)


def asyncio_of_machine() -> types.ModuleType:
    """`asyncio`, whose loops wait on the machine."""
    shim = types.ModuleType("asyncio")
    shim.__dict__.update(vars(asyncio), new_event_loop=Loop)
    return shim


def select_of_machine() -> types.ModuleType:
    """`select` over the machine's descriptors."""
    shim = types.ModuleType("select")
    shim.__dict__.update(vars(select))
    shim.__dict__.update(poll=Poll, epoll=EPoll)
    return shim


def fcntl_of_machine() -> types.ModuleType:
    """`fcntl`, as far as it is asked how much of what was sent is still under way."""
    shim = types.ModuleType("fcntl")

    def ioctl(number: int, request: int, _room: bytes) -> bytes:
        stream = Descriptor.known[number]
        assert request == termios.TIOCOUTQ and isinstance(stream, Stream)
        return struct.pack("i", stream.unsent)

    shim.__dict__["ioctl"] = ioctl
    return shim


def add_to(os_shim: types.ModuleType) -> None:
    """The calls of `os` that take the machine's descriptors."""

    def eventfd(_count: int = 0, _flags: int = 0) -> int:
        return Counter().number

    def eventfd_write(number: int, value: int) -> None:
        _counter(number).add(value)

    def eventfd_read(number: int) -> int:
        return _counter(number).take()

    def close(number: int) -> None:
        if number < FIRST:
            os.close(number)

    os_shim.__dict__.update(eventfd=eventfd, eventfd_write=eventfd_write, eventfd_read=eventfd_read, close=close)


def _counter(number: int) -> Counter:
    found = Descriptor.known[number]
    assert isinstance(found, Counter)
    return found
