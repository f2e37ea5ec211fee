"""The async twin: the same promises on an event loop, and waits that take no thread."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from lease_locks import AcquireTimeout, AsyncLeaseManager, Lease, LeaseLost, LeaseManager

DEADLINE = 60.0


async def _waiters(locks: AsyncLeaseManager, name: str, count: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while (info := await locks.read(name)) is None or len(info.waiters) != count:  # noqa: ASYNC110 - other sessions' rows
            await asyncio.sleep(0.005)


def test_alock_is_an_async_context_manager_of_the_sync_manager(any_db: Any) -> None:
    async def use() -> None:
        with LeaseManager(any_db) as locks:
            async with locks.alock("a", timeout=DEADLINE) as lease:
                lease.check()
                assert locks.try_acquire("a") is None
            assert locks.read("a") is None

    asyncio.run(use())


def test_each_task_that_shares_a_lock_object_gives_back_its_own_lease(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            lock = locks.lock("a", timeout=DEADLINE, slots=2)
            both, first_left = asyncio.Barrier(2), asyncio.Event()

            async def work(number: int) -> None:
                async with lock as lease:
                    await both.wait()
                    if number:
                        await first_left.wait()
                    lease.check()
                first_left.set()

            await asyncio.gather(work(0), work(1))
            assert await locks.read("a") is None
            await asyncio.create_task(lock.__aenter__())
            await asyncio.create_task(lock.__aexit__(None, None, None))
            assert await locks.read("a") is None

    asyncio.run(use())


def test_hundreds_wait_without_a_thread_each_and_are_served_in_order(any_db: Any) -> None:
    async def use() -> list[int]:
        order: list[int] = []

        async with AsyncLeaseManager(any_db) as locks:
            lease = await locks.acquire("a")

            async def wait(number: int) -> None:
                async with locks.lock("a", timeout=DEADLINE):
                    order.append(number)

            tasks = []
            for number in range(40):
                tasks.append(asyncio.create_task(wait(number)))
                await _waiters(locks, "a", number + 1)
            assert await locks.release(lease)
            await asyncio.gather(*tasks)
        return order

    assert asyncio.run(use()) == list(range(40))


def test_a_cancelled_wait_leaves_nothing_behind(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            lease = await locks.acquire("a")
            task = asyncio.create_task(locks.acquire("a"))
            await _waiters(locks, "a", 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await _waiters(locks, "a", 0)
            assert await locks.release(lease)
            again = await locks.try_acquire("a")
            assert again is not None

    asyncio.run(use())


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_at_any_moment_leaves_nothing_behind(any_db: Any, turns: int) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            task = asyncio.create_task(locks.acquire("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                lease: Lease | None = await task
            except asyncio.CancelledError:
                lease = None
            info = await locks.read("a")
            assert (info is None) == (lease is None)

    asyncio.run(use())


def test_timeout_loss_and_reading_are_those_of_the_sync_manager(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            lease = await locks.acquire("a", meta={"x": 1})
            with pytest.raises(AcquireTimeout, match="held by"):
                await locks.acquire("a", timeout=0.05)
            assert await locks.try_acquire("a") is None
            remote = await locks.join("a", lease.writer_id)
            assert [m.role for m in (await locks.list())[0].maintainers] == ["orchestrator", "remote"]
            assert await locks.force_release("a", reason="test") == [lease.token]
            with pytest.raises(LeaseLost):
                await locks.maintain(remote)
            assert [e.kind for e in await locks.history("a")] == ["acquired", "joined", "forced"]

    asyncio.run(use())


def test_a_cancelled_join_leaves_nothing_behind(any_db: Any) -> None:
    """The session lives on: what it had joined it would maintain for as long as its process runs."""

    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks, AsyncLeaseManager(any_db) as remotes:
            lease = await locks.acquire("a")
            await remotes.acquire("other")
            kept = await remotes.join("a", lease.writer_id)
            for _ in range(2):  # beside another part of the same session, which stays, and alone
                task = asyncio.create_task(remotes.join("a", lease.writer_id))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(DEADLINE):
                    while remotes.sync.session.ledger.owed:  # noqa: ASYNC110 - the renewal thread's
                        await asyncio.sleep(0.005)
                roles = [m.role for m in (await locks.list("a"))[0].maintainers]
                assert roles == ["orchestrator", "remote"][: 1 + kept.held]
                if kept.held:
                    kept.check()
                    remotes.sync.session.unjoin(kept.part.lock, kept.token, kept.part.key)
                    async with asyncio.timeout(DEADLINE):
                        while kept.held:  # noqa: ASYNC110 - the renewal thread's
                            await asyncio.sleep(0.005)
            assert [one.name for one in remotes.sync.session.ledger.parts] == ["other"]
            lease.check()

    asyncio.run(use())


def test_a_wait_on_a_loop_that_was_closed_keeps_nobody_waiting(any_db: Any) -> None:
    with LeaseManager(any_db) as locks, LeaseManager(any_db, ttl=0.5) as others:
        lease = locks.acquire("a")
        loop = asyncio.new_event_loop()
        waits = AsyncLeaseManager(others)

        async def begin() -> asyncio.Task[Lease]:
            task = asyncio.create_task(waits.acquire("a"))
            await _waiters(AsyncLeaseManager(locks), "a", 1)
            return task

        task = loop.run_until_complete(begin())
        loop.close()  # without a cancellation
        asyncio.run(_waiters(AsyncLeaseManager(locks), "a", 0))
        lease.release()
        locks.acquire("a", timeout=0).release()
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_lease_is_had_again_by_its_task_however_it_was_acquired(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            lease = await locks.acquire("a")
            assert await locks.acquire("a", reentrant=True, timeout=0) is lease

    asyncio.run(use())


def test_reentrance_is_by_task(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            lease = await locks.acquire("a", reentrant=True)
            assert await locks.acquire("a", reentrant=True, timeout=0) is lease
            other = await asyncio.create_task(locks.try_acquire("a", reentrant=True))
            assert other is None
            assert await locks.release(lease)
            lease.check()
            assert await locks.release(lease)
            assert await locks.read("a") is None

    asyncio.run(use())


# --- a block that ends with its lease


@pytest.mark.parametrize("twin", [True, False], ids=["AsyncLeaseManager", "alock"])
def test_a_block_is_cancelled_where_it_awaits_when_its_lease_is_lost(any_db: Any, twin: bool) -> None:
    async def use(locks: LeaseManager) -> None:
        lock = AsyncLeaseManager(locks).lock if twin else locks.alock
        cleaned: list[str] = []

        async def robbed() -> None:
            async with lock("a", cancel_on_loss=True):
                try:
                    await asyncio.to_thread(locks.force_release, "a", reason="test")
                    await asyncio.Event().wait()
                finally:
                    cleaned.append("up")

        with pytest.raises(LeaseLost, match=r"was lost \(forced\): its block was cancelled") as found:
            await robbed()
        assert (found.value.reason, cleaned) == ("forced", ["up"])
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "the task goes on"
        async with lock("a", cancel_on_loss=True) as lease:
            lease.check()
        await asyncio.sleep(0)

    with LeaseManager(any_db) as locks:
        asyncio.run(use(locks))


def test_a_cancellation_from_elsewhere_stays_one_though_the_lease_is_lost_too(any_db: Any) -> None:
    async def body(locks: LeaseManager, inside: asyncio.Event) -> None:
        async with locks.alock("a", cancel_on_loss=True) as lease:
            lease.on_lost(lambda _: None)
            try:
                inside.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.to_thread(locks.force_release, "a", reason="test")
                await asyncio.to_thread(lease.lost.wait, DEADLINE)
                raise

    async def use(locks: LeaseManager) -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(body(locks, inside))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    with LeaseManager(any_db) as locks:
        asyncio.run(use(locks))


def test_a_block_that_goes_on_after_its_loss_ends_as_without(any_db: Any) -> None:
    async def use(locks: LeaseManager) -> None:
        async def goes_on() -> None:
            async with locks.alock("a", cancel_on_loss=True):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.to_thread(locks.force_release, "a", reason="test")
                    await asyncio.Event().wait()

        async def not_asked_for() -> None:
            async with locks.alock("a") as lease:
                await asyncio.to_thread(locks.force_release, "a", reason="test")
                await asyncio.to_thread(lease.lost.wait, DEADLINE)

        for body in (goes_on, not_asked_for):
            with pytest.raises(LeaseLost, match="ended before its block did"):
                await body()

    with LeaseManager(any_db) as locks:
        asyncio.run(use(locks))
