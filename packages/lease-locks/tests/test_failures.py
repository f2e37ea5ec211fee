"""An exception is raised at the caller with the type it had, whether or not it pickles."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdb_schema import open_database
from lease_locks import LeaseManager, MemoizingPicklingRunner, RemoteError, samethread_shell
from lease_locks.memo.functions import dump_failure, load_failure


@pytest.fixture
def runner() -> Iterator[MemoizingPicklingRunner]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield MemoizingPicklingRunner(manager, shell=samethread_shell, pipeline_id="demo")


class Picky(ValueError):
    """Its own arguments aren't those of its constructor, so that pickle can't make it again."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{why} ({code})")
        self.code = code


class Holding(OSError):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.lock = threading.Lock()
        self.path = "/a/b"


def raised(runner: MemoizingPicklingRunner, make: Callable[[], Exception]) -> Any:
    def fail() -> None:
        raise make()

    with pytest.raises(Exception) as caught:
        runner.call(fail)
    return caught.value


def test_an_exception_whose_constructor_wants_other_arguments_keeps_its_type(runner: MemoizingPicklingRunner) -> None:
    error = raised(runner, lambda: Picky(7, why="too big"))
    assert isinstance(error, Picky)
    assert (str(error), error.code, error.args) == ("too big (7)", 7, ("too big (7)",))
    assert "test_failures.py" in str(error.__cause__)


def test_an_exception_that_holds_what_does_not_pickle_keeps_its_type_and_the_rest(
    runner: MemoizingPicklingRunner,
) -> None:
    error = raised(runner, lambda: Holding(2, "no such thing"))
    assert isinstance(error, Holding)
    assert isinstance(error, RemoteError)
    assert (error.errno, error.path) == (2, "/a/b")
    assert not hasattr(error, "lock")
    assert "no such thing" in str(error)


def test_what_came_so_can_be_sent_on(runner: MemoizingPicklingRunner) -> None:
    error = raised(runner, lambda: Picky(7, why="too big"))
    data, name, text = dump_failure(error)
    again = load_failure(data, name, text)
    assert isinstance(again, Picky)
    assert str(again) == "too big (7)"


def test_a_group_keeps_its_type_and_its_exceptions_theirs(runner: MemoizingPicklingRunner) -> None:
    group = ExceptionGroup(
        "several", [Picky(7, why="too big"), ExceptionGroup("more", [Holding(2, "x"), KeyError("k")])]
    )
    error = raised(runner, lambda: group)
    assert isinstance(error, ExceptionGroup)
    assert str(error) == "several (2 sub-exceptions)"
    picky, rest = error.exceptions
    assert (type(picky).__name__, str(picky), isinstance(picky, Picky)) == ("Picky", "too big (7)", True)
    assert [isinstance(one, kind) for one, kind in zip(rest.exceptions, (Holding, KeyError), strict=True)] == [
        True,
        True,
    ]
    matched, others = error.split(OSError)
    assert matched is not None
    assert others is not None


def decoding() -> Exception:
    try:
        b"".join([b"a" * 60_000, b"\xff"]).decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


LARGE = {
    "a message": lambda: ValueError("how it begins" + "x" * 60_000 + "how it ends"),
    "a document": lambda: json.JSONDecodeError("Expecting value", "how it begins" + "x" * 60_000 + "how it ends", 9),
    "what a command printed": lambda: subprocess.CalledProcessError(
        3, "a", "how it begins" + "x" * 60_000, b"y" * 60_000 + b"how it ends"
    ),
    "what is no text": decoding,
    "many parts": lambda: ValueError(*[str(n) * 300 for n in range(100, 160)]),
    "a group": lambda: ExceptionGroup("several", [ValueError("x" * 9_000), Picky(7, why="y" * 9_000)]),
    "what is neither": lambda: OSError(7, "too long", list(range(60_000))),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_an_exception_that_holds_much_keeps_its_type(
    runner: MemoizingPicklingRunner, make: Callable[[], Exception]
) -> None:
    error, given = raised(runner, make), make()
    assert isinstance(error, type(given))
    assert isinstance(error, RemoteError)
    assert len(str(error)) < 20_000
    assert str(error).startswith(str(given)[:10])
    if isinstance(error, subprocess.CalledProcessError):
        assert (error.returncode, error.cmd) == (3, "a")
        assert error.output.startswith("how it begins")
        assert error.stderr.endswith(b"how it ends")
    if isinstance(error, json.JSONDecodeError):
        assert (error.pos, error.lineno, error.doc[-11:]) == (9, 1, "how it ends")
    if isinstance(error, ExceptionGroup):
        assert [isinstance(one, ValueError) for one in error.exceptions] == [True, True]
        assert error.split(Picky)[0] is not None


class Odd:
    def __repr__(self) -> str:
        return "caf\udce9"


def test_texts_that_utf8_has_not_are_in_nobodys_way(
    runner: MemoizingPicklingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a file's name that isn't UTF-8, which Python has with half surrogate pairs in it."""
    name = "caf\udce9"

    def fail(*_: Any) -> None:
        raise ValueError(f"{name} is missing")

    with pytest.raises(ValueError, match=r"caf\udce9 is missing"):
        runner.call(fail)
    with pytest.raises(ValueError, match=r"caf\udce9 is missing"):
        runner.call(fail, Odd())
    assert runner.call(str.upper, name) == "CAF\udce9"
    monkeypatch.setattr("sys.argv", [f"/{name}.py"])
    runner.flush()
    with LeaseManager(runner.locks.db, cluster="demo") as other:
        other.acquire("a")
        assert other.force_release("a", reason=name)
        assert other.history("a")[-1].why == r"caf\udce9"
        assert r"/caf\udce9.py" in [record.command for _, record, _ in other.sessions()]
