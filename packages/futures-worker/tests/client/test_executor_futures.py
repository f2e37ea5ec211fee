"""Futures of the executor end once, whichever thread learns of the end first."""

from __future__ import annotations

import concurrent.futures as cf
from typing import Any

import pytest

from futures_worker import Client
from futures_worker.client.executor import ExecutorFuture


class Durable:
    """A durable future that is cancelled: `early` tells of it before `cancel` returns, as the thread that reads mail may."""

    def __init__(self, *, early: bool) -> None:
        self.early = early
        self.future: Any = None

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        if self.early:
            self.future.ended(self)
        return True

    def _exception(self) -> BaseException:
        return cf.CancelledError()


def test_what_its_calls_raise_is_not_retried_and_the_loss_of_a_worker_is() -> None:
    with Client("memory:executor", "c", max_retries=5) as client:
        options = client.executor()._options
        assert (options.max_retries, options.max_worker_losses, options.max_oom) == (0, 3, 3)
        assert client.executor(max_worker_losses=0)._options.max_worker_losses == 0


@pytest.mark.parametrize("early", [False, True])
def test_those_who_wait_for_several_are_told_of_a_cancelled_one(early: bool) -> None:
    durable: Any = Durable(early=early)
    future = durable.future = ExecutorFuture[int](durable)
    calls: list[Any] = []
    future.add_done_callback(calls.append)
    assert future.cancel()
    for _ in range(2):
        assert cf.wait([future], timeout=0).done == {future}
        assert list(cf.as_completed([future], timeout=0)) == [future]
        future.ended(durable)
    assert future.cancel()
    assert calls == [future]
