"""`Client.event`: something that has happened or not, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fdb_datamodel.coordination import events
from futures_worker.client.basis.options import check_name
from futures_worker.client.context import ClientContext
from futures_worker.coordination.named import Named, deadline_after, off_loop
from futures_worker.coordination.waiting import never, pausing, remaining
from futures_worker.database import ask


class Event(Named):
    """As `threading.Event`, of a whole cluster. Made by `Client.event`; one that nobody has set isn't set.

    `await event` waits for it in asyncio.
    """

    kind = "event"

    def set(self) -> None:
        """Set it: all who wait for it go on, and who comes doesn't wait."""
        self._write("set", True)

    def clear(self) -> None:
        """From now on it isn't set. Who waited when it was set goes on all the same."""
        self._write("clear", False)

    def is_set(self) -> bool:
        """Whether it is set now."""
        context = self.context_for("is_set")
        return bool(ask(context.db, events.read_event, context.space, self.name, strategy="off").is_set)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False: it wasn't within `timeout` seconds."""
        return self._wait("wait", timeout)

    def __await__(self) -> Generator[Any, None, bool]:
        return off_loop(lambda stopped: self._wait("await", None, stopped)).__await__()

    async def aset(self) -> None:
        """`set` for asyncio."""
        await off_loop(lambda _: self._write("aset", True))

    async def aclear(self) -> None:
        """`clear` for asyncio."""
        await off_loop(lambda _: self._write("aclear", False))

    def delete(self) -> bool:
        """Forget it, so that it is as never set; whether there was anything to forget."""
        context = self.context_for("delete")
        return bool(ask(context.db, events.delete_event, context.space, self.name))

    def _write(self, what: str, is_set: bool) -> None:
        context = self.context_for(what)
        ask(context.db, events.write_event, context.space, self.name, is_set)

    def _wait(self, what: str, timeout: float | None, stopped: Callable[[], bool] = never) -> bool:
        context = self.context_for(what)
        deadline = deadline_after(timeout)
        before: int | None = None
        with pausing(context, deadline, stopped) as pauses:
            while True:
                state, watch = ask(context.db, events.watch_event, context.space, self.name, strategy="off")
                before = state.times if before is None else before
                if state.is_set or state.times > before or remaining(deadline) <= 0:
                    watch.cancel()
                    return bool(state.is_set or state.times > before)
                pauses.wait(watch)


def make_event(context: ClientContext, name: str) -> Event:
    """See `Client.event`."""
    return Event(context, check_name(name, "an event"))
