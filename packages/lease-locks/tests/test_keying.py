"""What `memoize` may be told of a function's key: its source, what it calls, what is left out, what takes the arguments' place."""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import memo_functions as functions
import pytest

from fdb_schema import open_database
from lease_locks import LeaseManager, MemoizingPicklingRunner, MemoKeyError, samethread_shell
from lease_locks.memo.calling.keying import PLAIN
from lease_locks.memo.functions import bind
from lease_locks.memo.pickling import dumps, loads


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


@pytest.fixture
def runner(locks: LeaseManager) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")


def key(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return bind("demo", function, args, kwargs).memo.digest.hex()


MODULE = """
STEP = 1
def helper(x, k=1):
    return x + 1
class Model:
    scale = 2
    def fit(self, x):
        return x * self.scale
    class Inner:
        @staticmethod
        def deep(x):
            return x - 1
def main(x):
    return helper(x)
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """The module as another release of it has it: with one text in place of another."""

    def load(old: str = "", new: str = "") -> ModuleType:
        assert old in MODULE
        path = tmp_path / "released.py"
        path.write_text(MODULE.replace(old, new) if old else MODULE)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            spec = importlib.util.spec_from_file_location("released", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, "released", module)
            spec.loader.exec_module(module)
        finally:
            sys.dont_write_bytecode = before
        return module

    return load


def test_keys_of_calls_that_nothing_was_said_of_are_what_they_were() -> None:
    calls = [
        (functions.square, (3, "x"), "2a713a8171cb3b63d46c"),
        (functions.keyed, (1,), "33e70585da68c371adcb"),
        (functools.partial(functions.square, 3), ("y",), "6f54404b0c4dd26a749e"),
        (pow, (2, 3), "2679858734ce120d65f9"),
    ]
    for function, args, known in calls:
        assert bind("p", function, args, {}).memo.digest.hex().startswith(known)


@pytest.mark.parametrize(
    ("old", "new", "of_helper", "of_main", "of_model"),
    [
        ("", "", False, False, False),
        ("return x + 1", "return x + 2", True, False, False),
        ("k=1", "k=2", True, False, False),
        ("return helper(x)", "return -helper(x)", False, True, False),
        ("scale = 2", "scale = 3", False, False, True),
        ("return x * self", "return x / self", False, False, True),
        ("return x - 1", "return x - 2", False, False, True),
        ("STEP = 1", "STEP = 2", False, False, False),
    ],
)
def test_an_edit_is_another_call_of_whoever_named_it(
    runner: MemoizingPicklingRunner,
    imported: Callable[..., ModuleType],
    old: str,
    new: str,
    of_helper: bool,
    of_main: bool,
    of_model: bool,
) -> None:
    def keys() -> tuple[str, ...]:
        module = imported(old, new) if seen else imported()
        seen.append(module)
        return (
            key(runner.memoize(module.main), 1),
            key(runner.memoize(source=True)(module.main), 1),
            key(runner.memoize(calls=[module.helper])(module.main), 1),
            key(runner.memoize(calls=[module.Model])(module.main), 1),
            key(runner.memoize(calls=[module.Model().fit, module.helper])(module.main), 1),
        )

    seen: list[ModuleType] = []
    before, after = keys(), keys()
    assert len(set(before)) == 5
    assert [a != b for a, b in zip(before, after, strict=True)] == [
        *(False, of_main, of_helper, of_model),
        of_helper or new == "return x / self",
    ]


def test_what_is_called_counts_with_what_it_says_that_it_calls_and_circles_end(
    runner: MemoizingPicklingRunner, imported: Callable[..., ModuleType]
) -> None:
    def key_of(module: ModuleType) -> str:
        middle = runner.memoize(calls=[module.helper])(functions.square)
        return key(runner.memoize(calls=[middle])(functions.length), b"")

    assert key_of(imported()) == key_of(imported()) != key_of(imported("x + 1", "x + 2"))
    first: Any = runner.memoize(calls=[functions.square])(functions.length)
    second: Any = runner.memoize(calls=[first])(functions.square)
    assert key(runner.memoize(calls=[second, first])(functions.keyed), 1) == key(
        runner.memoize(calls=(one for one in (first, second)))(functions.keyed), 1
    )


def test_a_function_of_a_script_that_uses_a_memoized_one_counts_what_that_calls(
    runner: MemoizingPicklingRunner, imported: Callable[..., ModuleType]
) -> None:
    def key_of(module: ModuleType) -> str:
        inner = runner.memoize(calls=[module.helper])(functions.square)

        def outer(x: int) -> int:
            return inner(x, "")

        return key(outer, 1) + key(functions.length, inner)

    assert key_of(imported()) == key_of(imported()) != key_of(imported("x + 1", "x + 2"))


def test_an_ignored_argument_reaches_the_function_and_does_not_count(runner: MemoizingPicklingRunner) -> None:
    seen: list[str] = []

    @runner.memoize(ignore=["log", "color"])
    def f(x: int, log: str = "", **more: Any) -> int:
        seen.append(log)
        return x

    assert f(1, "a") == f(1, log="b") == f(1) == f(1, color="red") == 1
    assert f(1, size=2) == 1
    assert seen == ["a", ""]
    assert runner.peek(f, 1, "c") == 1
    assert runner.invalidate(f, 1, "d") == 1
    assert not runner.peek(f, 1)
    assert f(1, "e") == 1
    assert seen[-1] == "e"


PARAMETERS = ("x", "y", "rest", "flag", "more")


def _drawn(x: Any, y: Any = 0, *rest: Any, flag: Any = False, **more: Any) -> None:
    """Every kind of parameter."""


@pytest.mark.parametrize("seed", range(5))
def test_calls_are_one_where_what_counts_is_equal_and_only_there(runner: MemoizingPicklingRunner, seed: int) -> None:
    draw = random.Random(seed)
    ignored = frozenset(draw.sample((*PARAMETERS, "a", "b"), draw.randrange(4)))
    memoized = runner.memoize(ignore=ignored)(_drawn)
    by_key = runner.memoize(key=lambda x, y, *rest, flag, **more: (x, flag))(_drawn)
    keys: dict[str, set[str]] = {}
    for _ in range(300):
        args = tuple(draw.randrange(2) for _ in range(draw.choice((1, 2, 3))))
        kwargs = {name: draw.randrange(2) for name in draw.sample(("flag", "a", "b"), draw.randrange(3))}
        bound = {"x": args[0], "y": (*args, 0)[1], "rest": args[2:], "flag": kwargs.get("flag", False)}
        more = {name: value for name, value in kwargs.items() if name != "flag"}
        counted = {name: value for name, value in bound.items() if name not in ignored}
        if "more" not in ignored:
            counted["more"] = {name: more[name] for name in sorted(more) if name not in ignored}
        keys.setdefault(repr(counted), set()).add(key(memoized, *args, **kwargs))
        keys.setdefault(repr(("key", bound["x"], bound["flag"])), set()).add(key(by_key, *args, **kwargs))
    assert {len(found) for found in keys.values()} == {1}, f"seed {seed}: what counts is equal, and the keys aren't"
    assert len(set.union(*keys.values())) == len(keys), f"seed {seed}: what counts differs, and the keys don't"


def test_a_function_of_the_arguments_takes_their_place(locks: LeaseManager, runner: MemoizingPicklingRunner) -> None:
    class Table:
        def __init__(self, name: str, version: int) -> None:
            self.name, self.version = name, version
            self.seen = random.random()  # else every table would be another call

    calls: list[str] = []

    @runner.memoize(key=lambda table, limit: (table.name, table.version))
    def rows(table: Table, limit: int = 10) -> str:
        calls.append(table.name)
        return f"{table.name} {table.version}"

    assert rows(Table("a", 1)) == rows(Table("a", 1), 20) == rows(limit=3, table=Table("a", 1)) == "a 1"
    assert rows(Table("a", 2)) == "a 2"
    assert calls == ["a", "a"]
    refuses = runner.memoize(key=lambda x: x.missing)(functions.keyed)
    with pytest.raises(MemoKeyError, match="key function of memo_functions--keyed raised AttributeError"):
        refuses(1)
    none = runner.memoize(key=lambda x: threading.Lock())(functions.keyed)
    with pytest.raises(MemoKeyError, match="what the key function of memo_functions--keyed returned"):
        none(1)


def test_what_is_left_out_and_does_not_pickle_is_named(runner: MemoizingPicklingRunner) -> None:
    memoized: Any = runner.memoize(ignore=["x"])(functions.keyed)
    with pytest.raises(MemoKeyError, match="argument 'x' of memo_functions--keyed@v2 can't be sent"):
        memoized(threading.Lock())
    assert runner.locks.list("memo/") == []


def test_a_method_may_leave_out_its_object_and_is_found_by_its_object_too(runner: MemoizingPicklingRunner) -> None:
    class Model:
        def __init__(self, n: int) -> None:
            self.n = n

        @runner.memoize(ignore=["self"])
        def fit(self, x: int) -> int:
            return self.n * x

    assert (Model(2).fit(3), Model(5).fit(3)) == (6, 6)
    assert runner.peek(Model(7).fit, 3) == 6
    assert runner.peek(functools.partial(Model.fit, Model(8)), 3) == 6


def test_options_go_with_the_function_to_whichever_runner_and_process(
    locks: LeaseManager, runner: MemoizingPicklingRunner
) -> None:
    memoized = runner.memoize(ignore=["folder"])(functions.square)
    copied = loads(dumps(lambda: memoized))()
    assert loads(dumps(PLAIN)) is PLAIN
    assert key(memoized, 1, "a") == key(copied, 1, "b") == key(functools.partial(memoized, 1), "c")
    other = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")
    assert key(other.memoize(memoized), 1, "d") == key(memoized, 1, "a")
    assert key(other.memoize(ignore=["x"])(memoized), 2, "d") == key(
        other.memoize(ignore=["x"])(functions.square), 3, "d"
    )
    decorated = functools.wraps(memoized)(lambda x, folder: memoized(x, folder))
    assert key(decorated, 1, "a") != key(decorated, 1, "b"), "a decorator around it has a key of its own"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"ignore": ["z"]}, ValueError, "square has no parameter 'z'; it has x, folder"),
        ({"ignore": "x"}, TypeError, "ignore must be a list, not 'x'"),
        ({"calls": functions.square}, TypeError, "calls must be a list"),
        ({"calls": [3]}, TypeError, "calls: 3 is no function or class with a source"),
        ({"calls": [len]}, TypeError, "no function or class with a source"),
        ({"key": "x"}, TypeError, "key must be a function"),
        ({"key": len, "ignore": ["x"]}, ValueError, "not both"),
        ({"keys": len}, TypeError, "keys"),
    ],
)
def test_what_can_not_be_meant_is_refused(
    runner: MemoizingPicklingRunner, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        runner.memoize(**options)(functions.square)
    with pytest.raises(TypeError, match="has no source"):
        runner.memoize(source=True)(pow)


def test_an_argument_that_counts_and_changes_while_its_call_waits_is_stored_under_its_own_key(
    runner: MemoizingPicklingRunner,
) -> None:
    call = bind("demo", runner.memoize(key=lambda data: len(data))(functions.length), (data := bytearray(b"abc"),), {})
    call.dump()
    data[0] = 7  # not looked at
    call.dump()
    data.append(1)
    with pytest.raises(Exception, match="changed while it was called"):
        call.dump()


def test_inspect_shows_what_counts_and_what_does_not(locks: LeaseManager, runner: MemoizingPicklingRunner) -> None:
    ignoring = bind("demo", runner.memoize(ignore=["folder"])(functions.square), (3, "here"), {})
    assert [(name, value, bool(digest)) for name, value, digest in ignoring.shown()] == [
        ("x", "3", True),
        ("folder", "'here'", False),
    ]
    keyed = bind("demo", runner.memoize(key=lambda x, folder: x)(functions.square), (3, "here"), {})
    assert [(name, bool(digest)) for name, _, digest in keyed.shown()] == [
        ("x", False),
        ("folder", False),
        ("key()", True),
    ]
