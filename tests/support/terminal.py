"""A terminal of a given width, and what a command shows in it: the text that the tests of screens keep."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys
import threading
import tty
from collections.abc import Callable
from typing import Any


def screen(main: Callable[[], Any], *arguments: str, columns: int = 80, code: int = 0) -> str:
    """What the program `main` shows on a terminal of its own, without colours; it must exit with `code`."""
    shown = re.sub(r"\x1b\[[0-9;]*m", "", coloured(main, *arguments, columns=columns, code=code))
    return "\n".join(line.rstrip() for line in shown.splitlines())


def coloured(main: Callable[[], Any], *arguments: str, columns: int = 80, code: int = 0) -> str:
    """The same with the terminal's commands."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    argv, sys.argv = sys.argv, ["command", *arguments]
    environment = dict(os.environ)
    os.environ |= {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    os.environ.pop("NO_COLOR", None)
    parts: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the end of the terminal
            while part := os.read(master, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    found: Any = 0
    try:
        with os.fdopen(slave, "w") as terminal, contextlib.redirect_stdout(terminal):
            try:
                main()
            except SystemExit as end:
                found = end.code or 0
    finally:
        reader.join()
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = argv
        os.close(master)
    shown = b"".join(parts).decode()
    assert found == code, shown
    return shown
