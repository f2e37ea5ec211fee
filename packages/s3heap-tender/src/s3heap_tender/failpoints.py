"""Named places where a test can end the process: before and after every commit and every write to the object store.

`MAINSPRING_FAILPOINTS="heap.put.after=kill@3,sysdb.finish.before=kill"` kills this process with SIGKILL at the third
(first) arrival. In process, `arm` runs any function instead, usually one that raises `SimulatedCrash`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "MAINSPRING_FAILPOINTS"

_Action = Callable[[str], None]
_lock = threading.Lock()
_armed: dict[str, tuple[int, _Action]] = {}
_observer: _Action | None = None


def hit(name: str) -> None:
    """Arrive at the failpoint `name`."""
    if _observer is not None:
        _observer(name)
    if not _armed:
        return
    with _lock:
        found = _armed.get(name)
        if found is None:
            return
        remaining, action = found
        if remaining > 1:
            _armed[name] = (remaining - 1, action)
            return
        del _armed[name]
    action(name)


def arm(name: str, action: _Action, *, arrival: int = 1) -> None:
    """Run `action(name)` at the `arrival`-th arrival at `name`, once."""
    with _lock:
        _armed[name] = (arrival, action)


def observe(observer: _Action | None) -> None:
    """Call `observer(name)` at every arrival; None stops it."""
    global _observer
    _observer = observer


def disarm() -> None:
    """Forget every armed failpoint and the observer."""
    observe(None)
    with _lock:
        _armed.clear()


def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from_environment(text: str | None = None) -> None:
    """Arm what `MAINSPRING_FAILPOINTS` (or `text`) names. Raises `ValueError` for anything but `NAME=kill[@N]`."""
    for part in filter(None, (os.environ.get(VARIABLE, "") if text is None else text).split(",")):
        name, equals, action = part.partition("=")
        verb, _, arrival = action.partition("@")
        if not equals or verb != "kill" or (arrival and not arrival.isdigit()):
            raise ValueError(f"{VARIABLE}: {part!r} is not NAME=kill or NAME=kill@N")
        arm(name, _kill, arrival=int(arrival or 1))


arm_from_environment()
