"""What a process has, or stands for, is given back wherever an interrupt comes, and where the database doesn't answer: with a later beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest
from coordination_lab import waiting

from fdb_datamodel import validate
from fdb_schema import DatabaseUnreachableError
from futures_worker import Client
from futures_worker.coordination import queue, semaphore
from futures_worker.coordination import waiting as lines

TROUBLES = [KeyboardInterrupt, DatabaseUnreachableError]


@pytest.fixture
def client(any_db: Any) -> Iterator[Client]:
    with Client(any_db, "test") as one:
        yield one
    assert validate(any_db, "test") == []


def beat(client: Client) -> None:
    client._context().life.do_what_is_owed()


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`spoil(module, name, trouble, committed)`: the next transaction of that name ends so, and has committed or not."""

    def make(module: Any, name: str, trouble: type[BaseException], committed: bool) -> None:
        real = module.ask

        def ask(db: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(fn, "__name__", "") != name:
                return real(db, fn, *args, **kwargs)
            monkeypatch.setattr(module, "ask", real)
            if committed:
                real(db, fn, *args, **kwargs)
            raise trouble

        monkeypatch.setattr(module, "ask", ask)

    return make


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_item_whose_end_is_spoilt_is_had_again_or_done_with(
    client: Client, spoil: Callable[..., None], trouble: type[BaseException], committed: bool
) -> None:
    jobs = client.queue("jobs")
    jobs.put(1)
    taking = jobs.take()
    assert taking.__enter__() == 1
    spoil(queue, "end_taken", trouble, committed)
    with pytest.raises(trouble):
        taking.__exit__(None, None, None)
    beat(client)
    assert jobs.qsize() == (not committed)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_permit_whose_release_is_spoilt_is_given_back_once(
    client: Client, spoil: Callable[..., None], trouble: type[BaseException], committed: bool
) -> None:
    two = client.semaphore("two", 2)
    two.acquire()
    two.acquire()
    spoil(semaphore, "give_permit", trouble, committed)
    with pytest.raises(trouble):
        two.release()
    beat(client)
    assert two.available() == 1
    two.release()
    assert two.available() == 2


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_who_is_kept_from_having_it_has_nothing(
    client: Client,
    spoil: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    trouble: type[BaseException],
    committed: bool,
) -> None:
    one, jobs = client.semaphore("one"), client.queue("jobs")
    jobs.put("x")
    real = lines.ask_stamped

    def ask_stamped(db: Any, fn: Any, *args: Any) -> Any:
        if committed:
            real(db, fn, *args)
        raise trouble

    monkeypatch.setattr(lines, "ask_stamped", ask_stamped)
    with pytest.raises(trouble):
        one.acquire()
    with pytest.raises(trouble):
        jobs.take().__enter__()
    monkeypatch.setattr(lines, "ask_stamped", real)
    beat(client)
    assert one.available() == 1
    assert jobs.get_nowait() == "x"


@pytest.mark.parametrize("trouble", TROUBLES)
def test_who_cannot_leave_a_line_leaves_it_later(
    client: Client, spoil: Callable[..., None], trouble: type[BaseException]
) -> None:
    jobs = client.queue("jobs")
    spoil(lines, "leave_line", trouble, False)
    with pytest.raises(KeyboardInterrupt if trouble is KeyboardInterrupt else Empty):
        jobs.get(timeout=0.001)
    beat(client)
    assert waiting(client._context.db, "queues", "jobs") == 0
