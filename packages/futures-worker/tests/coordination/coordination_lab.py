"""What tests of queues and their like share: processes to be killed, and looking at who waits."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from fdb_datamodel.coordination.lines import GETTERS
from fdb_datamodel.rows.space import layout_of
from fdb_schema import ClusterSpace, read_range
from idempotent_txn import run

WAIT = 60.0
SPACE = ClusterSpace("test")


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it didn't come true")


def waiting(db: Any, subspace: str, name: str, kind: str = GETTERS) -> int:
    """How many stand in a line."""
    prefix = layout_of(SPACE).shared(subspace, name, kind)
    return len(run(db, lambda tr: read_range(tr, prefix, prefix + b"\xff", snapshot=True), strategy="off"))


class Process:
    """A python that runs `code` with `client` at hand; killed at the end of the block."""

    def __init__(self, url: str, code: str) -> None:
        text = f"from futures_worker import Client\nclient = Client({url!r}, 'test')\n{code}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def rest(self) -> list[str]:
        """What it prints until its end, which is a good one."""
        out, _ = self._process.communicate(timeout=WAIT)
        assert self._process.returncode == 0
        return out.split()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
