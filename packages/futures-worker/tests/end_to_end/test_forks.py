"""A copy of its process that a task forks has no say in the worker's work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

WAIT = 60.0
Cluster = Callable[..., Any]


def fork(how: str) -> str:
    copy = os.fork()
    if copy == 0:
        if how == "exit":
            sys.exit(3)
        if how == "raise":
            raise ValueError("of the copy")
        return "of the copy"
    os.waitpid(copy, 0)
    return "of the task"


@pytest.fixture(autouse=True)
def by_value() -> Any:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("how", ["exit", "raise", "return"])
def test_a_copy_that_a_task_forks_does_not_speak_for_it(shared_cluster: Cluster, how: str) -> None:
    with shared_cluster(workers=1).client() as client:
        assert client.submit(fork, how, max_retries=0).result(WAIT) == "of the task"


class Forker:
    """An actor whose method forks."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, how: str) -> str:
        self.calls += 1
        return f"{fork(how)}, call {self.calls}"


@pytest.mark.parametrize("how", ["exit", "raise", "return"])
def test_a_copy_that_an_actor_forks_does_not_speak_for_it(shared_cluster: Cluster, how: str) -> None:
    with shared_cluster(workers=1).client() as client:
        actor = client.actor(Forker)
        assert actor.call(how).result(WAIT) == "of the task, call 1"
        assert actor.call(how).result(WAIT) == "of the task, call 2"
