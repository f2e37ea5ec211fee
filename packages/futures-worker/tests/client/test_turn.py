"""Who reads the mail for all threads of a client gives that up, wherever a KeyboardInterrupt comes."""

from __future__ import annotations

import ast
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from support.interrupting import arrivals

import futures_worker.client
from fdb_datamodel import get_future_states
from fdb_schema import ClusterSpace
from futures_worker import Client
from futures_worker.client.basis import turn
from futures_worker.client.basis.turn import Flag, Turn, Waiters
from idempotent_txn import run

WAIT = 20.0
LOCKS = ("_lock", "_sending", "_noting", "_committing", "_taking", "_joining")


def test_one_at_a_time_has_it() -> None:
    turn, one, two = Turn(), object(), object()
    assert turn.take(one)
    assert not turn.take(two)
    turn.holder = None
    assert turn.take(two)


def test_an_interrupt_at_any_call_of_a_look_leaves_the_client_able_to_wait(any_url: str) -> None:
    """Python handles a signal where a function begins and where a call has returned."""
    with Client(any_url, "test") as client:
        session = client._context()
        client.submit(abs, -1).done()
        count = at = 0

        def interrupt(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            code, caller = frame.f_code, frame.f_back
            if code.co_name == "__del__" or (caller is not None and caller.f_code.co_name == "__del__"):
                return  # the collector's: what is raised there reaches nobody
            if "/futures_worker/client/" in code.co_filename and event in ("call", "c_return"):
                count += 1
                if count == at:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        interrupted = 0
        for at in range(1, 60):
            count = 0
            sys.setprofile(interrupt)
            try:
                session.reader.wait(lambda: False, 0.0)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.setprofile(None)
            assert session.reader._turn.holder is None, f"after an interrupt at call {at} the mail is never read again"
        assert interrupted > 10


def _of_a_wait(code: CodeType) -> bool:
    return "/futures_worker/client/" in code.co_filename or code.co_filename == threading.__file__


def done_in_time(act: Callable[[], Any]) -> bool:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(WAIT)
    return not thread.is_alive()


def test_an_interrupt_anywhere_in_a_wait_for_another_reader_holds_up_no_other_thread(any_url: str) -> None:
    client = Client(any_url, "test")
    session = client._context()
    for number in itertools.count():
        session.reader._turn.holder = object()
        with arrivals(number, _of_a_wait) as interruption, contextlib.suppress(KeyboardInterrupt):
            session.reader.wait(lambda: False, 0.0)
        assert done_in_time(lambda: session.follow(lambda: False, 0.0)), f"after one at {interruption.where}"
        session.reader._turn.holder = None
        if not interruption.came:
            break
    assert number > 5
    client.close()  # not where one is held up: it would be too


def test_an_interrupt_anywhere_in_a_flag_leaves_it_to_be_set_by_others() -> None:
    for number in itertools.count():
        flag = Flag()
        with arrivals(number, _of_a_wait) as interruption, contextlib.suppress(KeyboardInterrupt):
            flag.wait(0.0)
            flag.set()
            flag.wait()
            flag.clear()
        assert done_in_time(lambda flag=flag: (flag.set(), flag.wait())), f"after one at {interruption.where}"  # type: ignore[misc]
        if not interruption.came:
            break
    assert number > 5


def test_who_waits_is_woken_and_what_changed_before_is_not_waited_for() -> None:
    waiters, begun, over = Waiters(), threading.Semaphore(0), threading.Semaphore(0)

    def wait() -> None:
        waiters.wait(10 * WAIT, lambda: begun.release() is not None)
        over.release()

    for _ in range(3):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(3):
        assert begun.acquire(timeout=WAIT)
    assert not over.acquire(blocking=False)
    waiters.wake()
    for _ in range(3):
        assert over.acquire(timeout=WAIT)
    assert not waiters
    waiters.wait(10 * WAIT, lambda: True)
    flag = Flag()
    assert not flag.wait(0.0)
    flag.set()
    assert flag.wait() and flag.is_set()


def _jumps_that_no_handler_covers(block: ast.With | ast.Try) -> Iterator[int]:
    """Lines of loops within a `with` or `try` past whose end CPython 3.13 jumps back outside of it."""
    left: list[ast.AST] = list(block.body)
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)):
            continue  # what they are called by is within
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            yield node.lineno
        if isinstance(node, ast.For) and isinstance(node.body[-1], ast.If) and not node.body[-1].orelse:
            yield node.lineno
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)) and any(one.ifs for one in node.generators):
            yield node.lineno
        left.extend(ast.iter_child_nodes(node))


def test_no_loop_under_a_lock_ends_where_an_interrupt_would_keep_the_lock() -> None:
    found = []
    for path in sorted(Path(futures_worker.client.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.With) and any(
                ast.unparse(item.context_expr).endswith(LOCKS) for item in node.items
            ):
                found += [f"{path.name}:{line}" for line in _jumps_that_no_handler_covers(node)]
    assert found == []


def test_an_interrupt_anywhere_in_a_first_submit_leaves_a_client_that_stores_and_beats(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_LOOK_SECONDS", 0.05)  # that what an interrupt keeps from being woken is found by

    def chosen(code: CodeType) -> bool:
        return code.co_filename.endswith(("/basis/session_life.py", "/basis/intake.py", "/basis/turn.py"))

    for number in itertools.count():
        with Client(any_url, "test") as client:
            context = client._context
            with arrivals(number, chosen) as interruption, contextlib.suppress(KeyboardInterrupt):
                client.submit(abs, -1)
                context().life.begin()
            later = client.submit(abs, -2)._record
            end = time.monotonic() + WAIT
            while run(context.db, get_future_states, ClusterSpace("test"), [later.id]) == [None]:
                assert time.monotonic() < end, f"after an interrupt at {interruption.where}"
                time.sleep(0.001)
            beats = context().life._thread
            assert beats is not None and beats.is_alive(), f"after an interrupt at {interruption.where}"
        if not interruption.came:
            break
    assert number > 20
