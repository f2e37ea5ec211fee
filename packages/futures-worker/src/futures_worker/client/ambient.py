"""The client of this process, for code that has none at hand, and where pickles of earlier releases find what they name."""

from __future__ import annotations

from uuid import UUID

from fdb_schema import MainspringError
from futures_worker.client.client import Client, attach_client, client_over
from futures_worker.client.context import current_context, home_of
from futures_worker.client.future import attach_future
from futures_worker.worker.child import interrupts
from futures_worker.worker.child.task_context import current_task

__all__ = ["attach_client", "attach_future", "cancel_requested", "current_client", "current_future_id", "home_of"]


def current_client() -> Client:
    """The client that this code is meant to use, where none was passed to it.

    That of the innermost `with` block this thread (or asyncio task) is in; else, inside a task, one of the task's cluster;
    else that of the blocks of other threads; else a default one, made at the first call. The last two and the task's are
    shared by the process. Raises MainspringError where other threads are in blocks of different clusters.
    """
    return client_over(current_context())


def current_future_id() -> UUID:
    """The id of the future that this process runs, the same in each of its attempts: a name for what it does elsewhere.

    Who has it can `get_future` it: a program's, to send it events. Raises MainspringError outside of tasks, and in actors.
    """
    task = current_task()
    if task is None or task.actor:
        raise MainspringError("current_future_id() is of a task: nothing that a worker runs as one runs here")
    return task.future_id


def cancel_requested() -> bool:
    """Whether the future of the task that runs here was cancelled with a grace: it is to end soon, or it is killed.

    For loops that want to stop where it suits them, in any thread of the task and in what it forks: reads a few bytes of memory.
    False where no task runs. A program is told by its requests instead.
    """
    return interrupts.cancel_requested()
