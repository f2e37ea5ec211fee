"""Interruptions come where CPython has them: the same places on every Python that is supported, and in the thread that asked."""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import CodeType
from typing import Any

from support.interrupting import arrivals


def met(body: Any, chosen: Any) -> list[int]:
    """The lines of `body`, from its first, at which an interruption came, in turn."""
    lines = []
    for number in itertools.count():
        with arrivals(number, chosen) as here, contextlib.suppress(KeyboardInterrupt):
            body()
        if not here.came:
            assert here.passed == number
            return lines
        lines.append(int(here.where.rpartition(":")[2]) - body.__code__.co_firstlineno)


def calls_and_repeats() -> None:
    items: list[int] = []
    at = 0
    while True:
        items.append(at)
        at += 1
        if at == 2:
            break
    len(items)


def test_each_call_and_each_repetition_is_met_once() -> None:
    assert met(calls_and_repeats, lambda code: code is calls_and_repeats.__code__) == [4, 3, 4, 8]


def test_nothing_comes_between_a_lock_and_its_with() -> None:
    lock = threading.Lock()

    def held() -> None:
        with lock:
            len("")

    code: list[CodeType] = [held.__code__]
    for number in itertools.count():
        with arrivals(number, code.__contains__) as here, contextlib.suppress(KeyboardInterrupt):
            held()
        assert not lock.locked(), here.where
        if not here.came:
            break
    assert number >= 2


def test_other_threads_that_run_the_same_code_are_left_alone() -> None:
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            calls_and_repeats()

    expected = met(calls_and_repeats, lambda code: code is calls_and_repeats.__code__)
    others = [threading.Thread(target=busy) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for _ in range(20):
            assert met(calls_and_repeats, lambda code: code is calls_and_repeats.__code__) == expected
    finally:
        over.set()
        for other in others:
            other.join()


def test_a_jump_back_that_the_interpreter_leaves_out_of_its_with_is_passed_over() -> None:
    lock = threading.Lock()

    def repeats(items: list[int]) -> None:
        with lock:
            while items:
                items.pop()

    for number in itertools.count():
        with arrivals(number, lambda code: code is repeats.__code__) as here, contextlib.suppress(KeyboardInterrupt):
            repeats([1, 2, 3])
        assert not lock.locked(), here.where
        if not here.came:
            break
    assert number >= 4
