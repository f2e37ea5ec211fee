"""Workers under the simulation: the real service, whose child processes are strands and whose sockets are the machine's.

What is replaced is what `install` names: the children, the server of objects and those who ask it, and looks at the real machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack
from greenlet import getcurrent

import futures_worker.client.session.reading as reading
from fdb_schema.serving import tracing
from fdb_schema.serving.private_files import read_own
from futures_worker import liveness, payload
from futures_worker.errors import ObjectLostError, WireError
from futures_worker.failure import may_retry
from futures_worker.objects.object_files import write_file
from futures_worker.objects.object_names import result_name
from futures_worker.objects.store_client import ObjectAbsentError
from futures_worker.worker import messages, service
from futures_worker.worker.child.kept import kept
from futures_worker.worker.child.task_logging import show_logs
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    ChildStarted,
    Event,
    InterruptTask,
    KillChild,
    RetireChild,
    SendTasks,
    SpawnChild,
    TakeBack,
    TasksReturned,
)
from futures_worker.worker.running import child_pool, eager, shell, usage
from futures_worker.worker.running.children import describe_status
from futures_worker.worker.soft_timeout import split_soft_timeout
from simulation.descriptors import Counter, Stream, connection
from simulation.machine import Process, Strand, current_process
from simulation.stand_ins import machine
from simulation.world import World

CONNECT_SECONDS: Final = 2.0


class Site:
    """What of the world the stand-ins of this module know: set for each run."""

    world: World
    crashes: float = 0.0
    """How probably a child dies in the midst of a task."""
    servers: dict[tuple[str, int], ObjectServer]
    chance: random.Random
    databases: dict[int, Any]
    children: dict[Strand, Child]


def begin(world: World, crashes: float) -> None:
    """A new run."""
    Site.world, Site.crashes = world, crashes
    liveness.HEAD = world.chance.choice((1, 16))  # few workers are many then
    Site.servers, Site.databases, Site.children = {}, {}, {}
    Site.chance = random.Random(f"{world.seed} site")


# --- children -----------------------------------------------------------------------------------------------------------


class Child:
    """A child process: packets of tasks, a strand that runs them."""

    def __init__(self, pool: Children, number: int) -> None:
        self.pool = pool
        self.number = number
        self.packets: deque[list[Any]] = deque()
        self.wanted = True
        self.dead = False
        self.seq = -1
        self.interrupts: dict[int, BaseException] = {}
        self.kept: dict[int, bytes] = {}
        self.strand: Strand = machine().spawn(pool.process, self.run)
        Site.children[self.strand] = self

    def run(self) -> None:
        here = machine()
        here.block(Site.chance.choice((0.01, 0.05, 0.5)))
        self.pool.tell(ChildStarted(self.number))
        while self.wanted or self.packets:
            if not self.packets:
                here.block(None)
                continue
            since, *tasks = self.packets.popleft()
            while tasks:
                self.run_task(tasks.pop(0))
                if here.monotonic() - since > messages.PACKET_SECONDS:
                    for task in tasks:
                        self.say([messages.SKIPPED, task[0]])
                    tasks = []
                since = here.monotonic()
        self.pool.end(self, describe_status(0))

    def run_task(self, task: list[Any]) -> None:
        seq, digest, args, dependencies, future_id, epoch, attempt, options = task[:8]
        _, options = split_soft_timeout(options)
        _, options = tracing.split_trace(show_logs(options))
        self.seq = seq
        if Site.chance.random() < Site.crashes and not Site.world.calm:
            machine().block(Site.chance.choice((0.0, 0.05)))
            self.pool.end(self, describe_status(-11))
            self.strand.gone = True
            machine().block(None)
        try:
            function, positional, keywords = self.load(digest, args, dependencies)
            value = function(*positional, **keywords)
        except Exception as error:
            kind = messages.FAIL_RAISED if may_retry(options, error) else messages.FAIL_PERMANENT
            self.say([messages.FAILED, seq, 1, kind, payload.dump_exception(error).to_bytes()])
            return
        finally:
            self.seq = -1
        data = payload.dump_result(value).to_bytes()
        if len(data) <= payload.INLINE_RESULT_BYTES:
            self.kept[seq] = data
            self.say([messages.RESULT, seq, 1, data])
        else:
            name = result_name(future_id, epoch, attempt)
            write_file(self.pool.store.directory.objects / name, [data])
            self.say([messages.STORED, seq, 1, len(data), name])

    def load(self, digest: bytes, args: Any, dependencies: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        folder = self.pool.store.directory.path
        try:
            code = read_own(Path(folder, "code", digest.hex()))
        except FileNotFoundError:
            code = kept(Path(folder, "spill", messages.code_on_disk(digest)))
        if isinstance(dependencies, str):
            dependencies = msgpack.unpackb(kept(Path(dependencies)))
        values = []
        for one in dependencies or ():
            data = self.kept[one] if isinstance(one, int) else kept(Path(one)) if isinstance(one, str) else one
            values.append(payload.load_own(data))
        data = kept(Path(args)) if isinstance(args, str) else args
        positional, keywords = payload.load_args(data, values, name="task") if data else ((), {})
        return payload.load_code(code), positional, keywords

    def say(self, message: list[Any]) -> None:
        self.pool.tell(ChildSaid(self.number, [message]))


class Children:
    """`ChildPool`, whose children are strands."""

    def __init__(self, epoll: Any, store: Any, *_: Any) -> None:
        process = current_process()
        assert process is not None
        self.process, self.store = process, store
        self.children: dict[int, Child] = {}
        self.bell = Counter()
        self.told: deque[Event] = deque()
        epoll.register(self.bell.number)

    def tell(self, event: Event) -> None:
        self.told.append(event)
        self.bell.add(1)

    def end(self, child: Child, why: str) -> None:
        """It is dead; the worker learns it later, and what it sends meanwhile is unread."""
        if child.number in self.children and not child.dead:
            child.dead = True
            self.tell(ChildEnded(child.number, why))

    def buried(self, event: ChildEnded) -> ChildEnded:
        child = self.children.pop(event.child)
        return replace(event, unread=tuple(task[0] for _, *tasks in child.packets for task in tasks))

    def carry_out(self, instruction: Any) -> list[Event]:
        number = instruction.child
        if isinstance(instruction, SpawnChild):
            self.children[number] = Child(self, number)
            return []
        child = self.children.get(number)
        if isinstance(instruction, SendTasks):
            return self.send(child, instruction)
        if child is None:
            return []
        if isinstance(instruction, KillChild):
            child.strand.gone = True
            self.end(child, describe_status(-9))
        elif isinstance(instruction, InterruptTask):
            child.interrupts[instruction.seq] = CancelledError()
            machine().wake(child.strand)
        elif isinstance(instruction, RetireChild):
            child.wanted = False
            machine().wake(child.strand)
        elif isinstance(instruction, TakeBack):
            seqs = tuple(task[0] for _, *tasks in child.packets for task in tasks)
            child.packets.clear()
            return [TasksReturned(number, seqs)] if seqs else []
        return []

    def send(self, child: Child | None, instruction: SendTasks) -> list[Event]:
        tasks = instruction.tasks
        if child is None:
            return [TasksReturned(instruction.child, tuple(task.seq for task in tasks))]
        for at in range(0, len(tasks), instruction.per_packet):
            packed = [msgpack.unpackb(child_pool._pack_task(task)) for task in tasks[at : at + instruction.per_packet]]
            child.packets.append([instruction.at, *packed])
        machine().wake(child.strand)
        return []

    def listen(self, descriptor: int, events: list[Event]) -> None:
        self.bell.take()
        while self.told:
            event = self.told.popleft()
            if isinstance(event, ChildSaid) and event.messages[0][0] == messages.STORED:
                try:
                    self.store.adopt(event.messages[0][4], event.messages[0][3])
                except (ObjectLostError, OSError):  # as the real one: nothing more is heard of that child
                    child = self.children.get(event.child)
                    if child is not None:
                        child.strand.gone = True
                        self.end(child, describe_status(-9))
                    continue
            events.append(self.buried(event) if isinstance(event, ChildEnded) else event)

    def look(self, events: list[Event]) -> None:
        pass

    def process_of(self, number: int) -> int | None:
        return self.process.pid if number in self.children else None

    def close(self) -> None:
        for child in self.children.values():
            child.strand.gone = True
        self.children.clear()


def rest(seconds: float) -> None:
    """What a task does for a while; it is interrupted where it was cancelled."""
    here, child = machine(), Site.children[getcurrent()]
    until = here.now + seconds
    while here.now < until:
        here.block(until - here.now)
        if child.seq in child.interrupts:
            raise child.interrupts.pop(child.seq)


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


class Sealing:
    """`Records`, without seals."""

    def pack(self, data: bytes) -> bytes:
        return data

    def feed(self, data: bytes) -> list[bytes]:
        return [data]


class LineConnection:
    """What `open_line` gives, and what a worker admits."""

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
        mine, theirs = connection(self.process, server.process, lambda: Site.chance.uniform(0.00005, 0.002))
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
    """Put the stand-ins of this module where the service and clients look for the real ones."""
    service.__dict__.update(
        open_database=lambda _url: Site.databases[_pid()],
        url_of=lambda _db: "memory:simulated",
        listen=lambda address, _port: Socket(address),
        ObjectFetcher=Fetcher,
        StoreServer=ObjectServer,
    )
    shell.__dict__["ChildPool"] = Children
    reading.__dict__["ObjectFetcher"] = Fetcher
    usage.Usage.read = lambda self: None  # type: ignore[method-assign]
    eager.__dict__["_PRESSURE"] = "/nowhere"


def _pid() -> int:
    process = current_process()
    assert process is not None
    return process.number


def worker_main(config: service.WorkerConfig) -> Callable[[Process, Any], None]:
    """The main strand of a worker process."""

    def main(process: Process, db: Any) -> None:
        Site.databases[process.number] = db
        made = service.WorkerService(config)
        made.run(ready=lambda _: None)

    return main
