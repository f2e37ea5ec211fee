"""Semaphores and events: never too many at once, permits of the dead come back, and who waits is woken in turn, or all at once."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import seed_params
from coordination_lab import SPACE, WAIT, Process, until, waiting
from support.counting import Counted

from fdb_datamodel import close_session, validate
from fdb_schema import open_database
from futures_worker import ClaimLostError, Client, UnknownNameError
from futures_worker.client.basis.off_loop import in_thread
from futures_worker.coordination import named, semaphore
from futures_worker.coordination.waiting import wait_in_line
from idempotent_txn import run


@pytest.fixture
def client(any_db: Any) -> Iterator[Client]:
    with Client(any_db, "test") as one:
        yield one
    assert validate(any_db, "test") == []


def test_it_is_a_semaphore(client: Client) -> None:
    two = client.semaphore("api", 2)
    assert (two.value, two.available()) == (2, 2)
    assert two.acquire() and two.acquire(timeout=WAIT)
    assert two.available() == 0
    assert not two.acquire(block=False) and not two.acquire(timeout=0.01)
    two.release()
    with two:
        assert not two.acquire(timeout=0)
    two.release()
    with pytest.raises(ValueError, match="released more often"):
        two.release()
    with pytest.raises(KeyError), two:
        raise KeyError
    assert two.available() == 2
    assert client.semaphore("api") == two and client.semaphore("api").value == 2
    assert client.semaphore("one").value == 1
    with pytest.raises(ValueError, match=r"has 2 permits, found value=3.*delete\(\)"):
        client.semaphore("api", 3)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="value is a whole number of permits"):
            client.semaphore("x", wrong)  # type: ignore[arg-type]


def test_it_is_deleted_with_those_who_wait_told(client: Client) -> None:
    one = client.semaphore("one")
    one.acquire()
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(client.semaphore("one").acquire)
        until(lambda: waiting(client._context.db, "semaphores", "one"))
        assert one.delete()
        with pytest.raises(UnknownNameError, match="has no semaphore 'one'"):
            wait.result(WAIT)
    with pytest.raises(ClaimLostError, match="deleted"):
        one.release()


def test_what_each_costs_in_transactions(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotent_txn.ids.floor.FLOOR_SECONDS", math.inf)  # now and then a version is asked for, too
    db = Counted(any_db, but_by="mainspring-session")
    with Client(db, "test") as client:
        two, event = client.semaphore("two", 2), client.event("e")
        two.acquire()

        def cost(what: Any) -> int:
            before = db.count
            what()
            return db.count - before

        assert [cost(two.acquire), cost(lambda: two.acquire(block=False))] == [1, 1]
        assert cost(two.release) == 1
        assert [cost(event.set), cost(event.wait), cost(event.is_set), cost(event.clear)] == [1, 1, 1, 1]


@pytest.mark.parametrize("seed", seed_params(4))
def test_never_more_than_so_many_have_it_at_once(any_db: Any, seed: int) -> None:
    rng = random.Random(seed)
    value, threads = rng.randint(1, 2), rng.randint(2, 5)
    within, most = 0, 0
    lock = threading.Lock()
    with Client(any_db, "test") as client, Client(any_db, "test") as other:

        def work(number: int) -> None:
            nonlocal within, most
            mine = (client, other)[number % 2].semaphore("s", value)
            for _ in range(8):
                with mine:
                    with lock:
                        within += 1
                        most = max(most, within)
                    with lock:
                        within -= 1

        with ThreadPoolExecutor(threads) as pool:
            for one in [pool.submit(work, number) for number in range(threads)]:
                one.result(WAIT)
        assert 1 <= most <= value
        assert client.semaphore("s").available() == value
    assert validate(any_db, "test") == []


def test_permits_come_back_when_their_process_is_killed(shared_url: str) -> None:
    db = open_database(shared_url)
    with Client(shared_url, "test") as client:
        one = client.semaphore("one", 1)
        code = "client.semaphore('one').acquire()\nprint('had', flush=True)\ninput()"
        with Process(shared_url, code) as other, ThreadPoolExecutor(1) as pool:
            assert other.line() == "had"
            assert not one.acquire(block=False)
            wait = pool.submit(one.acquire)
            until(lambda: waiting(db, "semaphores", "one"))
            other.kill()
            assert wait.result(WAIT)
        one.release()
    assert validate(db, "test") == []


def test_permits_come_back_when_their_client_is_closed_and_one_that_was_declared_dead_is_told(any_db: Any) -> None:
    with Client(any_db, "test") as client:
        one = client.semaphore("one")
        with Client(any_db, "test") as other:
            other.semaphore("one").acquire()
        assert one.acquire(block=False)
        run(any_db, close_session, SPACE, client._context().id)
        with Client(any_db, "test") as other:
            assert other.semaphore("one").acquire(block=False)
        with pytest.raises(ClaimLostError, match="no sign of life"):
            one.release()


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_fork_has_none_of_its_parents_permits(shared_url: str) -> None:
    with Client(shared_url, "test") as client:
        one = client.semaphore("one")
        one.acquire()
        pid = os.fork()
        if pid == 0:
            try:
                one.release()
            except ClaimLostError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert one.available() == 0
        one.release()
        assert pickle.loads(pickle.dumps(one)) == one


def test_asyncio_has_it_or_not(client: Client) -> None:
    one, event = client.semaphore("one"), client.event("e")

    async def main() -> None:
        async with one:
            assert not await one.aacquire(timeout=0)
            wait = asyncio.create_task(one.aacquire())
            while not await asyncio.to_thread(waiting, client._context.db, "semaphores", "one"):
                pass
            wait.cancel()
            assert isinstance((await asyncio.gather(wait, return_exceptions=True))[0], asyncio.CancelledError)
        assert await one.aacquire()
        await one.arelease()
        told = asyncio.create_task(asyncio.wait_for(event, WAIT))
        await event.aset()
        assert await told is True
        await event.aclear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(event, 0.01)

    asyncio.run(main())
    until(lambda: one.available() == 1)


def test_a_permit_of_a_wait_that_was_cancelled_comes_back_though_another_release_has_taken_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, calls = client.semaphore("two", 2), []

    def later(call: Any) -> Any:  # what a cancelled wait had is given back in a thread of its own, some time later
        if not calls:
            calls.append(call)
            return None
        return in_thread(call)

    async def main() -> None:
        await two.aacquire()
        wait = asyncio.create_task(two.aacquire())
        await asyncio.sleep(0)
        until(lambda: two.available() == 0)  # it has it, and wasn't told: the loop stands still
        monkeypatch.setattr(named, "in_thread", later)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        monkeypatch.undo()
        await two.arelease()
        await asyncio.to_thread(until, lambda: calls)
        calls[0]()

    asyncio.run(main())
    assert two.available() == 2
    with pytest.raises(ValueError, match="more often"):
        two.release()


def test_a_permit_that_an_interrupt_leaves_is_given_back_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client.semaphore("one")
    monkeypatch.setattr(client._context().life, "_seconds", 600.0)
    for where in ("append", "ask"):
        with monkeypatch.context() as patched:
            if where == "append":
                patched.setattr(one, "_permits", Interrupted())
            else:
                patched.setattr(semaphore, "wait_in_line", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.acquire()
            held = list(one._permits)
        assert not held
        assert one.acquire(timeout=WAIT)
        one.release()


class Interrupted(list[Any]):
    """An interrupt comes as a permit was noted."""

    def append(self, permit: Any) -> None:
        super().append(permit)
        raise KeyboardInterrupt


def interrupted(*arguments: Any) -> None:
    """An interrupt comes as a permit was had."""
    assert wait_in_line(*arguments) is True
    raise KeyboardInterrupt


def test_an_event_is_set_for_all_who_wait(client: Client, any_db: Any) -> None:
    event = client.event("go")
    assert not event.is_set() and not event.wait(timeout=0.01) and not event.wait(timeout=0)
    with Client(any_db, "test") as other, ThreadPoolExecutor(4) as pool:
        waits = [pool.submit((client, other)[n % 2].event("go").wait, timeout=WAIT) for n in range(4)]
        event.set()
        assert all(wait.result(WAIT) for wait in waits)
    assert event.is_set() and event.wait()
    event.clear()
    assert not client.event("go").is_set()
    assert event == client.event("go") == pickle.loads(pickle.dumps(event)) != client.semaphore("go")
    assert event.delete() and not event.delete()
    with pytest.raises(ValueError, match="an event has a name"):
        client.event("")


def test_who_waits_goes_on_also_where_the_event_is_cleared_at_once(client: Client) -> None:
    event, looked = client.event("pulse"), threading.Event()
    context = client._context
    db = context.db

    class Looking:
        """Tells of the first look, once that is over."""

        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

        def create_transaction(self) -> Any:
            found = db.create_transaction()
            if threading.current_thread() is not threading.main_thread():
                looks.append(1)
                if len(looks) > 1:
                    looked.set()
            return found

    looks: list[int] = []
    other = Client(Looking(), "test")
    with other, ThreadPoolExecutor(1) as pool:
        wait = pool.submit(other.event("pulse").wait, timeout=WAIT)
        assert looked.wait(WAIT), "it looks again by itself: so it has looked before"
        event.set()
        event.clear()
        assert wait.result(WAIT)
