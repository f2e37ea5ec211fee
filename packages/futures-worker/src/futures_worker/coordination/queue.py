"""`Client.queue`: a queue in the database, which any process puts into and gets from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, Full
from typing import Any, Final

from fdb_datamodel import ClaimLostError, UnknownNameError
from fdb_datamodel.coordination import queues
from fdb_datamodel.coordination.lines import PUTTERS
from fdb_datamodel.coordination.queues import Item, QueueStatus, queue_line
from futures_worker.client.basis import untouched
from futures_worker.client.basis.options import check_name
from futures_worker.client.context import ClientContext
from futures_worker.coordination.named import Named, deadline_after, off_loop
from futures_worker.coordination.waiting import Stopped, never, try_once, wait_in_line
from futures_worker.database import ask
from futures_worker.payload import dump_result, load_own

MOST_ITEMS: Final = 1 << 31
StopCheck = Callable[[], bool]


class Queue(Named):
    """A queue, first in, first out; the methods are those of `queue.Queue`. Made by `Client.queue`.

    An item is pickled, and has at most 60,000 bytes so; for more put a future into it. What is put is durable when `put` returns.
    `get` takes an item out by one transaction: nobody else gets it, and it is gone with a process that dies before it has used it.
    `take` gives it out until it is done with, and back to the queue if its taker dies. Futures in it live as long as it is there.
    """

    kind = "queue"

    # --- putting

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; where the queue is full, once there is room, as `queue.Queue.put` does.

        Raises queue.Full, OversizeError, ResultPickleError for what can't be pickled, LookupError if the queue was deleted.
        """
        self._put("put", [item], 0 if not block else timeout)

    def put_nowait(self, item: Any) -> None:
        """`put(item, block=False)`."""
        self._put("put_nowait", [item], 0)

    def put_many(self, items: Iterable[Any], block: bool = True, timeout: float | None = None) -> None:
        """Put several, in their order, by as few transactions as they fit into: of one transaction's all are there at once.

        `timeout`: of all of it. Raises as `put`; the message of queue.Full says how many were put before.
        """
        self._put("put_many", list(items), 0 if not block else timeout)

    async def aput(self, item: Any, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the twin of the sync signature
        """`put` for asyncio. Where it is cancelled the item may be there all the same."""
        await off_loop(lambda stopped: self._put("aput", [item], timeout, stopped))

    async def aput_many(self, items: Iterable[Any], timeout: float | None = None) -> None:  # noqa: ASYNC109 - the twin of the sync signature
        """`put_many` for asyncio."""
        given = list(items)
        await off_loop(lambda stopped: self._put("aput_many", given, timeout, stopped))

    # --- getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Get the first item, once there is one, as `queue.Queue.get` does. Who waits is served in the order they came.

        Raises queue.Empty; LookupError if the queue was deleted; ResultPickleError where this process can't load the item, which
        then stays the first: `discard` removes it.
        """
        return self._get("get", 1, 0 if not block else timeout)[1][0]

    def get_nowait(self) -> Any:
        """`get(block=False)`: what is there, whoever waits for it."""
        return self._get("get_nowait", 1, 0)[1][0]

    def get_many(self, count: int, block: bool = True, timeout: float | None = None) -> list[Any]:
        """Get the first items, `count` at most, by one transaction, once there is one at least. Raises as `get`."""
        return self._get("get_many", _counted(count), 0 if not block else timeout)[1]

    async def aget(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the twin of the sync signature
        """`get` for asyncio. Where it is cancelled it has taken nothing."""
        return (await self._aget("aget", 1, timeout))[0]

    async def aget_many(self, count: int, timeout: float | None = None) -> list[Any]:  # noqa: ASYNC109 - the twin of the sync signature
        """`get_many` for asyncio."""
        return await self._aget("aget_many", _counted(count), timeout)

    def take(self, timeout: float | None = None) -> Taking:
        """`with queue.take() as item:` gets the first item, and is done with it at the end of the block.

        It goes back to its place where the block raises, and where the process dies in it: another gets it, so what the block does
        may be done twice, but is done. `async with` too. Raises queue.Empty; at the end ClaimLostError where this process gave no
        sign of life for so long (30 s) that the item went back before.
        """
        return Taking(self, timeout)

    def discard(self) -> bool:
        """Remove the first item without loading it; whether there was one."""
        try:
            self.got("discard", 1, 0)
        except Empty:
            return False
        return True

    # --- looking

    def qsize(self) -> int:
        """How many items there are now, without those that are taken."""
        return self._status("qsize").size

    def empty(self) -> bool:
        """Whether there is none now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there is no room for another one now."""
        found = self._status("full")
        return found.maxsize is not None and found.size >= found.maxsize

    @property
    def maxsize(self) -> int:
        """How many items it takes; 0: any number."""
        return self._status("maxsize").maxsize or 0

    def delete(self) -> bool:
        """Forget the queue and what is in it; whether it was there. Who waits for it gets LookupError."""
        context = self.context_for("delete")
        return bool(ask(context.db, queues.delete_queue, context.space, self.name))

    # --- inside

    def _status(self, what: str) -> QueueStatus:
        context = self.context_for(what)
        found: QueueStatus = ask(context.db, queues.queue_status, context.space, self.name, strategy="off")
        return found

    def _put(self, what: str, values: Sequence[Any], timeout: float | None, stopped: StopCheck = never) -> None:
        context = self.context_for(what)
        deadline = deadline_after(timeout)
        left = [self._dumped(context, value) for value in values]
        line, total = queue_line(self.name, PUTTERS), len(left)
        while left:

            def attempt(tr: Any, place: bytes | None = None, *, pass_by: bool = False) -> int | None:
                return queues.put_items(tr, context.space, self.name, left, place, pass_by=pass_by) or None

            if timeout == 0:
                count = try_once(context, line, lambda tr: attempt(tr, pass_by=True))
            else:
                count = wait_in_line(context, line, attempt, deadline, stopped)
            if count is None:
                done = f", after {total - len(left)} of {total} items were put" if total > 1 else ""
                raise Full(
                    f"{self!r} has no room for another item" + (f" within {timeout} s" if timeout else "") + done
                )
            del left[:count]

    def _dumped(self, context: ClientContext, value: Any) -> Item:
        payload = dump_result(value)
        queues.check_item(self.name, payload.nbytes)
        return Item(payload.to_bytes(), payload.contained_in(context.origin.identity))

    def _get(
        self, what: str, count: int, timeout: float | None, stopped: StopCheck = never
    ) -> tuple[list[Item], list[Any]]:
        found = self.got(what, count, timeout, stopped)
        return found, self._loaded(found)

    async def _aget(self, what: str, count: int, timeout: float | None) -> list[Any]:  # noqa: ASYNC109 - the twin of the sync signature
        found = await off_loop(
            lambda stopped: self._get(what, count, timeout, stopped), lambda found: self._return(found[0])
        )
        return found[1]

    def got(
        self, what: str, count: int, timeout: float | None, stopped: StopCheck = never, grant: bytes | None = None
    ) -> list[Item]:
        """The first items as they are stored. Raises queue.Empty."""
        context = self.context_for(what)
        deadline, session = deadline_after(timeout), context().id

        def attempt(tr: Any, place: bytes | None = None, *, pass_by: bool = False) -> list[Item] | None:
            name, space = self.name, context.space
            return queues.get_items(tr, space, name, count, session, place, grant=grant, pass_by=pass_by) or None

        if timeout == 0:
            found = try_once(context, queue_line(self.name), lambda tr: attempt(tr, pass_by=True))
        else:
            found = wait_in_line(context, queue_line(self.name), attempt, deadline, stopped)
        if found is None:
            raise Empty(f"{self!r} has no item" + (f": none came within {timeout} s" if timeout else ""))
        return found

    def give_up(self, grant: bytes) -> None:
        """What was taken under a grant is back, now or when the database answers again."""
        context = self._home.context()
        session = context()
        owed = partial(ask, context.db, queues.give_up, context.space, self.name, session.id, grant, strategy="off")
        try:
            owed()
        except BaseException:
            session.life.owe(owed)

    def _loaded(self, items: Sequence[Item]) -> list[Any]:
        """The values. Where one can't be loaded all are in their places again."""
        with self.holding(items):
            try:
                return [load_own(item.data) for item in items]
            except BaseException:
                self._return(items)
                raise

    @contextlib.contextmanager
    def holding(self, items: Sequence[Item]) -> Any:
        """Inside, handles of the futures in items are made: from then on they hold them, as the transaction that got the items does."""
        ids = [one for item in items for one in item.ids]
        if not ids:
            yield
            return
        life = self._home().life
        for one in ids:
            life.hold_another(one)
        try:
            yield
            untouched.look()
        finally:
            for one in ids:
                life.drop(one)

    def _return(self, items: Sequence[Item]) -> None:
        context = self._home.context()
        ask(context.db, queues.put_back, context.space, self.name, items)


class Taking:
    """One item that is given out for the length of a block; see `Queue.take`."""

    def __init__(self, queue: Queue, timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout
        self._item: Item | None = None
        self._grant = b""

    def __enter__(self) -> Any:
        return self._take(never)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        try:
            self._end(kind is None)
        except KeyboardInterrupt:
            self._end(False)  # where that came before it began
            raise

    async def __aenter__(self) -> Any:
        return await off_loop(self._take, lambda _: self._end(False))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        await off_loop(lambda _: self._end(kind is None))

    def _take(self, stopped: StopCheck) -> Any:
        if self._item is not None:
            raise RuntimeError("this item is taken already: call take() again for another one")
        self._grant = os.urandom(16)
        try:
            (self._item,) = self._queue.got("take", 1, self._timeout, stopped, self._grant)
        except (Empty, Stopped):
            raise
        except BaseException:
            self._queue.give_up(self._grant)  # an interrupt may come when it is had already
            raise
        try:
            return load_own(self._item.data)
        except BaseException:
            self._end(False)
            raise

    def _end(self, done: bool) -> None:
        item = self._item
        if item is None:
            return
        queue, grant = self._queue, self._grant
        try:
            context = queue.context_for("take")
            session = context().id
            with queue.holding([item] if done else []):
                ask(context.db, queues.end_taken, context.space, queue.name, item, session, grant, done=done)
            self._item = None
        except (ClaimLostError, UnknownNameError):
            self._item = None
            if done:
                raise
        except BaseException:
            self._item = None
            queue.give_up(grant)  # it isn't known to be done with
            raise


def make_queue(context: ClientContext, name: str, maxsize: int | None) -> Queue:
    """See `Client.queue`."""
    check_name(name, "a queue")
    if maxsize is not None and (
        isinstance(maxsize, bool) or not isinstance(maxsize, int) or not 0 <= maxsize <= MOST_ITEMS
    ):
        raise ValueError(f"maxsize is a whole number, 0 for any number of items, found {maxsize!r}")
    queue = Queue(context, name)
    queue.context_for("making")
    found: int | None = ask(context.db, queues.make_queue, context.space, name, maxsize or None, strategy="off")
    if maxsize is not None and (maxsize or None) != found:
        takes = "any number of items" if found is None else f"{found} items"
        raise ValueError(
            f"queue {name!r} takes {takes}, found maxsize={maxsize}: leave maxsize out to use it as it is, or delete() it first"
        )
    return queue


def _counted(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is a whole number, 1 or more, found {count!r}")
    return count
