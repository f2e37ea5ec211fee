"""Those who call an actor: a connection of one, and what a call is that comes on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from futures_worker.ports import wire
from futures_worker.worker.messages import is_id

MOST_MESSAGE: Final = 128 << 20
MOST_NAME: Final = 1000  # characters of a call's name that are kept: more than those of an actor and a method have


class Call(NamedTuple):
    """One call on its way through the actor."""

    caller: Caller | None  # None: its caller is gone, or it was recorded before this start
    id: bytes
    session: bytes
    method: str
    name: str
    args: bytes
    dependencies: Sequence[bytes]


class Caller:
    """One connection."""

    def __init__(self, connection: wire.Connection) -> None:
        self.sock = connection.sock
        self.records = connection.records()
        self.session = b""  # set by its hello
        self.unpacker = msgpack.Unpacker(max_buffer_size=MOST_MESSAGE, use_list=False)
        self.unsent = bytearray()
        self.unsealed = bytearray()
        self.deaf = False
        self.closed = False
        self.given_up = False  # its client has another connection since

    def send(self) -> bool:
        """Send what there is room for; whether all of it went."""
        if self.unsealed:
            self.unsent += self.records.pack(self.unsealed)
            self.unsealed.clear()
        try:
            while self.unsent:
                sent = self.sock.send(self.unsent)
                del self.unsent[:sent]
        except BlockingIOError:
            return False
        except OSError:  # it hung up and wants no answers; what it sent before is still read, up to its end
            self.deaf = True
            self.unsent.clear()
        return True


def read_call(caller: Caller, message: tuple[Any, ...]) -> Call:
    """Raises ValueError for what no client says: how it ended couldn't be recorded, which ends an actor for everybody."""
    _, call, method, name, args, dependencies = message
    if not caller.session:
        raise ValueError("a call before the hello")
    if type(method) is not str or type(name) is not str or type(args) is not bytes or type(dependencies) is not tuple:
        raise ValueError("a call has a method, a name, arguments and dependencies")
    if not all(map(is_id, (call, *dependencies))):
        raise ValueError("a call and what it depends on are named by their ids")
    return Call(caller, call, caller.session, method, name[:MOST_NAME], args, dependencies)
