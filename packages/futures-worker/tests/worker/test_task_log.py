"""The log of a worker names the task, its function and attempt, at a level that says how bad it is, with the time."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fdb_datamodel import Claim, Claims, Failure, Outcome, WorkerId
from fdb_schema import ClusterSpace
from fdb_schema.serving.logs import LogFormat, LogLevel, configure_logging
from futures_worker.worker.output import _NOTE, OutputKeeper
from futures_worker.worker.running.task_log import MOST, tell_of_turn

WORKER = WorkerId("10.0.0.7", 40001, b"w" * 16)


def claim(at: int, name: str = "resize") -> Claim:
    return Claim(bytes(15) + bytes([at]), WORKER, bytes(10), attempt=2, name=name)


@pytest.fixture
def logged() -> Iterator[Any]:
    """The log's lines so far, as they are written at a level and in a form."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()

    def begin(level: LogLevel, form: LogFormat = LogFormat.json) -> io.StringIO:
        configure_logging("worker", form, level, stream)
        return stream

    yield begin
    root.handlers[:], root.level = before


def turn() -> tuple[list[Outcome], Claims]:
    """A task is done, one failed for good, one is tried again, one was given back, one was lost to another; one is claimed."""
    claims = Claims([claim(9, "train")])
    claims.retried, claims.stale = (claim(3).id,), (claim(5).id,)
    failure = Failure("error", "ValueError: no\nimage")
    outcomes = [
        Outcome.realized(claim(1), b"r"),
        Outcome.failed(claim(2), failure),
        Outcome.failed(claim(3), failure),
        Outcome.relinquished(claim(4)),
        Outcome.failed(claim(5), failure),
    ]
    return outcomes, claims


def test_each_line_has_time_level_task_function_and_attempt(logged: Any) -> None:
    stream = logged(LogLevel.debug)
    tell_of_turn(*turn())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {(line["task"][-2:], line["level"], line["message"].partition(": ")[2]) for line in lines} == {
        ("01", "debug", "done"),
        ("02", "warning", "failed for good (error: ValueError: no image)"),
        ("03", "info", "failed, to be tried again (error: ValueError: no image)"),
        ("04", "info", "given back (drained)"),
        ("09", "debug", "claimed"),
    }
    assert {(line["function"], line["attempt"]) for line in lines} == {("resize", 2), ("train", 2)}
    assert all(line["time"].endswith("Z") for line in lines)


def test_text_names_the_task_too_and_many_alike_are_counted(logged: Any) -> None:
    stream = logged(LogLevel.info, LogFormat.text)
    tell_of_turn([Outcome.failed(claim(at), Failure("error", "x")) for at in range(100)], Claims())
    lines = stream.getvalue().splitlines()
    assert len(lines) == MOST + 1
    assert lines[0].endswith("task 00000000-0000-0000-0000-000000000000 resize attempt 2: failed for good (error: x)")
    assert " WARNING worker " in lines[0]
    assert lines[-1].endswith("80 more tasks like these in this turn")


def test_a_turn_in_which_nothing_failed_says_nothing_by_default(logged: Any) -> None:
    stream = logged(LogLevel.info)
    tell_of_turn([Outcome.realized(claim(1), b"r")], Claims([claim(2)]))
    assert stream.getvalue() == ""


def test_what_a_task_printed_stands_in_the_log_with_its_time_and_its_task(
    logged: Any, tmp_path: Path, any_db: Any
) -> None:
    future = UUID("019ad1f2-3c4d-7000-9000-000000000001")
    logs = tmp_path / "logs"
    logs.mkdir()
    printed = b"first\n\x1b[2Jsecond\n"
    (logs / "17.0.done").write_bytes(_NOTE.pack(0, len(printed), 3, future.bytes) + printed)
    stream = logged(LogLevel.info)
    assert OutputKeeper(any_db, ClusterSpace("demo"), tmp_path).tick() == 1
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["task"], line["attempt"], line["level"]) for line in lines] == [(str(future), 3, "info")] * 2
    assert [line["message"].partition(" printed: ")[2] for line in lines] == ["first", "\\x1b[2Jsecond"]


@pytest.mark.parametrize(
    "content", [b"", b"short", _NOTE.pack(10, 2, 3, b"i" * 16), _NOTE.pack(0, 1, 3, b"i" * 16) + b"more"]
)
def test_a_file_that_no_child_wrote_keeps_no_output_from_being_kept(
    content: bytes, logged: Any, tmp_path: Path, any_db: Any
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "16.0.done").write_bytes(content)
    (logs / "16.1.done").mkdir()
    os.mkfifo(logs / "16.2.done")
    (logs / "notes.now").write_bytes(content)
    (logs / "17.0.done").write_bytes(_NOTE.pack(0, 5, 3, b"f" * 16) + b"hello")
    stream = logged(LogLevel.info)
    keeper = OutputKeeper(any_db, ClusterSpace("demo"), tmp_path)
    assert [keeper.tick(), keeper.tick()] == [1, 0]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"].partition(" printed: ")[2] for line in lines if line["level"] == "info"] == ["hello"]
    assert [name in line["message"] for line, name in zip(lines, ("16.0", "16.1", "16.2"), strict=False)] == [True] * 3


def test_a_pipe_or_a_directory_in_the_place_of_a_note_or_of_output_keeps_nobody_waiting(
    logged: Any, tmp_path: Path, any_db: Any
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    alive, parent, gone = os.getpid(), os.getppid(), 1 << 30
    os.mkfifo(logs / f"{alive}.now")
    (logs / f"{parent}.now").write_bytes(_NOTE.pack(0, 0, 3, b"g" * 16))
    os.mkfifo(logs / f"{parent}.out")
    (logs / f"{gone}.now").mkdir()
    (logs / "17.0.done").write_bytes(_NOTE.pack(0, 5, 3, b"f" * 16) + b"hello")
    stream = logged(LogLevel.info)
    keeper = OutputKeeper(any_db, ClusterSpace("demo"), tmp_path)
    assert [keeper.tick(), keeper.tick()] == [1, 0]
    told = [json.loads(line)["message"] for line in stream.getvalue().splitlines() if "isn't kept" in line]
    assert sorted(line.split()[2] for line in told) == sorted(map(str, (alive, parent, gone))), "each once"
