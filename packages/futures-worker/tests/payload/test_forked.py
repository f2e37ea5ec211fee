"""A child that is forked while another thread pickles by value pickles by value, too."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import contextlib, os, signal, threading
import cloudpickle
from fdb_schema import whole_copies
from futures_worker import value_pickler
from futures_worker.client.submits import large_arguments
from futures_worker.payload import dump_code, load_code

signal.alarm(60)
held, forked = threading.Event(), threading.Event()

def pickles():  # as a thread that is stopped amid it
    with contextlib.ExitStack() as locks:
        locks.enter_context(value_pickler._lock)
        locks.enter_context(whole_copies._making)
        locks.enter_context(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK)
        locks.enter_context(large_arguments._lock)
        held.set()
        forked.wait()

threading.Thread(target=pickles, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(30)

    class Fresh:
        value = 3

    assert load_code(dump_code(lambda: Fresh.value).data)() == 3
    large_arguments.note_large((b"x" * large_arguments.LARGE,), {}, "f")
    os._exit(0)
status = os.waitpid(child, 0)[1]
forked.set()
assert status == 0
print("whole")
"""


def test_a_child_forked_amid_pickling_by_value_pickles_too() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "whole\n", done.stderr
