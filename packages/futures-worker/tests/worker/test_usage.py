"""What a worker really uses is that of all processes below it."""

from __future__ import annotations

import subprocess
import sys

from futures_worker.worker.running.usage import EVERY_SECONDS, Usage

BUSY = """
data = bytearray(64 << 20)
data[::4096] = b"x" * len(data[::4096])
while sum(__import__("os").times()[:2]) < 0.4: pass
print("ready", flush=True)
input()
"""


def test_processor_time_and_memory_of_a_grandchild_are_counted() -> None:
    now = [100.0]
    usage = Usage(lambda: now[0])
    usage.read()
    assert usage.cpu is None and usage.memory
    before = usage.memory
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", nested, BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        usage.read()
        assert usage.cpu is None, "it is read no more often than every two seconds"
        now[0] += EVERY_SECONDS
        usage.read()
        child.communicate("\n")
    assert usage.cpu is not None and usage.cpu >= 0.4 / EVERY_SECONDS - 0.02
    assert usage.memory - before >= 60 << 20
    now[0] += EVERY_SECONDS
    usage.read()
    assert usage.cpu < 0.4 / EVERY_SECONDS, "what has ended uses nothing"
