"""`Client.semaphore`: so many at once, of whatever processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fdb_datamodel import ClaimLostError, UnknownNameError
from fdb_datamodel.coordination import semaphores
from fdb_datamodel.coordination.semaphores import SemaphoreStatus, semaphore_line
from futures_worker.client.basis.options import check_name
from futures_worker.client.context import ClientContext, Home
from futures_worker.coordination.named import Named, deadline_after, off_loop
from futures_worker.coordination.waiting import Stopped, never, try_once, wait_in_line
from futures_worker.database import ask

MOST_PERMITS: Final = 1 << 31

_Permit = tuple[bytes, bytes]  # its id, and the session that has it


class Semaphore(Named):
    """A number of permits, each had by one at a time, in whatever process. Made by `Client.semaphore`.

    `with semaphore:` has one for the length of the block. Permits of a process that dies are free again; who waits for one is served
    in the order they came. What a handle acquired is given back by that handle; pickled ones begin with nothing.
    """

    kind = "semaphore"

    def __init__(self, home: Home, name: str) -> None:
        super().__init__(home, name)
        self._permits: list[_Permit] = []

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Have a permit, once one is free; False: none was, within `timeout` seconds, or now where `block` is False.

        Raises LookupError if the semaphore was deleted.
        """
        return self._acquire("acquire", 0 if not block else timeout) is not None

    def release(self) -> None:
        """Give back the permit that was acquired last.

        Where the database doesn't answer it is given back once it does. Raises ValueError where this handle has none; ClaimLostError where this process gave no sign of life for so long (30 s) that
        the permit was taken back before.
        """
        permit: _Permit | None = None
        try:
            permit = self._permits.pop()
            self._give("release", permit)
        except IndexError:
            raise ValueError(
                f"{self!r} is released more often than it was acquired: a permit is given back by the handle that acquired it"
            ) from None
        except (ClaimLostError, UnknownNameError):
            raise
        except BaseException:
            if permit is not None:
                self._owe(permit)
            raise

    async def aacquire(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the twin of the sync signature
        """`acquire` for asyncio. Where it is cancelled it has no permit."""
        return await self._aacquire(timeout) is not None

    async def arelease(self) -> None:
        """`release` for asyncio."""
        await off_loop(lambda _: self.release())

    def __enter__(self) -> Semaphore:
        self._acquire("acquire", None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        try:
            self.release()
        except ClaimLostError:
            if kind is None:
                raise

    async def __aenter__(self) -> Semaphore:
        await self._aacquire(None)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        await off_loop(lambda _: self.__exit__(kind, error, where))

    @property
    def value(self) -> int:
        """How many permits there are."""
        return self._status("value").value

    def available(self) -> int:
        """How many of them are free now."""
        return self._status("available").free

    def delete(self) -> bool:
        """Forget the semaphore; whether it was there. Who waits for it gets LookupError, who has a permit ClaimLostError at its release."""
        context = self.context_for("delete")
        return bool(ask(context.db, semaphores.delete_semaphore, context.space, self.name))

    # --- inside

    def _status(self, what: str) -> SemaphoreStatus:
        context = self.context_for(what)
        found: SemaphoreStatus = ask(context.db, semaphores.semaphore_status, context.space, self.name, strategy="off")
        return found

    def _acquire(self, what: str, timeout: float | None, stopped: Any = never) -> _Permit | None:
        context = self.context_for(what)
        deadline = deadline_after(timeout)
        permit = os.urandom(16), context().id

        def attempt(tr: Any, place: bytes | None = None, *, pass_by: bool = False) -> bool | None:
            return semaphores.take_permit(tr, context.space, self.name, *permit, place, pass_by=pass_by) or None

        line = semaphore_line(self.name)
        try:
            if timeout == 0:
                found = try_once(context, line, lambda tr: attempt(tr, pass_by=True))
            else:
                found = wait_in_line(context, line, attempt, deadline, stopped)
            if found is None:
                return None
            self._permits.append(permit)
            return permit
        except BaseException as error:
            with contextlib.suppress(ValueError):
                self._permits.remove(permit)
            if not isinstance(error, (Stopped, UnknownNameError)):
                self._owe(permit)  # an interrupt may come when it is had already
            raise

    async def _aacquire(self, timeout: float | None) -> _Permit | None:  # noqa: ASYNC109 - the twin of the sync signature
        return await off_loop(lambda stopped: self._acquire("aacquire", timeout, stopped), self._return)

    def _return(self, permit: _Permit | None) -> None:
        if permit is not None:
            self.release()  # whichever: another's release may have given this one back, whose own is left

    def _give(self, what: str, permit: _Permit) -> None:
        context = self.context_for(what)
        if permit[1] != context().id:
            raise ClaimLostError(
                f"the permit of {self.kind} {self.name!r} was acquired by the process that this one was forked from, and is its own"
            )
        ask(context.db, semaphores.give_permit, context.space, self.name, *permit)

    def _owe(self, permit: _Permit) -> None:
        """Give a permit back with a beat of this client, when the database answers again."""
        context = self._home.context()
        give = partial(ask, context.db, semaphores.give_permit, context.space, self.name, *permit)
        context().life.owe(partial(_unless_lost, give))


def _unless_lost(give: Callable[[], object]) -> None:
    with contextlib.suppress(ClaimLostError, UnknownNameError):
        give()


def make_semaphore(context: ClientContext, name: str, value: int | None) -> Semaphore:
    """See `Client.semaphore`."""
    check_name(name, "a semaphore")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PERMITS):
        raise ValueError(f"value is a whole number of permits, 1 or more, found {value!r}")
    semaphore = Semaphore(context, name)
    semaphore.context_for("making")
    found: int = ask(context.db, semaphores.make_semaphore, context.space, name, value or 1, strategy="off")
    if value is not None and value != found:
        raise ValueError(
            f"semaphore {name!r} has {found} permits, found value={value}: leave value out to use it as it is, or delete() it first"
        )
    return semaphore
