"""An interruption of the main thread at each place where one can come, in turn.

CPython runs signal handlers between instructions of the main thread, and only at some of them: at calls, at the start of
a function, at jumps back. `arrivals` has SIGINT arrive just before the n-th of those, for n = 0, 1, …, without any
clock: each place where Ctrl-C can raise `KeyboardInterrupt` is met once, in a run that can be repeated.

`raised` raises at the n-th line instead, in any thread: stricter than CPython, which has no interruption between two
lines that call nothing. Passed over are line events for leaving a `with`, since nothing can come between a body's last
instruction and the lock's release, and those of a `try:`, which is no instruction and belongs to no handler.
"""

from __future__ import annotations

import ctypes
import dis
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_PLACES = {
    "CALL",
    "CALL_KW",
    "CALL_FUNCTION_EX",
    "JUMP_BACKWARD",
    # Where these call a function in Python.
    "BEFORE_WITH",
    "BINARY_SUBSCR",
    "STORE_SUBSCR",
    "DELETE_SUBSCR",
}


class _Ignored:
    """How an argument is converted that nobody looks at: without running any code of the object's."""

    from_param = staticmethod(id)


# As a trace function: it is C, so that the handler runs after the next instruction, and not within the tracing.
_trip = ctypes.pythonapi["PyErr_SetInterrupt"]
_trip.argtypes, _trip.restype = [_Ignored] * 3, None

_after: dict[CodeType, dict[int, bool]] = {}


def _places_after(code: CodeType) -> dict[int, bool]:
    """For each instruction, by its offset: whether an interruption can come at the next one."""
    found = _after.get(code)
    if found is None:
        instructions = list(dis.get_instructions(code))
        found = _after[code] = {
            this.offset: following.opname in _PLACES for this, following in itertools.pairwise(instructions)
        }
    return found


class Interruption:
    """One interruption: where it is to come, and what became of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.passed = 0
        """Places that were passed; more than `number` where it came."""
        self.where = ""
        self.lost = False
        """It was raised where Python can't hand it on, in a destructor."""

    @property
    def came(self) -> bool:
        return bool(self.where)


@contextmanager
def arrivals(
    number: int, chosen: Callable[[CodeType], bool], raises: type[BaseException] = KeyboardInterrupt
) -> Iterator[Interruption]:
    """Within, SIGINT arrives at the `number`-th place of the code that is `chosen`, and its handler `raises`."""
    this = Interruption(number)

    def handler(_signal: int, frame: FrameType | None) -> None:
        stop()
        at = frame
        while at is not None:
            at.f_trace = None
            at = at.f_back
        if not this.where:
            this.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame else "?"
            raise raises

    def stop() -> None:
        sys.settrace(None)

    def start(frame: FrameType, event: str, arg: Any) -> Any:
        if not chosen(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return step

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and _places_after(frame.f_code).get(frame.f_lasti):
            this.passed += 1
            if this.passed == number + 1:
                return _trip
        return step

    before = signal.signal(signal.SIGINT, handler)
    # Python 3.12 tells of instructions only where a frame wanted that before `settrace`.
    sys._getframe().f_trace_opcodes = True
    try:
        with _lost_in_destructors(this, raises):
            sys.settrace(start)
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
                this.starts_line is not None
                and all(following.opname == "LOAD_CONST" and following.argval is None for following in arguments)
            ):
                found.add(this.offset)
    return frame.f_lasti in found
