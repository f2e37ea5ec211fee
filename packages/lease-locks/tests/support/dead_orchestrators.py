"""What an orchestrator leaves behind that is killed while its remote is pending, without a process to kill."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from lease_locks import LeaseManager, MemoizingPicklingRunner
from lease_locks.memo.functions import bind
from lease_locks.memo.remote import IN_PROCESS, InProcess
from lease_locks.memo.stored.records import AttemptRecord

NO_PID = 2**22 + 1  # above the kernel's limit


def leave_pending(locks: LeaseManager, shell: Any, function: Any, *args: Any) -> None:
    """Start a call with `shell`, and end its orchestrator without a word once the remote's handle is stored."""
    other = LeaseManager(locks.db, cluster=locks.cluster)
    session = other.session
    session.record = replace(session.record, pid=NO_PID)
    runner = MemoizingPicklingRunner(other, shell=shell, pipeline_id="demo")
    threading.Thread(target=runner.call, args=(function, *args), daemon=True).start()
    call = bind("demo", function, args, {})
    keys = runner.rows.keys(call.memo)
    waited = threading.Event()
    for _ in range(6_000):
        info = locks.read(call.memo.lock_name)
        data = locks.db.get(keys.attempt(bytes(info.token))) if info else None
        if data is not None and AttemptRecord.decode(bytes(data)).handle:
            break
        waited.wait(0.01)
    else:
        raise AssertionError("no handle within 60 s")
    session.upkeep.stop()
    # The remote runs in this process: by a manager that lives, since a stopped one maintains nothing.
    runner._in_process = IN_PROCESS[runner._in_process_id] = InProcess(locks)
