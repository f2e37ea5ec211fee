"""Calls, results and code: what is pickled, how often, and what a reader gets back."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
import time
from types import ModuleType
from typing import Any
from uuid import uuid4

import msgpack
import numpy as np
import pytest

from futures_worker import payload, value_pickler
from futures_worker.code.function_changes import carries_state
from futures_worker.errors import OversizeError, ResultPickleError, TaskUnpickleError


class Reference:
    """Stands for a client's future: pickles as one."""

    def __init__(self, future_id: bytes) -> None:
        self.id = future_id

    def __reduce_ex__(self, protocol: Any) -> Any:
        return payload.reference_to(self.id) or (Reference, (self.id,))


def module_level(a: int, b: int = 2) -> int:
    return a + b


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


def in_fresh_python(program: str, data: bytes) -> str:
    """Runs `program` with `data` on stdin in a Python that has never seen this module."""
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


def test_a_call_round_trips() -> None:
    task = payload.dump_call(module_level, (1,), {"b": 5})
    function, args, kwargs = payload.load_call(task.code.data, task.args)
    assert function(*args, **kwargs) == 6
    assert task.dependencies == ()
    assert task.code.name.endswith("module_level")


def test_no_arguments_take_no_bytes() -> None:
    assert payload.dump_args((), {}) == (b"", ())
    assert payload.load_args(b"") == ((), {})


def test_futures_anywhere_in_the_arguments_become_references_to_values() -> None:
    a, b = uuid4().bytes, uuid4().bytes
    ra, rb = Reference(a), Reference(b)
    data, found = payload.dump_args((ra, [1, {"deep": (rb, ra)}]), {"key": Plain(rb)})
    assert found == (a, b)
    value = ["the value of a"]
    args, kwargs = payload.load_args(data, [value, "B"])
    assert args == (value, [1, {"deep": ("B", value)}])
    assert args[0] is args[1][1]["deep"][1]  # one future, one object
    assert kwargs["key"].x == "B"


def test_references_are_found_where_cloudpickle_is_needed() -> None:
    a = uuid4().bytes
    data, found = payload.dump_args((lambda: 1, Reference(a)), {})
    assert found == (a,)
    (function, value), _ = payload.load_args(data, ["A"])
    assert (function(), value) == (1, "A")


def test_a_future_pickled_outside_a_call_stays_a_future() -> None:
    a = uuid4().bytes
    assert pickle.loads(pickle.dumps(Reference(a))).id == a


def test_arguments_of_a_task_dont_unpickle_elsewhere() -> None:
    data, _ = payload.dump_args((Reference(uuid4().bytes),), {})
    with pytest.raises(pickle.UnpicklingError, match="load_args"):
        pickle.loads(data)


def test_arguments_that_dont_pickle_are_named() -> None:
    with pytest.raises(TypeError, match=r"argument number 2, a _thread\.lock"):
        payload.dump_args((1, threading.Lock()), {})
    with pytest.raises(TypeError, match=r"argument 'guard'"):
        payload.dump_args((1,), {"guard": threading.Lock()})


def test_a_function_that_doesnt_pickle_is_named() -> None:
    lock = threading.Lock()

    def holds_a_lock() -> object:
        return lock

    with pytest.raises(TypeError, match=r"holds_a_lock can't be pickled"):
        payload.dump_call(holds_a_lock)
    with pytest.raises(TypeError, match="needs a function, found 3"):
        payload.dump_call(3)  # type: ignore[arg-type]


def test_oversize_arguments_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_ARGS_BYTES", 1000)
    with pytest.raises(OversizeError, match=r"client\.put"):
        payload.dump_args((b"x" * 1001,), {})
    monkeypatch.setattr("futures_worker.code.function_code.MAX_CODE_BYTES", 1000)
    big = b"x" * 1001
    with pytest.raises(OversizeError, match="capturing"):
        payload.dump_call(lambda: big)


def test_functions_and_classes_of_a_test_module_load_where_it_cant_be_imported() -> None:
    task = payload.dump_call(module_level, (40,))
    boxed = payload.dump_args((Plain(7),), {})[0]
    program = (
        "import sys, msgpack\nfrom futures_worker import payload\n"
        "code, args, boxed = msgpack.unpackb(sys.stdin.buffer.read())\n"
        "f, a, k = payload.load_call(code, args)\n((p,), _) = payload.load_args(boxed)\nprint(f(*a, **k), p.x)"
    )
    out = in_fresh_python(program, msgpack.packb([task.code.data, task.args, boxed]))
    assert out.split() == ["42", "7"]


def test_a_missing_module_is_named_with_both_pythons(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here_1234.py").write_text("def f(): return 1\nclass C: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here_1234  # type: ignore[import-not-found]

    task = payload.dump_call(only_here_1234.f, (only_here_1234.C(),))
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "only_here_1234")
    with pytest.raises(TaskUnpickleError, match=r"'only_here_1234' is missing.*PYTHONPATH.*Python 3.*Python 3"):
        payload.load_code(task.code.data)
    with pytest.raises(TaskUnpickleError, match=r"arguments of .*'only_here_1234' is missing"):
        payload.load_args(task.args, name="f")
    assert payload.code_name(task.code.data) == "only_here_1234.f"


# --- the cache of functions -------------------------------------------------------------------------------------------


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was pickled by value, in order."""
    calls: list[object] = []
    real = value_pickler.dumps

    def counting(obj: object, *args: Any, **kwargs: Any) -> bytes:
        calls.append(obj)
        return real(obj, *args, **kwargs)

    monkeypatch.setattr(value_pickler, "dumps", counting)
    return calls


def test_the_same_function_is_pickled_once(dumps: list[object]) -> None:
    cache = payload.CodeCache()
    factor = 3

    def closure(x: int) -> int:
        return x * factor + module_level(x)

    digests = {cache.dump(f).digest for f in [closure, module_level, closure, time.sleep, closure, time.sleep]}
    assert len(dumps) == len(digests) == 3


def test_a_changed_closure_default_or_global_is_pickled_anew() -> None:
    cache = payload.CodeCache()
    factor = 1
    space: dict[str, Any] = {"__name__": "__main__", "G": 1}
    exec("def uses_global(x): return x * G\n", space)
    uses_global = space["uses_global"]

    def closure(x: int, more: int = 0) -> int:
        return x * factor + more

    def runs(function: Any) -> int:
        result: int = payload.load_code(cache.dump(function).data)(10)
        return result

    assert (runs(closure), runs(uses_global)) == (10, 10)
    factor = 2
    space["G"] = 5
    assert (runs(closure), runs(uses_global)) == (20, 50)
    closure.__defaults__ = (7,)
    assert runs(closure) == 27


def test_a_change_deeper_down_is_seen() -> None:
    cache = payload.CodeCache()
    factor = 1

    def inner(x: int) -> int:
        return x * factor

    def outer(x: int) -> int:
        return inner(x)

    assert payload.load_code(cache.dump(outer).data)(10) == 10
    factor = 4
    assert payload.load_code(cache.dump(outer).data)(10) == 40


def test_what_changes_in_place_is_never_served_from_the_cache() -> None:
    cache = payload.CodeCache()
    items = [1]

    def total() -> int:
        return sum(items)

    assert payload.load_code(cache.dump(total).data)() == 1
    items.append(10)
    assert payload.load_code(cache.dump(total).data)() == 11


def test_a_module_that_nobody_can_import_is_never_served_from_the_cache() -> None:
    cache = payload.CodeCache()
    made = ModuleType("made_by_hand")
    made.__dict__["number"] = 1

    def read() -> int:
        return made.number

    assert payload.load_code(cache.dump(read).data)() == 1
    made.__dict__["number"] = 2
    assert payload.load_code(cache.dump(read).data)() == 2


def test_a_global_that_is_made_late_is_seen_even_if_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = payload.CodeCache()

    def read() -> Any:
        return MADE_LATE  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(NameError):
        payload.load_code(cache.dump(read).data)()
    monkeypatch.setitem(globals(), "MADE_LATE", None)
    assert payload.load_code(cache.dump(read).data)() is None


def test_recursive_functions_are_cached(dumps: list[object]) -> None:
    cache = payload.CodeCache()

    def fact(n: int) -> int:
        return 1 if n == 0 else n * fact(n - 1)

    assert cache.dump(fact) is cache.dump(fact)
    assert len(dumps) == 1
    assert payload.load_code(cache.dump(fact).data)(5) == 120


def test_what_is_the_same_whoever_ran_it_before_stays_loaded() -> None:
    @functools.cache
    def squared(number: int) -> int:
        return number**2

    def outer(depth: int) -> int:
        count = 0

        def inner() -> None:
            nonlocal count
            count += depth

        inner()
        return count + (outer(depth - 1) if depth else 0)

    constant = 3
    for kept in (abs, int, squared, outer, functools.partial(squared, 2), lambda: constant, lambda x=squared: x):
        assert not carries_state(kept)


def test_the_cache_keeps_no_function_alive() -> None:
    cache = payload.CodeCache()

    def make() -> Any:
        return lambda: 1

    for _ in range(10):
        cache.dump(make())
    assert len(cache._entries) == 0


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 1, "text", b"x" * 100_000, [1, {"a": (2,)}], {"k": 3.5}])
def test_plain_results_round_trip(value: Any) -> None:
    result = payload.dump_result(value)
    assert payload.load_result(result.to_bytes()) == value
    assert result.nbytes == len(result.to_bytes())


def test_arrays_stay_out_of_band_and_are_read_where_they_lie() -> None:
    big, odd, small = np.arange(100_000), np.ones(10_001, dtype=np.uint8), np.arange(3)
    result = payload.dump_result({"big": big, "odd": odd, "again": big, "small": small})
    assert [b.nbytes for b in result.buffers] == [800_000, 10_001]
    assert len(result.pickled) < 2_000
    arena = bytearray(result.nbytes)
    assert result.write_into(memoryview(arena)) == len(arena) == len(result.to_bytes())
    assert bytes(arena) == result.to_bytes()
    back = payload.load_result(memoryview(arena).toreadonly())
    for key, array in (("big", big), ("odd", odd), ("small", small)):
        np.testing.assert_array_equal(back[key], array)
    assert back["again"] is back["big"]
    assert not back["big"].flags.writeable
    assert np.shares_memory(back["big"], np.frombuffer(arena, dtype=np.uint8))
    assert back["big"].__array_interface__["data"][0] % 8 == 0


def test_arrays_that_arent_contiguous() -> None:
    array = np.arange(100_000).reshape(100, 1000)[::2, ::3]
    np.testing.assert_array_equal(payload.load_result(payload.dump_result(array).to_bytes()), array)
    fortran = np.asfortranarray(np.arange(100_000).reshape(100, 1000))
    np.testing.assert_array_equal(payload.load_result(payload.dump_result(fortran).to_bytes()), fortran)


def test_results_that_need_cloudpickle() -> None:
    array = np.arange(10_000)
    result = payload.dump_result([lambda: 5, array])
    function, back = payload.load_result(result.to_bytes())
    assert function() == 5
    np.testing.assert_array_equal(back, array)
    assert len(result.buffers) == 1


def test_results_that_dont_pickle() -> None:
    with pytest.raises(ResultPickleError, match=r"_thread\.lock"):
        payload.dump_result(threading.Lock())
    with pytest.raises(ResultPickleError, match="generator"):
        payload.dump_result(x for x in [1])


def test_damaged_results() -> None:
    data = payload.dump_result(np.arange(10_000)).to_bytes()
    with pytest.raises(ResultPickleError, match="cut off"):
        payload.load_result(data[:-1])
    with pytest.raises(ResultPickleError, match="no result"):
        payload.load_result(b"garbage")
