"""What a command shows on a terminal of a given width, the text that the tests of screens keep, and what it gives to a program."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import sys
import threading
import tty
from collections.abc import Callable
from typing import Any

import pytest


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


def piped(main: Callable[[], Any], capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The JSON document that the program `main` prints with `--json`; of one that fails, what it says. It must exit with `code`."""
    capfd.readouterr()
    argv, sys.argv = sys.argv, ["command", *arguments, "--json"]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = argv
    assert (end.value.code or 0) == code
    out = capfd.readouterr()
    return json.loads(out.out) if out.out else out.err
