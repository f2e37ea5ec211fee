"""A class by value is one object in a worker's process, and each function finds it as it was when it was submitted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

WAIT = 60.0
Cluster = Callable[..., Any]


class Config:
    rate = 0


def rate(_: Any = None) -> tuple[int, bool]:
    return Config.rate, hasattr(Config, "extra")


def instance() -> Config:
    return Config()


@pytest.fixture(autouse=True)
def by_value() -> Any:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_function_finds_the_class_as_it_was_when_it_was_submitted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = cluster(workers=0)
    demo.start("--slots", "1")
    with demo.client() as client:
        monkeypatch.setattr(Config, "rate", 7)
        older = client.submit(instance)
        older.exception(WAIT)
        found, expected = [], []
        for number in (1, 2, 1, 2, 1):
            monkeypatch.setattr(Config, "rate", number)
            if number == 2:
                monkeypatch.setattr(Config, "extra", True, raising=False)
            else:
                monkeypatch.delattr(Config, "extra", raising=False)
            for arguments in ((), (older,)):
                found.append(client.submit(rate, *arguments).result(WAIT))
                expected.append((number, number == 2))
        assert found == expected
