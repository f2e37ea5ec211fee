"""Exceptions keep their type, their attributes and their traceback; what can't be carried is told in full."""

from __future__ import annotations

import threading
import traceback

import pytest

from futures_worker import payload
from futures_worker.errors import FutureFailedError, UpstreamDependencyFailedException


class WithArguments(Exception):
    """Pickles, but doesn't load: its __init__ takes what its args don't keep."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


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


@pytest.mark.parametrize("error", [WithArguments(7, "broken"), Unpicklable("broken")])
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


def test_huge_exceptions_keep_both_ends() -> None:
    failure, back = carried(ValueError("begin" + "x" * 1_000_000 + "end"))
    assert len(failure.to_bytes()) < 60_000
    assert type(back) is FutureFailedError
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert "characters left out" in failure.message


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
