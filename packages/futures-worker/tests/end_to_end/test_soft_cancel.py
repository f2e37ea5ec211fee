"""Cancelling with a grace, and soft limits of time: the task is told, may clean up, and is killed in the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from futures_worker import (
    FutureTimeoutError,
    SoftTimeLimitExceeded,
    TaskCancelled,
    cancel_requested,
    current_client,
)

WAIT = 60.0


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def says(path: Path, word: str) -> bool:
    return path.exists() and word in path.read_text().split()


def note(path: str, word: str) -> None:
    with open(path, "a") as file:
        file.write(f"{word}\n")


def tidy(path: str) -> str:
    note(path, "began")
    try:
        time.sleep(600)
    except Exception:
        note(path, "swallowed")
    except KeyboardInterrupt as error:
        note(path, type(error).__name__)
        note(path, str(cancel_requested()))
    finally:
        note(path, "cleaned")
    return "too late"


async def tidy_coroutine(path: str) -> str:
    note(path, "began")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(path, str(cancel_requested()))
        await asyncio.sleep(0)
    finally:
        note(path, "cleaned")
    return "too late"


def tidy_stream(path: str) -> Iterator[int]:
    try:
        yield from range(1000)
    except TaskCancelled:
        note(path, "cleaned")


async def tidy_async_stream(path: str) -> AsyncIterator[int]:
    try:
        yield 1
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(path, "cleaned")
        raise


def waits_for_another(path: str) -> Any:
    other = current_client().submit(time.sleep, 600)
    note(path, str(other.id))
    try:
        return other.result()
    finally:
        note(path, "cleaned")


def asks(path: str) -> None:
    note(path, "began")
    while not cancel_requested():
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            continue
    note(path, "cleaned")


def stubborn(path: str) -> None:
    note(path, "began")
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            note(path, "no")


@pytest.mark.parametrize("task", [tidy, tidy_coroutine, tidy_stream, tidy_async_stream, waits_for_another, asks])
def test_a_cancelled_task_may_clean_up(shared_cluster: Any, tmp_path: Path, task: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    path = tmp_path / "log"
    future = client.submit(task, str(path))
    until(future.running)
    if task in (tidy_stream, tidy_async_stream):
        assert next(iter(future.stream(timeout=WAIT))) in (0, 1)
    else:
        until(path.exists)
    assert future.cancel(grace=WAIT), "at once"
    with pytest.raises(CancelledError):
        future.result(timeout=WAIT)
    until(lambda: says(path, "cleaned"))
    assert future.cancelled(), "whatever it returned"
    assert not says(path, "swallowed") and not says(path, "False")
    assert client.submit(pow, 2, 3).result(timeout=WAIT) == 8, "the slot is free, and its process another one"
    if task is waits_for_another:
        assert client.get_future(path.read_text().split()[0]).cancelled(), "what it submitted, too"
    demo.check()


def test_one_that_does_not_end_is_killed_and_one_that_runs_again_ends_the_one_before(
    shared_cluster: Any, tmp_path: Path
) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    path = tmp_path / "log"
    future = client.submit(stubborn, str(path))
    until(lambda: says(path, "began"))
    assert client.cancel([future], grace=0.2) == 1
    until(lambda: says(path, "no"))
    assert client.submit(pow, 2, 3).result(timeout=WAIT) == 8, "which had to wait for the slot"
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    again = client.submit(stubborn, str(tmp_path / "again"))
    until(lambda: says(tmp_path / "again", "began"))
    assert again.cancel(grace=600)
    until(lambda: says(tmp_path / "again", "no"))
    assert client.retry(again)
    until(lambda: (tmp_path / "again").read_text().split().count("began") == 2)
    assert client.cancel([again]) == 1
    assert client.submit(pow, 2, 3).result(timeout=WAIT) == 8
    for wrong in (-1, True, float("nan"), "soon"):
        with pytest.raises(ValueError, match="grace is a number of seconds"):
            again.cancel(grace=wrong)  # type: ignore[arg-type]
    assert not cancel_requested()


def test_a_command_cancels_with_a_grace(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    path = tmp_path / "log"
    future = client.submit(tidy, str(path))
    until(lambda: says(path, "began"))
    command = [sys.executable, "-m", "futures_worker", "cancel", str(future.id), "--grace", "60"]
    subprocess.run([*command, "--db", demo.url, "--cluster", demo.name], check=True, timeout=WAIT)
    until(lambda: says(path, "cleaned"))
    assert future.cancelled()


def in_time(path: str) -> str:
    note(path, "began")
    try:
        time.sleep(600)
    except SoftTimeLimitExceeded as error:
        return f"as far as it came: {error}"
    return "never"


async def in_time_too(path: str) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(600))
    except SoftTimeLimitExceeded:
        await asyncio.sleep(0)
        return "as far as it came"
    return "never"


def goes_on(path: str) -> None:
    note(path, "began")
    try:
        time.sleep(600)
    except SoftTimeLimitExceeded:
        time.sleep(600)


def items_in_time(path: str) -> Iterator[int]:
    try:
        yield 1
        time.sleep(600)
    except SoftTimeLimitExceeded:
        yield 2


def test_a_soft_limit_is_raised_in_the_task(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    paths = [str(tmp_path / str(number)) for number in range(6)]
    kept = client.submit(in_time, paths[0], soft_timeout=0.1, timeout=WAIT)
    coroutine = client.submit(in_time_too, paths[1], soft_timeout=0.1)
    stream = client.submit(items_in_time, paths[2], soft_timeout=0.3)
    failed = client.options(soft_timeout=0.1, max_retries=1).submit(tidy, paths[3])
    refused = client.submit(tidy, paths[4], soft_timeout=0.1, retry_on=(OSError,))
    killed = client.submit(goes_on, paths[5], soft_timeout=0.1, timeout=0.3, max_retries=0)
    assert kept.result(timeout=WAIT) == "as far as it came: the task ran longer than its soft_timeout of 0.1 s"
    assert coroutine.result(timeout=WAIT) == "as far as it came"
    assert stream.result(timeout=WAIT) == [1, 2]
    assert failed.result(timeout=WAIT) == "too late", "an Exception: it went on, and returned in time"
    assert (tmp_path / "3").read_text().split() == ["began", "swallowed", "cleaned"]
    assert refused.result(timeout=WAIT) == "too late"
    with pytest.raises(FutureTimeoutError):
        killed.result(timeout=WAIT)
    twice = client.submit(begins, paths[0], soft_timeout=0.1, max_retries=1)
    once = client.submit(begins, paths[1], soft_timeout=0.1, retry_on=(OSError,))
    for future, path, runs in ((twice, paths[0], 2), (once, paths[1], 1)):
        with pytest.raises(SoftTimeLimitExceeded, match=r"soft_timeout of 0\.1 s"):
            future.result(timeout=WAIT)
        assert Path(path).read_text().split().count("begins") == runs, "retried as what the function raises is"
    assert client.submit(pow, 2, 3, soft_timeout=60).result(timeout=WAIT) == 8
    demo.check()


def submits_in_time(path: str) -> str:
    client = current_client()
    try:
        time.sleep(600)
    except SoftTimeLimitExceeded:
        for number in range(20):
            client.submit(note, path, str(number))
    return "in time"


def test_what_a_task_submits_last_is_stored_though_its_process_ends(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=2).client()
    path = tmp_path / "log"
    assert client.submit(submits_in_time, str(path), soft_timeout=0.1).result(timeout=WAIT) == "in time"
    until(lambda: path.exists() and len(path.read_text().split()) == 20)


def begins(path: str) -> None:
    note(path, "begins")
    time.sleep(600)


def test_what_is_no_soft_limit(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1).client()
    for wrong in (0, -1, "1", True, float("inf")):
        with pytest.raises(ValueError, match="soft_timeout is a number of seconds"):
            client.submit(pow, 2, 3, soft_timeout=wrong)
    for hard in (1, 0.5, {"run": 1}):
        with pytest.raises(ValueError, match="less than the timeout of an attempt"):
            client.submit(pow, 2, 3, soft_timeout=1, timeout=hard)
    with pytest.raises(ValueError, match="is of tasks"):
        client.submit(pow, 2, 3, soft_timeout=1, durable=True)
    schedule = client.every(3600, pow, 2, 3, soft_timeout=5, name="softly")
    assert schedule.name == "softly"
