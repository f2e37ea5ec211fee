"""An interruption of the main thread at each place where one can come, in turn.

CPython runs signal handlers between instructions of the main thread, and only at some of them: at calls, at the start of
a function, at jumps back. `arrivals` has SIGINT arrive just before the n-th of those, for n = 0, 1, …, without any
clock: each place where Ctrl-C can raise `KeyboardInterrupt` is met once, in a run that can be repeated, on every Python alike.

`raised` raises at the n-th line instead, in any thread: stricter than CPython, which has no interruption between two
lines that call nothing. Passed over are line events for leaving a `with`, since nothing can come between a body's last
instruction and the lock's release, and those of a `try:`, which is no instruction and belongs to no handler.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

_PLACES = {
    "CALL",
    "CALL_KW",
    "CALL_FUNCTION_EX",
    "JUMP_BACKWARD",
    "POP_JUMP_BACKWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_NONE",
    "POP_JUMP_BACKWARD_IF_NOT_NONE",
    # Where these call a function in Python.
    "BEFORE_WITH",
    "BINARY_SUBSCR",
    "STORE_SUBSCR",
    "DELETE_SUBSCR",
}


_trip = ctypes.pythonapi["PyErr_SetInterrupt"]
_trip.argtypes, _trip.restype = [], None


class _Interrupt:
    """`-_interrupt` has SIGINT arrive. It is C, and no call, so that the handler doesn't run there: where nothing but a `return`
    follows, it runs in what is interrupted."""

    __neg__ = _trip


_interrupt = _Interrupt()
_places: dict[CodeType, set[int]] = {}


def _places_of(code: CodeType) -> set[int]:
    """Where an interruption can come: the offsets of those instructions.

    Not one at a jump back for which CPython finds no handler, though its loop is within a `try` or a `with`: no handler runs
    and no lock is given back there, whatever a program does (`with lock: while x: …`). Up to 3.12 CPython looks for one as if
    the instruction before the jump's target had been interrupted; from 3.13 on the jump itself, which the compiler left out.

    Nor the call by which CPython 3.14 enters a `with`: its handlers run after that call, before anything gives back what was
    entered, whatever a program does. (Up to 3.13 it was no call, and none ran there. In a loop of nothing but `with lock: pass`
    every second interruption leaves the lock held on 3.14, and none on 3.11 to 3.13.)
    """
    found = _places.get(code)
    if found is None:
        covered = [range(entry.start, entry.end) for entry in getattr(dis.Bytecode(code), "exception_entries", ())]

        def is_covered(offset: int) -> bool:
            return any(offset in one for one in covered)

        def is_lost(at: dis.Instruction) -> bool:
            if "JUMP_BACKWARD" not in at.opname:
                return False
            looked_for = at.argval - 2 if sys.version_info < (3, 13) else at.offset
            return is_covered(at.argval) and not is_covered(looked_for)

        def is_place(at: dis.Instruction) -> bool:
            return at.opname in _PLACES or (at.opname == "BINARY_OP" and "[" in at.argrepr)

        instructions = list(dis.get_instructions(code))
        entering = {
            call.offset
            for before, call in pairwise(instructions)
            if before.opname == "LOAD_SPECIAL" and before.argrepr == "__enter__"
        }
        found = _places[code] = {
            at.offset for at in instructions if is_place(at) and not is_lost(at) and at.offset not in entering
        }
    return found


def _interrupted(chosen: Callable[[CodeType], bool], here: Callable[[CodeType, int], bool]) -> Callable[[], None]:
    """From now on `here(code, offset)` is asked before each instruction of this thread that is of `chosen` code, until it is
    true: then SIGINT arrives, and its handler runs after that instruction. Gives what ends it, which may be called twice."""
    return (_traced if sys.version_info < (3, 12) else _monitored)(chosen, here)


def _traced(chosen: Callable[[CodeType], bool], here: Callable[[CodeType, int], bool]) -> Callable[[], None]:
    frames: list[FrameType] = []

    def start(frame: FrameType, event: str, arg: Any) -> Any:
        if not chosen(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        frames.append(frame)
        return step

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and here(frame.f_code, frame.f_lasti):
            sys.settrace(None)
            return -_interrupt
        return step

    def stop(
        _kept: Any = start,
    ) -> None:  # by us: CPython 3.11 uses it after a `settrace` that came from within a trace
        sys.settrace(None)
        while frames:
            frames.pop().f_trace = None

    sys.settrace(start)
    return stop


def _monitored(chosen: Callable[[CodeType], bool], here: Callable[[CodeType, int], bool]) -> Callable[[], None]:
    """Tracing is of no use from 3.12 on: what one thread asks of a code object, another one that runs it takes back."""
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - mypy checks for 3.11
    events, tool, thread = monitoring.events, 3, threading.get_ident()
    known: dict[CodeType, bool] = {}

    def start(code: CodeType, offset: int) -> None:
        if code not in known:
            known[code] = chosen(code)
            if known[code]:
                monitoring.set_local_events(tool, code, events.INSTRUCTION)

    def step(code: CodeType, offset: int) -> None:
        if threading.get_ident() == thread and here(code, offset):
            call({})  # the handler would run at the start of any of them
            return -_interrupt

    def call(functions: dict[int, Callable[[CodeType, int], None]]) -> None:
        for event in (events.INSTRUCTION, events.PY_START, events.PY_RESUME):
            monitoring.register_callback(tool, event, functions.get(event))

    def stop() -> None:
        if monitoring.get_tool(tool) is None:
            return
        monitoring.set_events(tool, events.NO_EVENTS)
        for code, was_chosen in known.items():
            if was_chosen:
                monitoring.set_local_events(tool, code, events.NO_EVENTS)
        call({})
        monitoring.free_tool_id(tool)

    monitoring.use_tool_id(tool, "arrivals")
    call({events.INSTRUCTION: step, events.PY_START: start, events.PY_RESUME: start})
    monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
    return stop


class Interruption:
    """One interruption: where it is to come, and what became of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.passed = 0
        """Places that were passed; more than `number` where it came."""
        self.where = ""
        self.lost = False
        """It reached nobody: it was raised where Python can't hand it on, in a destructor, or came after all that was chosen."""

    @property
    def came(self) -> bool:
        return bool(self.where)


@contextmanager
def arrivals(
    number: int,
    chosen: Callable[[CodeType], bool],
    raises: type[BaseException] = KeyboardInterrupt,
    handle: Callable[[FrameType], None] | None = None,
) -> Iterator[Interruption]:
    """Within, SIGINT arrives at the `number`-th place of the code that is `chosen`, and its handler `raises`, or calls `handle`."""
    this = Interruption(number)

    def handler(_signal: int, frame: FrameType | None) -> None:
        stop()
        if not this.where:
            this.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame else "?"
            at = frame
            while frame is not None and not chosen(frame.f_code):
                frame = frame.f_back
            this.lost = frame is None  # the instruction called no Python, and nothing did after it
            if at is not None and handle is not None:
                handle(at)
            elif not this.lost:
                raise raises

    def reached(code: CodeType, offset: int) -> bool:
        if offset in _places_of(code):
            this.passed += 1
        return this.passed > number

    before = signal.signal(signal.SIGINT, handler)
    try:
        with _lost_in_destructors(this, raises):
            stop = _interrupted(chosen, reached)
            try:
                yield this
            finally:
                stop()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _lost_in_destructors(this: Interruption, raises: type[BaseException]) -> Iterator[None]:
    """Note whether the interruption came where Python can only report it."""
    hook = sys.unraisablehook

    def unraisable(args: Any) -> None:
        if isinstance(args.exc_value, raises):
            this.lost = True
        else:
            hook(args)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def raised(number: int, chosen: Callable[[CodeType], bool]) -> Iterator[Interruption]:
    """Within, `KeyboardInterrupt` is raised at the `number`-th line of the code that is `chosen`, in this thread."""
    this = Interruption(number)

    def start(frame: FrameType, event: str, arg: Any) -> Any:
        return step if chosen(frame.f_code) else None

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not _is_no_place(frame):
            this.passed += 1
            if this.passed == number + 1:
                sys.settrace(None)
                this.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return step

    with _lost_in_destructors(this, KeyboardInterrupt):
        sys.settrace(start)
        try:
            yield this
        finally:
            sys.settrace(None)


_no_places: dict[CodeType, set[int]] = {}


def _is_no_place(frame: FrameType) -> bool:
    """Whether a line event is for the end of a `with` (the same line again, but not from its beginning), or a `try:`."""
    code = frame.f_code
    found = _no_places.get(code)
    if found is None:
        found = _no_places[code] = set()
        instructions = list(dis.get_instructions(code))
        for at, this in enumerate(instructions):
            # `exit(None, None, None)`, below what a `return` leaves with
            begins = at + (this.opname == "SWAP")
            arguments = instructions[begins : begins + 3]
            if this.opname == "NOP" or (
                this.starts_line not in (None, False)  # a number, from Python 3.13 on whether it does
                and all(following.opname == "LOAD_CONST" and following.argval is None for following in arguments)
            ):
                found.add(this.offset)
    return frame.f_lasti in found
