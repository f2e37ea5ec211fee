"""Starting processes that don't outlive whoever started them."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable
from typing import Final

from fdb_schema.serving.private_files import others_may_write

_PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger("fdb_schema")


def dying_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """A `preexec_fn` for `subprocess.Popen`: the kernel sends `number` to the child when the thread that starts it ends.

    Call it, and start the child, in a thread that lives as long as the process. None where the platform has no such thing.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded before the fork: a child may not
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the request took effect
            os.kill(os.getpid(), number)

    return ask


def signal_name(number: int) -> str:
    """`SIGKILL` for 9, `SIGRTMIN+6` for 40: real-time signals but the first and the last have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", number + 1)
        return f"SIGRTMIN+{number - first}" if number > first else str(number)


def import_from_here() -> bool:
    """Let modules of the working directory be imported, after all others; whether that is done.

    A directory that others may write to is left out, and told of: what they put there would run as this user.
    """
    here = os.getcwd()
    if here in sys.path:
        return True
    found = os.stat(here)
    if others_may_write(found):
        log.warning(
            "modules of the working directory %s aren't imported: others may write to it (mode %04o); start in a directory "
            "of your own, or set PYTHONPATH",
            *(here, stat.S_IMODE(found.st_mode)),
        )
        return False
    sys.path.append(here)
    return True
