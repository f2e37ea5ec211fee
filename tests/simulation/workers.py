"""Workers under the simulation: the real service, whose child processes are strands and whose sockets are the machine's.

What is replaced is what `install` names: the children, the server of objects and those who ask it, how an actor is reached, and looks
at the real machine.
"""

from __future__ import annotations

import concurrent.futures.thread as thread_pools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import fdb_datamodel as dm
import futures_worker.client.session.reading as reading
from fdb_datamodel.rows import ids
from futures_worker.client import context
from futures_worker.client.basis import blocks, processes, program, untouched
from futures_worker.client.session import actor_link
from futures_worker.client.submits import large_arguments
from futures_worker.errors import ObjectLostError, WireError
from futures_worker.objects.store_client import ObjectAbsentError
from futures_worker.ports import hanging_up
from futures_worker.ports.handshake import NoPlaceError
from futures_worker.worker import actor_host, concurrent_actor, service
from futures_worker.worker.child import child_main, interrupts, task_context
from futures_worker.worker.running import eager, shell, usage
from simulation import machine as machines
from simulation.children import Anything, Children, States
from simulation.descriptors import Stream, asyncio_of_machine, connection, fcntl_of_machine
from simulation.machine import Process, current_process
from simulation.sites import URL, Site, begin, database, perhaps_break
from simulation.stand_ins import machine
from simulation.world import CLUSTER, World

CONNECT_SECONDS: Final = 2.0
TTL: Final = 3.0
SESSION_TTL: Final = 20.0
EARLY: Final = 0.9
"""Of a worker's grace, within which what it had is told for sure."""


# --- objects ------------------------------------------------------------------------------------------------------------


class Socket:
    """What a worker listens on."""

    ports: Final = iter(range(20_000, 60_000))

    def __init__(self, address: str) -> None:
        self.name = address, next(self.ports)

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def close(self) -> None:
        pass


class ObjectServer:
    """`StoreServer`: who it is is known to the fetchers of this module."""

    def __init__(
        self, sock: Socket, _secrets: Any, store: Any, _about: Any, admit: Any, runs: Any, *_: Any, identity: Any
    ) -> None:
        process = current_process()
        assert process is not None
        self.process, self.store, self.admit, self.runs, self.identity = process, store, admit, runs, identity
        self.address = sock.getsockname()
        self.open = False

    def start(self) -> None:
        self.open = True
        Site.servers[self.address] = self

    def close(self) -> None:
        self.open = False


class Door:
    """`Acceptor` of an actor: who dials it, and finds a place, is let in."""

    def __init__(
        self, sock: Socket, _secrets: Any, admit: Any, *, identity: Any, has_place: Callable[[], bool], **_: Any
    ) -> None:
        self.process = current_process()
        self.address, self.admit, self.identity, self.has_place = sock.getsockname(), admit, identity, has_place
        self.open = False

    start, close = ObjectServer.start, ObjectServer.close


class Dialling:
    """`wire`, of which a client that calls an actor asks for a connection."""

    @staticmethod
    def connect(address: tuple[str, int], _secrets: Any, *, incarnation: bytes, **_: Any) -> LineConnection:
        connection: LineConnection = Fetcher().open_line((*address, incarnation))
        return connection


class Sealing:
    """`Records`, without seals."""

    def pack(self, data: bytes) -> bytes:
        return data

    def feed(self, data: bytes) -> list[bytes]:
        return [data]

    def state(self) -> None:
        """What was fed is never in the midst of something."""

    def go_back(self, state: None) -> None:
        """To what `state` was."""


class LineConnection:
    """What `open_line` gives, and what a worker admits, or an actor."""

    def __init__(self, sock: Stream) -> None:
        self.sock = sock

    def records(self) -> Sealing:
        return Sealing()

    def close(self) -> None:
        self.sock.close()


class Fetcher:
    """`ObjectFetcher`: asks the servers of the simulation."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.process = current_process()

    def fetch(self, address: Any, name: str, **_: Any) -> memoryview:
        return memoryview(self._path(address, name).read_bytes())

    def fetch_file(self, address: Any, name: str, target: Any, **_: Any) -> int:
        return Path(target).write_bytes(self._path(address, name).read_bytes())

    def put(self, address: Any, name: str, data: Any) -> int:
        return self.put_parts(address, name, lambda: [data], 0)

    def put_parts(self, address: Any, name: str, parts: Callable[[], Iterable[Any]], _size: int) -> int:
        size: int = self._server(address, name).store.add(name, list(parts()))
        return size

    def delete(self, address: Any, name: str) -> bool:
        return bool(self._server(address, name).store.delete(name))

    def hello(self, address: Any) -> dict[str, Any]:
        self._server(address, "hello")
        return {}

    def runs(self, address: Any, future_id: bytes) -> bool:
        return bool(self._server(address, "runs").runs(future_id))

    def stack(self, _address: Any, _future_id: bytes) -> str | None:
        return None

    def open_line(self, address: Any) -> LineConnection:
        try:
            server = self._server(address, "a line")
        except ObjectLostError as error:
            raise WireError(str(error)) from None
        if not getattr(server, "has_place", lambda: True)():
            raise NoPlaceError("all places are taken")
        mine, theirs = connection(self.process, server.process, lambda: Site.chance.uniform(0.00005, 0.002))
        perhaps_break(mine, theirs)
        server.admit(LineConnection(theirs))
        return LineConnection(mine)

    def close(self) -> None:
        pass

    def _path(self, address: Any, name: str) -> Path:
        server = self._server(address, name)
        found = server.store.locate(name)
        if found is None:
            raise ObjectAbsentError(f"worker {address[0]}:{address[1]} no longer holds object {name}")
        path: Path = found[0]
        return path

    def _server(self, address: Any, what: str) -> ObjectServer:
        here = machine()
        here.block(Site.chance.uniform(0.0002, 0.004))
        until = here.now + CONNECT_SECONDS
        while True:
            server = Site.servers.get(tuple(address[:2]))
            if server is None or server.process.dead or not server.open:
                raise ObjectLostError(f"worker {address[0]}:{address[1]} doesn't answer: {what}")
            if len(address) > 2 and address[2] not in (server.identity.incarnations() or (address[2],)):
                raise ObjectAbsentError(f"worker {address[0]}:{address[1]} is another one by now")
            cut = max(server.process.cut_off_until, 0.0 if self.process is None else self.process.cut_off_until)
            if max(cut, server.process.stopped_until) <= here.now:
                return server
            if here.now >= until:
                raise ObjectLostError(f"worker {address[0]}:{address[1]} doesn't answer in time: {what}")
            here.block(0.1)


# --- the service ----------------------------------------------------------------------------------------------------------


def install() -> None:
    """Put the stand-ins of this module where the service, clients and actors look for the real ones."""
    service.__dict__.update(
        open_database=lambda _url: database(),
        url_of=lambda _db: URL,
        listen=lambda address, _port: Socket(address),
        ObjectFetcher=Fetcher,
        StoreServer=ObjectServer,
    )
    context.__dict__["open_database"] = lambda _url, **_: database()
    shell.__dict__["ChildPool"] = Children
    reading.__dict__["ObjectFetcher"] = Fetcher
    usage.Usage.read = lambda self: None  # type: ignore[method-assign]
    eager.__dict__["_PRESSURE"] = "/nowhere"
    actor_host.__dict__.update(listen=lambda address, _port: Socket(address), Acceptor=Door)
    concurrent_actor.__dict__["asyncio"] = asyncio_of_machine()
    actor_link.__dict__["wire"] = Dialling
    hanging_up.__dict__["fcntl"] = fcntl_of_machine()
    child_main.__dict__.update(
        ChildOutput=Anything,
        CodeVersions=Anything,
        Surroundings=Anything,
        ClassStates=States,
        answer_requests=lambda _folder: None,
    )
    machines.OWN.extend(_own())


def _own() -> list[tuple[Any, str, Callable[[], Any]]]:
    """What modules keep of the process in which they are."""
    return [
        (thread_pools, "_global_shutdown_lock", threading.Lock),
        (interrupts, "_gate", lambda: None),
        (task_context, "_current", lambda: None),
        (task_context, "_report", lambda: None),
        (task_context, "_own_cluster", lambda: None),
        (task_context, "_lock", threading.RLock),
        (context, "_own", dict),
        (context, "_found", dict),
        (context, "_homes", dict),
        (context, "_lock", threading.RLock),
        (processes, "_open", weakref.WeakSet),
        (processes, "_with_actors", set),
        (processes, "_left", dict),
        (processes, "_lock", threading.Lock),
        (blocks, "_entered", dict),
        (blocks, "_lock", threading.RLock),
        (program, "_running", lambda: None),
        (untouched, "_made", deque),
        (untouched, "_elsewhere", list),
        (untouched, "_lock", threading.Lock),
        (untouched, "_stopped", threading.Event),
        (untouched, "_thread", lambda: None),
        (large_arguments, "_counts", dict),
        (large_arguments, "_lock", threading.Lock),
        (ids, "_last_ms", int),
        (ids, "_sequence", int),
        (ids, "_lock", threading.Lock),
    ]


def start(world: World) -> None:
    """A few workers, where no other scene has them yet."""
    if not begin(world):
        return
    chance = world.chance
    actor_host.__dict__["MOST_CALLERS"] = chance.choice((1024, 1024, 2))
    Site.slots = 0
    for _ in range(chance.randint(1, 3)):
        config = service.WorkerConfig(
            cluster=CLUSTER, slots=chance.randint(1, 3), ttl=TTL, session_ttl=SESSION_TTL, collect_after=5.0,
            tombstones=10.0, object_store=1 << 20, total=dm.Requirements(cpu=2.0, ram=2 << 30),
            grace=chance.choice((3.0, 30.0)),
        )  # fmt: skip
        Site.slots += config.slots
        world.process("worker", worker_main(config))


def worker_main(config: service.WorkerConfig) -> Callable[[Process, Any], None]:
    """The main strand of a worker process."""

    def main(process: Process, db: Any) -> None:
        here, world = machine(), Site.world
        assert world is not None
        made: list[Any] = []
        until = 0.0

        def drain() -> None:
            """As at its signals: again, at once."""
            nonlocal until
            grace = None if not until and made else 0.0
            until = here.now + EARLY * (config.grace if grace is None else grace)
            for one in made:
                one.shell.drain(grace)

        Site.databases[process.number], process.drain = db, drain
        made.append(service.WorkerService(config))
        if process.leaves:
            made[0].shell.drain(0.0)
        made[0].run(ready=lambda _: None)
        process.left = here.now < until
        world.kill(process)  # and another one takes its place

    return main
