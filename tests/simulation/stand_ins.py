"""What the interpreter and the system give a program, by the machine: threads, locks, clocks, chance, and a futex.

`install` is called once, before anything of the system is imported. The standard library's own `threading` is loaded again over
locks and threads of the machine, so events, conditions, queues and pools of threads are its own code.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib.util
import itertools
import os
import random
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent

from simulation.machine import Machine, Process, SimulationError, Strand, current_process

_AGAIN: Final = ("threading", "queue", "concurrent.futures.thread", "concurrent.futures._base", "concurrent.futures")
"""Modules of the standard library that hold locks, or start threads."""


class Stage:
    """The machine of the simulation that runs now."""

    machine: Machine


def machine() -> Machine:
    """The machine on which the caller runs."""
    return Stage.machine


class Lock:
    """A lock between strands. One that the engine made is taken without losing a turn."""

    def __init__(self) -> None:
        self._held = False
        self._waiters: list[Strand] = []
        self._of_engine = _called_by_engine()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._of_engine:
            Stage.machine.perhaps_lose_turn()
        if not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        me = getcurrent()
        until = None if timeout < 0 else time.monotonic() + timeout
        left = None if timeout < 0 else timeout
        while self._held:
            if left is not None and left <= 0:
                return False
            if not isinstance(me, Strand):
                raise SimulationError("the hub may not wait for a lock that a strand holds")
            self._waiters.append(me)
            try:
                Stage.machine.block(left)
            finally:
                self._waiters.remove(me)
            left = None if until is None else until - time.monotonic()
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        for waiter in self._waiters:
            Stage.machine.wake(waiter)

    def locked(self) -> bool:
        return self._held

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._held = False
        self._waiters.clear()


class Local:
    """`threading.local`, by strand."""

    def __new__(cls, *_: Any, **__: Any) -> Local:
        made = object.__new__(cls)
        object.__setattr__(made, "_by_strand", {})
        return made

    def __getattribute__(self, name: str) -> Any:
        own = _own(self)
        return own[name] if name in own else object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _own(self)[name] = value

    def __delattr__(self, name: str) -> None:
        if _own(self).pop(name, _MISSING) is _MISSING:
            raise AttributeError(name)


_MISSING: Final = object()


def _own(local: Local) -> dict[str, Any]:
    by_strand: dict[int, dict[str, Any]] = object.__getattribute__(local, "_by_strand")
    return by_strand.setdefault(get_ident(), {})


class Handle:
    """A thread's handle, of Python 3.13 and later."""

    def __init__(self, ident: int | None = None) -> None:
        self.ident = ident
        self._runs = Lock()
        self._runs.acquire()

    def is_done(self) -> bool:
        return not self._runs.locked()

    def _set_done(self) -> None:
        if self._runs.locked():
            self._runs.release()

    def join(self, timeout: float | None = None) -> None:
        if self._runs.acquire(timeout=-1 if timeout is None else timeout):
            self._runs.release()


def get_ident() -> int:
    """The number of the strand that runs; 1 is the hub's."""
    me = getcurrent()
    return me.number if isinstance(me, Strand) else 1


def start_new_thread(run: Callable[..., None], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> int:
    """A thread's strand."""
    return _start(run, lambda: run(*args, **(kwargs or {}))).number


def start_joinable_thread(run: Callable[[], None], handle: Handle | None = None, daemon: bool = True) -> Handle:
    """As `start_new_thread`, from Python 3.13 on; the handle tells of its end."""
    made = handle or Handle()
    strand = _start(run, run)
    made.ident = strand.number
    strand.at_end.append(made._set_done)
    return made


def _start(run: Callable[..., None], call: Callable[[], None]) -> Strand:
    """A strand of the process whose strand calls, or of nobody for a thread of the engine."""
    thread = getattr(run, "__self__", None)
    engine = str(getattr(thread, "name", "")).startswith("fdb-embedded")
    return Stage.machine.spawn(None if engine else current_process(), call)


def _set_sentinel() -> Lock:
    """A lock that is given up when the strand ends: by it `Thread.join` knows (until Python 3.12)."""
    lock = Lock()
    lock._of_engine = True
    me = getcurrent()
    if isinstance(me, Strand):
        me.at_end.append(lambda: lock.release() if lock.locked() else None)
    return lock


def _stand_in_for_thread() -> types.ModuleType:
    module = types.ModuleType("_thread")
    module.__dict__.update(
        {name: value for name, value in vars(_thread).items() if name not in ("RLock", "__name__", "_local")}
    )
    module.__dict__.update(
        allocate_lock=Lock,
        LockType=Lock,
        lock=Lock,
        get_ident=get_ident,
        get_native_id=get_ident,
        start_new_thread=start_new_thread,
        start_joinable_thread=start_joinable_thread,
        _ThreadHandle=Handle,
        _make_thread_handle=Handle,
        _get_main_thread_ident=lambda: 1,
        _set_sentinel=_set_sentinel,
        _local=Local,
    )
    return module


def _load_again(name: str) -> types.ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def install() -> None:
    """Put the machine's threads, clocks and chance in the place of the real ones. Nothing of the system may be imported yet."""
    imported = [
        name for name in sys.modules if name.split(".")[0] in ("fdb_schema", "fdb_embedded", "futures_worker", "fdb")
    ]
    assert not imported, f"{imported} were imported before the simulation's threads were in place"
    Stage.machine = Machine(0)
    time.__dict__.update(_clocks(lambda: Stage.machine.monotonic(), lambda: Stage.machine.wall()))
    for name in _AGAIN:
        sys.modules.pop(name, None)
    real = sys.modules["_thread"]
    sys.modules["_thread"] = _stand_in_for_thread()
    try:
        threading = _load_again("threading")
    finally:
        sys.modules["_thread"] = real
    threading.__dict__["local"] = Local
    threading.__dict__["excepthook"] = _tell
    queue = _load_again("queue")
    queue.__dict__["SimpleQueue"] = queue.__dict__["_PySimpleQueue"]
    _install_chance()
    pools = _load_again("concurrent.futures._base")
    number(threading.__dict__["Thread"])
    number(pools.__dict__["Future"])
    pools.__dict__["id"] = hash  # by which it sorts them


def number(kind: Any) -> None:
    """Objects that lie in sets come in the order of their making, and not in that of their addresses."""
    numbers = itertools.count()
    begin = kind.__init__

    def numbered(self: Any, *arguments: Any, **keywords: Any) -> None:
        self._number = next(numbers)
        begin(self, *arguments, **keywords)

    kind.__init__ = numbered
    kind._number = -1  # of what there is already: the main thread
    kind.__hash__ = lambda self: self._number


def _tell(arguments: Any) -> None:
    Stage.machine.failures.append(f"{arguments.thread.name} ended with {arguments.exc_value!r}")
    sys.__excepthook__(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


_gmtime: Final = time.gmtime


def _clocks(monotonic: Callable[[], float], wall: Callable[[], float]) -> dict[str, Any]:
    return {
        "monotonic": monotonic,
        "perf_counter": monotonic,
        "monotonic_ns": lambda: int(monotonic() * 1e9),
        "perf_counter_ns": lambda: int(monotonic() * 1e9),
        "time": wall,
        "time_ns": lambda: int(wall() * 1e9),
        "gmtime": lambda seconds=None: _gmtime(wall() if seconds is None else seconds),
        "clock_gettime": lambda which: Stage.machine.boottime() if which == _BOOTTIME else monotonic(),
        "sleep": lambda seconds: Stage.machine.block(seconds) and None,
    }


_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


class Seeded(random.Random):
    """`random.Random`, which asks the system for a seed where it is given none."""

    def __new__(cls, *seed: Any) -> Seeded:
        return super().__new__(cls, *(seed or (0,)))

    def __init__(self, seed: Any = None) -> None:
        super().__init__(Stage.machine.rng.getrandbits(64) if seed is None else seed)


def _install_chance() -> None:
    def urandom(size: int) -> bytes:
        return Stage.machine.rng.randbytes(size)

    os.__dict__["urandom"] = urandom
    random.__dict__["_urandom"] = urandom
    random.__dict__["Random"] = Seeded


class TrueTime(types.ModuleType):
    """`time` as the engine sees it, which serves all processes: none's clock, but true time."""

    def __init__(self) -> None:
        super().__init__("time")
        self.__dict__.update(vars(time))
        self.__dict__.update(_clocks(lambda: Stage.machine.now, lambda: Stage.machine.true_wall))


class Futex:
    """The engine's futex, between strands."""

    ALL: Final = 2**31 - 1

    def __init__(self) -> None:
        self._waiters: dict[int, list[Strand]] = {}

    def wait(self, address: int, word: int, seconds: float) -> None:
        if ctypes.c_uint32.from_address(address).value != word:
            return
        me = getcurrent()
        assert isinstance(me, Strand), "the hub may not sleep on a futex"
        self._waiters.setdefault(address, []).append(me)
        Stage.machine.block(seconds)
        self._waiters[address].remove(me)

    def wake(self, address: int, count: int = ALL) -> None:
        for strand in self._waiters.get(address, ())[:count]:
            Stage.machine.wake(strand)


def take_over(modules: dict[types.ModuleType, types.ModuleType], add_to_os: Callable[[types.ModuleType], None]) -> None:
    """After the system was imported: the engine gets true time and the machine's futex, everybody else the machine's processes.

    `modules`: by what else modules of the standard library are replaced; `add_to_os` adds to what stands in for `os`.
    """
    engine_time, futex, shim = TrueTime(), Futex(), _os_of_processes()
    add_to_os(shim)
    identity = sys.modules["fdb_schema.identity"]
    known = {getattr(identity, name): made for name, made in _IDENTITY.items()}
    for name, module in list(sys.modules.items()):
        package = name.split(".")[0]
        if package == "fdb_embedded":
            if not name.startswith(_CLIENTS_PART):
                _replace(
                    module, {time: engine_time} | {getattr(time, one): getattr(engine_time, one) for one in _CLOCKS}
                )
            if name.endswith(".sharing.futex"):
                module.__dict__.update(wait=futex.wait, wake=futex.wake)
        elif package in SYSTEM:
            _replace(module, {os: shim} | modules | known)


_CLIENTS_PART: Final = "fdb_embedded.transaction"
"""What of the engine is a client's library: it goes by the clock of its process."""
_CLOCKS: Final = ("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "sleep")


def _replace(module: types.ModuleType, by: dict[Any, Any]) -> None:
    for name, value in list(vars(module).items()):
        if isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType) and value in by:
            module.__dict__[name] = by[value]


SYSTEM: Final = ("fdb_schema", "idempotent_txn", "lease_locks", "fdb_datamodel", "futures_worker", "s3heap_tender")


def _process_start(pid: int) -> tuple[int, bool] | None:
    process = Stage.machine.process_of(pid)
    return None if process is None else (pid, False)


def _boot_id() -> str:
    process = current_process()
    return "" if process is None else f"boot of {process.host}"


_IDENTITY: Final[dict[str, Callable[..., Any]]] = {
    "boot_id": _boot_id,
    "pid_namespace": lambda: "pid:[1]",
    "process_start": _process_start,
}


def _os_of_processes() -> types.ModuleType:
    shim = types.ModuleType("os")
    shim.__dict__.update(vars(os))

    def getpid() -> int:
        process = current_process()
        return os.getpid() if process is None else process.pid

    def kill(pid: int, number: int) -> None:
        process = Stage.machine.process_of(pid)
        if process is None:
            raise ProcessLookupError(pid)
        if number in (signal.SIGTERM, signal.SIGKILL) and isinstance(process, Process):
            Stage.machine.kill(process)
            if process is current_process():
                Stage.machine.block(None)
        elif number:
            raise NotImplementedError(f"a signal {number} to {process.name}")

    # With one core nobody stays awake for what is about to come: here no time would pass meanwhile.
    shim.__dict__.update(getpid=getpid, kill=kill, sched_getaffinity=lambda _pid: {0})
    return shim


def _called_by_engine() -> bool:
    frame = sys._getframe(2)
    for _ in range(3):  # the standard library's own classes come between
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("fdb_embedded"):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
