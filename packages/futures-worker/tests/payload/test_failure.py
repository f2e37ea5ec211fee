"""Exceptions keep their type, their attributes and their traceback; what can't be carried is told in full."""

from __future__ import annotations

import pickle
import threading
import traceback
from concurrent.futures import CancelledError
from uuid import UUID

import numpy as np
import pytest

from futures_worker import payload
from futures_worker.errors import FutureFailedError, UpstreamDependencyFailedException


class WithArguments(Exception):
    """Its __init__ takes what its args don't keep."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


class Status(Exception):
    """Its __init__ would make another text of its args."""

    def __init__(self, code: object) -> None:
        super().__init__(f"status {code}")


class Named(Exception):
    def __init__(self, *, path: str) -> None:
        super().__init__()
        self.path = path

    def __str__(self) -> str:
        return f"no {self.path}"


class Refused(OSError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(111, f"refused by {host}", host)
        self.port = port


class TwoInNew(Exception):
    def __new__(cls, one: int, two: int) -> TwoInNew:
        return super().__new__(cls, one + two)

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


class HoldsAnArray(Exception):
    def __init__(self, array: object) -> None:
        super().__init__("shape", array)


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def carried(error: BaseException) -> tuple[payload.Failure, BaseException]:
    try:
        raise error
    except BaseException as caught:
        failure = payload.Failure.from_bytes(payload.dump_exception(caught).to_bytes())
    return failure, payload.load_exception(failure)


def test_the_original_type_with_the_remote_traceback() -> None:
    failure, error = carried(KeyError("missing"))
    assert type(error) is KeyError
    assert error.args == ("missing",)
    assert isinstance(error.__cause__, payload.RemoteTraceback)
    shown = "".join(traceback.format_exception(error))
    assert "in carried" in shown
    assert failure.error_type == "builtins.KeyError"
    assert failure.message == "'missing'"


def test_attributes_and_notes_are_kept() -> None:
    error = OSError(28, "No space left", "/data")
    error.add_note("while writing the index")
    _, back = carried(error)
    assert isinstance(back, OSError)
    assert (back.errno, back.filename, back.__notes__) == (28, "/data", ["while writing the index"])


def test_the_original_cause_is_kept() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    failure, back = carried(error)
    assert isinstance(back.__cause__, payload.RemoteTraceback)
    assert isinstance(back.__cause__.__cause__, KeyError)
    assert "inner" in failure.traceback


def test_a_cause_that_doesnt_pickle_costs_only_itself() -> None:
    error = ValueError("outer")
    error.__cause__ = Unpicklable("inner")
    failure, back = carried(error)
    assert type(back) is ValueError
    assert "Unpicklable: inner" in failure.traceback


@pytest.mark.parametrize(
    "error",
    [
        WithArguments(7, "broken"),
        Status(503),
        Named(path="/data"),
        Refused("db", 1),
        TwoInNew(3, 4),
        HoldsAnArray(np.arange(3)),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration(7),
        BaseExceptionGroup("both", [Status(1), KeyError("x")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_text_and_attributes_are_kept_whatever_the_constructor_takes(error: BaseException) -> None:
    error.__cause__ = Status("of the cause")
    _, back = carried(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert [repr(one) for one in back.args] == [repr(one) for one in error.args]
    assert back.__dict__ == error.__dict__
    assert back.__cause__ is not None
    assert str(back.__cause__.__cause__) == "status of the cause"
    again = pickle.loads(payload.dump_exception(back).pickled)[0]
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("error", [Unpicklable("broken")])
def test_what_doesnt_pickle_is_carried_as_text(error: Exception) -> None:
    _, back = carried(error)
    assert type(back) is FutureFailedError
    assert back.error_type.endswith(type(error).__qualname__)
    assert "broken" in back.error_message
    assert "in carried" in back.remote_traceback
    assert type(error).__qualname__ in str(back)
    assert "broken" in str(back)


def test_an_exception_without_text() -> None:
    failure, back = carried(BadText())
    assert "no text" in failure.message
    assert type(back) is BadText


class Response(Exception):
    def __init__(self, code: int, body: str) -> None:
        super().__init__(f"{code}: {body}")
        self.code, self.body = code, body


@pytest.mark.parametrize(
    "error",
    [
        ValueError("begin" + "x" * 1_000_000 + "end"),
        ValueError(*["begin" + "x" * 100_000 + "end"] * 9),
        Response(503, "begin" + "x" * 50_000 + "end"),
        KeyError("begin" + "\udcff" * 100_000 + "end"),
    ],
    ids=["one text", "many", "with attributes", "surrogates"],
)
def test_huge_exceptions_keep_their_type_and_both_ends(error: Exception) -> None:
    failure, back = carried(error)
    assert len(failure.to_bytes()) < 80_000
    assert type(back) is type(error)
    for text in (failure.message, str(back)):
        assert "begin" in text[:20]
        assert "end" in text[-20:]
        assert "characters left out" in text
    if isinstance(back, Response):
        assert back.code == 503


def test_an_exception_that_contains_itself_is_told_as_text() -> None:
    error = ValueError("round")
    error.args = ("round", [error])
    failure, back = carried(error)
    assert "round" in failure.message
    assert "round" in str(back)


def test_text_that_utf8_hasnt_is_told_with_escapes() -> None:
    failure, back = carried(FileNotFoundError(2, "no such file", "caf\udce9"))
    assert isinstance(back, FileNotFoundError)
    assert back.filename == "caf\udce9"
    assert r"caf\udce9" in failure.message
    assert failure.message.encode()
    unpicklable, told = carried(Unpicklable("half \ud800"))
    assert r"half \ud800" in unpicklable.message
    assert r"half \ud800" in str(told)


def test_groups_and_base_exceptions() -> None:
    _, group = carried(ExceptionGroup("several", [ValueError("a"), KeyError("b")]))
    assert isinstance(group, ExceptionGroup)
    assert [type(e) for e in group.exceptions] == [ValueError, KeyError]
    assert type(carried(SystemExit(3))[1]) is SystemExit


def test_our_own_errors_keep_their_fields() -> None:
    _, back = carried(UpstreamDependencyFailedException("up failed", chain=["a", "b"], epoch=2))
    assert isinstance(back, UpstreamDependencyFailedException)
    assert (list(back.chain), back.epoch) == (["a", "b"], 2)
    assert "up failed" in back.remote_traceback


def test_a_type_that_the_reader_doesnt_have() -> None:
    failure, _ = carried(ValueError("kept"))
    broken = payload.Failure(failure.error_type, failure.message, failure.traceback, b"\x80\x05cno_such_module\nX\n.")
    error = payload.load_exception(broken)
    assert isinstance(error, FutureFailedError)
    assert "kept" in str(error)
    assert "no_such_module" in str(error)


class Picky(LookupError):
    """Takes what nobody else would give it."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


@pytest.mark.parametrize(
    "original",
    [
        LookupError("x"),
        KeyError("x"),
        OSError(2, "gone"),
        Picky(3, why="so"),
        CancelledError("x"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
)
def test_what_fails_with_its_upstream_is_of_the_original_type_too(original: Exception) -> None:
    chain = (UUID(int=7),)
    error = UpstreamDependencyFailedException.like(original, "it never ran", chain=chain, epoch=2)
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert isinstance(one, UpstreamDependencyFailedException)
        assert isinstance(one, type(original))
        assert (str(one), one.chain, one.epoch) == ("it never ran", chain, 2)
        assert type(one).__name__ == "UpstreamDependencyFailedException"
    assert error.__cause__ is original


def test_what_no_class_can_be_beside_is_the_cause_alone() -> None:
    for original in (FutureFailedError("text"), SystemExit(3), None):
        error = UpstreamDependencyFailedException.like(original, "it never ran", chain=(), epoch=0)
        assert type(error) is UpstreamDependencyFailedException
        assert error.__cause__ is original
