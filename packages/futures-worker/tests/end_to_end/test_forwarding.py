"""What tasks print comes to the client that submitted them: `Client.forward_output`."""

from __future__ import annotations

import io
import logging
import queue
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from futures_worker import Client, LocalCluster, OutputLine

WAIT = 60.0


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    cluster = LocalCluster(workers=1, slots=2)
    try:
        yield cluster
    finally:
        cluster.close()


def speak(text: str) -> None:
    print(text)


def speak_and_wait(go: str) -> None:
    print("begun\rand\r\ngoing on", flush=True)
    logging.getLogger("task").warning("careful")
    while not Path(go).exists():
        time.sleep(0.01)
    sys.stderr.write("the end, without a newline")


def until(found: Callable[[], object]) -> None:
    """Workers keep what is printed a moment after it was, and nothing tells when."""
    end = time.monotonic() + WAIT
    while not found():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_lines_come_while_a_task_runs_and_the_last_ones_too(local: LocalCluster, tmp_path: Path) -> None:
    came: queue.Queue[OutputLine] = queue.Queue()
    with Client(local.url, local.cluster) as client, client.forward_output(came.put):
        future = client.submit(speak_and_wait, str(tmp_path / "go"), name="speaker")
        lines = [came.get(timeout=WAIT) for _ in range(4)]
        assert [line.text for line in lines] == ["begun", "and", "going on", "careful"]
        assert {line[:3] for line in lines} == {(future.id, "speaker", 1)}
        assert not future.done()
        (tmp_path / "go").touch()
        future.result(timeout=WAIT)
        assert came.get(timeout=WAIT).text == "the end, without a newline"
    assert came.empty()


def test_only_who_asked_hears_and_only_of_its_own(local: LocalCluster) -> None:
    came: queue.Queue[OutputLine] = queue.Queue()
    with Client(local.url, local.cluster) as client, Client(local.url, local.cluster) as other:
        forwarding = client.forward_output(came.put)
        other.submit(speak, "of another").result(timeout=WAIT)
        client.submit(speak, "mine").result(timeout=WAIT)
        assert came.get(timeout=WAIT).text == "mine"
        forwarding.stop()
        forwarding.stop()
        client.submit(speak, "nobody hears").result(timeout=WAIT)
        with client.forward_output(came.put):
            client.submit(speak, "again").result(timeout=WAIT)
            while came.get(timeout=WAIT).text != "again":  # what nobody heard may be told of only now
                pass


class Brittle:
    """Takes lines, and fails at the first."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: OutputLine) -> None:
        self.lines.append(line.text)
        if len(self.lines) == 1:
            raise OSError("no room")


def test_who_fails_to_take_a_line_gets_the_next(local: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    brittle = Brittle()
    with Client(local.url, local.cluster) as client, client.forward_output(brittle):
        client.submit(speak, "one\ntwo").result(timeout=WAIT)
        until(lambda: len(brittle.lines) == 2)
    assert brittle.lines == ["one", "two"]
    assert "can't be shown" in caplog.text


def test_streams_and_loggers_take_lines(
    local: LocalCluster, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    with Client(local.url, local.cluster) as client:
        with client.forward_output():
            future = client.submit(speak, "to standard error")
            future.result(timeout=WAIT)
            told: list[str] = []
            until(lambda: told.append(capsys.readouterr().err) or told[-1])
        assert "".join(told) == f"(speak {str(future.id)[:18]}) to standard error\n"
        with client.forward_output(terminal):
            client.submit(speak, "\x1b[31mred").result(timeout=WAIT)
            until(terminal.getvalue)
        assert terminal.getvalue().endswith(") \\x1b[31mred\n")
        with caplog.at_level(logging.INFO), client.forward_output(logging.getLogger("of.tasks")):
            future = client.submit(speak, "to a logger", name="talker")
            future.result(timeout=WAIT)
            until(lambda: "of.tasks" in {one.name for one in caplog.records})
        (record,) = (one for one in caplog.records if one.name == "of.tasks")
        fields: Any = record.__dict__
        assert record.getMessage() == "talker: to a logger"
        assert (fields["task"], fields["function"], fields["attempt"]) == (str(future.id), "talker", 1)
        with pytest.raises(TypeError, match="to is a text stream, a logger, or what is called"):
            client.forward_output(7)  # type: ignore[arg-type]


def log_much(name: str) -> int:
    logging.getLogger(name).info("in passing")
    logging.getLogger(name).debug("in detail")
    print("done")
    return len(logging.getLogger().handlers)


def test_tasks_log_from_the_level_that_is_asked_for(local: LocalCluster) -> None:
    came: queue.Queue[str] = queue.Queue()
    with Client(local.url, local.cluster) as client:
        for level, lines in (
            ("info", ["INFO work: in passing"]),
            (10, ["INFO work: in passing", "DEBUG work: in detail"]),
        ):
            with client.forward_output(lambda line: came.put(line.text), level=level):  # type: ignore[arg-type]
                futures = client.map(log_much, ["work"] * 3, name="logs")
                came_first = [came.get(timeout=WAIT) for _ in range(3 * (len(lines) + 1))]
                assert sorted(came_first) == sorted(3 * [*lines, "done"])
                assert client.gather(futures) == [1, 1, 1]
        with client.forward_output(lambda line: came.put(line.text)):
            assert client.submit(log_much, "work").result(timeout=WAIT) == 0, "as before"
            assert came.get(timeout=WAIT) == "done"
        with pytest.raises(ValueError, match="level is one of logging's, by number or name, found 'loud'"):
            client.forward_output(level="loud")


def test_retries_are_decided_as_without_a_level(local: LocalCluster, tmp_path: Path) -> None:
    def fail(path: str) -> None:
        with open(path, "a") as file:
            file.write("x")
        raise KeyError(path)

    with Client(local.url, local.cluster) as client, client.forward_output(level=logging.INFO):
        for retry_on, attempts in (((ValueError,), 1), ((KeyError,), 3)):
            path = tmp_path / str(attempts)
            future = client.submit(fail, str(path), retry_on=retry_on, max_retries=2)
            assert isinstance(future.exception(timeout=WAIT), KeyError)
            assert path.read_text() == "x" * attempts


def test_a_database_that_is_gone_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("memory:forwarding", "test") as client:
        forwarding = client.forward_output(lambda line: None)
        session = client._context()

        def refuse(*_: Any) -> None:
            raise OSError("it is gone")

        monkeypatch.setattr(session.reader, "read", refuse)
        monkeypatch.setattr(session.life, "_write_beat", refuse)
        forwarding.stop()
        assert session.expected.hear is None
        monkeypatch.undo()
