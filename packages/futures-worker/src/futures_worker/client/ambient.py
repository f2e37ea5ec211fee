"""The client of this process, for code that has none at hand, and where pickles of earlier releases find what they name."""

from __future__ import annotations

from futures_worker.client.client import Client, attach_client, client_over
from futures_worker.client.context import current_context, home_of
from futures_worker.client.future import attach_future

__all__ = ["attach_client", "attach_future", "current_client", "home_of"]


def current_client() -> Client:
    """The client that this code is meant to use, where none was passed to it.

    That of the innermost `with` block this thread (or asyncio task) is in; else, inside a task, one of the task's cluster;
    else that of the blocks of other threads; else a default one, made at the first call. The last two and the task's are
    shared by the process. Raises MainspringError where other threads are in blocks of different clusters.
    """
    return client_over(current_context())
