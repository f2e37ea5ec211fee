"""What asyncio waits for in threads: each wait that may last has a thread of its own.

The loop's own threads are few and for everybody: as many streams as there are of them would hold up whatever else needs one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

A = TypeVar("A")


def in_thread(ask: Callable[[], A]) -> Future[A]:
    """Begin `ask`; what it answers. Who awaits it may be cancelled: `ask` goes on, and its answer stays to be had."""
    answer: Future[A] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found = ask()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(found)

    threading.Thread(target=run, name="mainspring-asyncio", daemon=True).start()
    return answer
