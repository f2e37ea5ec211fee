"""A worker that belongs to the process that started it, and ends with it.

Started as `python -P -m futures_worker.local.worker_main SETTINGS`, a JSON object:

    parent   process id of whoever starts it: when that process is gone, whatever ended it, the worker ends at once
    ready    a file descriptor, to which one line of JSON with the worker's address is written once it is registered
    remove   a directory to be removed if the parent ended without a word, or null
    url, cluster, slots, cpus, ram, gpus, spill, grace    as of `futures-worker run`; cpus and ram may be null
    named    other resources, {"db": 1}
    ids      of the gpus
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from futures_worker.worker.registration import whole_machine
from futures_worker.worker.service import WorkerConfig, WorkerService, serve

OBJECT_STORE: Final = 512 << 20
"""Bytes of results kept in memory; more is spilled."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at the parent, where the kernel has no pidfd."""
END_SECONDS: Final = 10.0
"""Of an end that its parent's death asked for; then it is killed."""


def main() -> None:
    """Entry of the process."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    ready = int(settings["ready"])
    os.set_inheritable(ready, False)  # its end tells the parent that this process is gone, whatever tasks do
    threading.Thread(target=_end_with, args=(settings["parent"],), name="parent", daemon=True).start()

    def tell(service: WorkerService) -> None:
        ip, port = service.address
        os.write(ready, json.dumps({"address": f"{ip}:{port}"}).encode() + b"\n")
        os.close(ready)

    config = WorkerConfig(
        url=settings["url"],
        cluster=settings["cluster"],
        slots=settings["slots"],
        total=whole_machine(settings["cpus"], settings["ram"], settings["gpus"], settings["named"]),
        gpus=tuple(settings["ids"]),
        object_store=OBJECT_STORE,
        spill=Path(settings["spill"]),
        grace=settings["grace"],
    )
    try:
        serve(config, ready=tell)
    finally:
        if settings["remove"] is not None and os.getppid() != settings["parent"]:
            shutil.rmtree(settings["remove"], ignore_errors=True)


def _end_with(parent: int) -> None:
    """Waits for the end of the process that started this one: not of its thread, which the kernel would tell of."""
    try:
        watched = os.pidfd_open(parent)
    except (AttributeError, OSError):  # a kernel without them, or it is gone already
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
    else:
        if os.getppid() == parent:
            select.select([watched], [], [])
    for _ in range(2):  # the second ends the grace
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LOOK_SECONDS)
    time.sleep(END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
