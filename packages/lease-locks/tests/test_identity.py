"""What a call is known by: different behaviour gives a different key, the same source the same one in any process."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import decorated_functions
import drawn_functions
import numpy
import pyarrow
import pytest
from lease_processes import eventually

from fdb_schema import open_database
from lease_locks import (
    LeaseError,
    LeaseManager,
    MemoizingPicklingRunner,
    MemoKeyError,
    samethread_shell,
    subprocess_shell,
)
from lease_locks.memo import remote
from lease_locks.memo.canonical import canonical, identity
from lease_locks.memo.content.classes import body_of
from lease_locks.memo.functions import bind
from lease_locks.memo.pickling import dumps, loads


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


def runner_of(locks: LeaseManager, shell: Any = samethread_shell) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=shell, pipeline_id="demo")


def python(script: str, *args: str, seed: str = "random", **environment: str) -> str:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", script, *args] if "\n" in script else [sys.executable, script, *args]
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, **environment}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def behaviour(source: str) -> str:
    answers = []
    for argument in (0, 1, 2, 5, "12b", (4, 5, 6, 7, 8, 9, 10, 11)):
        try:
            answers.append(repr(drawn_functions.made(source)(argument)))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    for call in (lambda f: f(1, 2), lambda f: f(1, k=2), lambda f: f(x=1)):  # the parameters are behaviour, too
        try:
            answers.append(repr(call(drawn_functions.made(source))))
        except Exception as error:
            answers.append(type(error).__name__)
    return "; ".join(answers)


@pytest.mark.parametrize("seed", range(4))
def test_different_behaviour_has_a_different_key_and_the_same_source_the_same_one(seed: int) -> None:
    drawn = drawn_functions.edits(seed)
    keys = [drawn_functions.key_of(source) for _, source in drawn]
    behaves: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = defaultdict(set)
    for key, (_, source) in zip(keys, drawn, strict=True):
        behaves[key].add(behaviour(source))
        sources[source.strip()].add(key)
    assert [found for found in behaves.values() if len(found) > 1] == [], f"seed {seed}: one key, two behaviours"
    assert [source for source, found in sources.items() if len(found) > 1] == [], f"seed {seed}: one source, two keys"
    assert len(behaves) > 2 * len(drawn_functions.SCRIPTS)


@pytest.mark.parametrize("seed", range(2))
def test_another_process_gives_the_same_keys_whatever_its_hashes(seed: int) -> None:
    here = [drawn_functions.key_of(source) for _, source in drawn_functions.edits(seed)]
    for hashes in ("1", "2"):
        there = python(drawn_functions.__file__, str(seed), seed=hashes).split()
        wrong = {kind for (kind, _), a, b in zip(drawn_functions.edits(seed), here, there, strict=True) if a != b}
        assert wrong == set(), f"seed {seed}, hashes {hashes}"


def test_a_set_of_functions_has_one_key_wherever_they_lie_in_memory() -> None:
    source = (
        "STEPS = {lambda x: x + 1, lambda x: x * 2, lambda x: x - 7, lambda x: x // 3}\ndef f(x): return len(STEPS)"
    )
    spaces: list[dict[str, Any]] = []
    for _ in range(20):
        spaces.append({"__name__": "__main__"})
        exec(source, spaces[-1])
    orders = {tuple(step.__code__.co_firstlineno + step(100) for step in space["STEPS"]) for space in spaces}
    assert len(orders) > 1, "they come in different orders"
    assert len({bind("p", space["f"], (1,), {}).memo.digest for space in spaces}) == 1


def test_a_path_goes_by_its_name_and_not_by_its_content(locks: LeaseManager, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    runner = runner_of(locks)

    def read(path: Path) -> str:
        return path.read_text()

    assert runner.call(read, file) == "one"
    file.write_text("two")
    assert runner.call(read, file) == "one"
    assert runner.call(read, file.rename(tmp_path / "other")) == "two"


# --- decorators


def test_a_decorator_under_the_runner_runs(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    assert runner.memoize(decorated_functions.plainly_doubled)(3) == 6
    assert runner.call(decorated_functions.plainly_doubled, 3) == 6
    assert decorated_functions.memoized(runner)(3) == 12
    assert runner.call(decorated_functions.doubled(decorated_functions.identical), 3) == 6
    assert runner.call(decorated_functions.identical, 3) == 3


def test_a_decorator_runs_in_a_remote_of_another_process(shared_url: str) -> None:
    with LeaseManager(shared_url, cluster="demo") as locks:
        runner = runner_of(locks, subprocess_shell)
        assert runner.call(decorated_functions.plainly_doubled, 3) == 6
        assert runner.call(decorated_functions.doubled(decorated_functions.identical), 3) == 6


def test_a_decorator_gets_the_arguments_that_the_caller_gave(locks: LeaseManager) -> None:
    assert runner_of(locks).call(decorated_functions.with_another_default, 1) == (1, 9)
    assert runner_of(locks).call(decorated_functions.with_another_default, 1, k=2) == (1, 2)


def test_a_memoized_function_counts_as_the_function_itself(locks: LeaseManager) -> None:
    runner, other = runner_of(locks), MemoizingPicklingRunner(locks, pipeline_id="other")
    f = decorated_functions.identical
    plain = bind("p", f, (1,), {}).memo
    assert bind("p", runner.memoize(f), (1,), {}).memo == plain
    assert bind("p", other.memoize(runner.memoize(f)), (1,), {}).memo == plain
    assert bind("p", decorated_functions.doubled(runner.memoize(f)), (1,), {}).memo != plain


def test_what_says_that_it_is_found_by_a_name_is_looked_for_there(
    locks: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    """C callables: a cache around a nested function, a ufunc made of a lambda. Their names are held by no module."""
    runner = runner_of(locks)
    assert [runner.call(decorated_functions.cached(step), 1) for step in (1, 2, 1)] == [2, 3, 2]
    assert canonical(decorated_functions.held) == canonical(pickle.loads(pickle.dumps(decorated_functions.held)))

    def adding(step: int) -> Callable[[int], int]:
        add = numpy.frompyfunc(lambda x: x + step, 1, 1)
        return lambda x: int(add(x))

    assert [runner.call(adding(step), 1) for step in (1, 2)] == [2, 3]
    assert "no module holds it by that name" in caplog.text
    with pytest.raises(MemoKeyError, match="no module holds it by that name"):
        canonical(numpy.frompyfunc(lambda x: x, 1, 1))


def loaded_from_a_file(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shell", [samethread_shell, subprocess_shell])
def test_a_module_that_is_not_imported_under_its_name_counts_by_what_it_holds(
    shared_url: str, tmp_path: Path, shell: Any
) -> None:
    text = "import os\nRATE = 1\ndef rate(): return RATE * STEP\nSTEP = 1"
    texts = [text, text.replace("RATE = 1", "RATE = 2"), text.replace("RATE *", "3 *")]
    configs = [loaded_from_a_file(tmp_path / f"{number}.py", text) for number, text in enumerate(texts)]

    def using(config: types.ModuleType) -> Callable[[], int]:
        return lambda: config.rate()

    with LeaseManager(shared_url) as manager:
        runner = runner_of(manager, shell)
        assert [runner.call(using(config)) for config in configs] == [1, 2, 3]
        assert [runner.call(lambda config: config.rate(), config) for config in configs] == [1, 2, 3]
    assert canonical(configs[0]) == canonical(loaded_from_a_file(tmp_path / "elsewhere.py", text))
    kinds = [type("Kind", (types.ModuleType,), {"rate": rate}) for rate in (1, 2)]
    assert canonical(kinds[0]("config")) != canonical(kinds[1]("config"))
    assert canonical(os.path) == b"m" + (9).to_bytes(8, "big") + b"posixpath"


@pytest.mark.parametrize("base", [set, frozenset])
def test_a_set_of_a_class_with_slots_counts_with_what_they_hold(base: type) -> None:
    kind = type("Slotted", (base,), {"__slots__": ("scale",)})
    one, other, same = kind("a"), kind("a"), kind("a")
    one.scale, other.scale, same.scale = 1, 2, 1
    assert canonical(one) == canonical(same) != canonical(other)


def test_the_logic_key_of_a_cached_function_counts_where_it_is_referred_to() -> None:
    before = canonical(decorated_functions.held)
    decorated_functions.held.__doc__ = "function-logic-key: other"
    try:
        assert canonical(decorated_functions.held) != before
    finally:
        decorated_functions.held.__doc__ = None


def test_classes_that_are_equal_are_told_apart(locks: LeaseManager) -> None:
    first, second = decorated_functions.classes_alike()
    assert first == second
    assert [runner_of(locks).call(lambda kind: kind.value, kind) for kind in (first, second)] == [1, 2]


# --- scripts

SCRIPT = """
import sys
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
with LeaseManager(sys.argv[1]) as locks:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)

    @runner.memoize
    def process(x):
        return BODY

    print(process(1))
"""


def test_two_scripts_do_not_share_results(shared_url: str) -> None:
    scripts = [SCRIPT.replace("BODY", body) for body in ("'invoice'", "'refund'", "'invoice'")]
    assert [python(script, shared_url).strip() for script in scripts] == ["invoice", "refund", "invoice"]


FAILS_THEN_IS_MENDED = """
import sys
from lease_locks import LeaseManager, MemoizingPicklingRunner, subprocess_shell

def process(x):
    '''Fails, or not.

    function-logic-key: constant
    '''
    MEND or 1 / 0
    return x + 1

if __name__ == "__main__":
    with LeaseManager(sys.argv[1]) as locks:
        runner = MemoizingPicklingRunner(locks, shell=subprocess_shell)
        try:
            print(runner.call(process, 1))
        except ZeroDivisionError:
            print("failed")
"""


def test_a_function_that_failed_and_was_mended_runs_its_new_code(shared_url: str) -> None:
    scripts = [FAILS_THEN_IS_MENDED.replace("MEND", mend) for mend in ("False", "True")]
    assert [python(script, shared_url).strip() for script in scripts] == ["failed", "2"]


class Payload:
    """Equal to every other in its key, different in what it carries."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __memo_key__(self) -> str:
        return "one"


def shout(payload: Payload) -> str:
    if not payload.text:
        raise ValueError("nothing to shout")
    return payload.text[:3].upper()


@pytest.mark.parametrize("size", [3, 40_000])
def test_a_call_made_again_after_a_failure_is_made_as_it_is_now(locks: LeaseManager, size: int) -> None:
    runner = runner_of(locks)
    with pytest.raises(ValueError, match="nothing"):
        runner.call(shout, Payload(""))
    with pytest.raises(ValueError, match="nothing"):
        runner.call(shout, Payload(""))
    assert runner.call(shout, Payload("abc" * size)) == "ABC"


@pytest.mark.parametrize(
    "code", ["def process(x):\n    return helper(x)\ndef helper(x):\n    return x + STEP\nSTEP = 1"]
)
def test_what_a_script_defines_after_its_function_counts(code: str) -> None:
    def key(source: str) -> bytes:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(source, space)
        return bind("p", space["process"], (1,), {}).memo.digest

    assert key(code) == key("\n\n" + code)
    assert key(code) != key(code.replace("STEP = 1", "STEP = 2"))


# --- what a function refers to, and its lifetime


def test_state_that_a_function_changes_as_it_runs_does_not_change_its_key(locks: LeaseManager) -> None:
    runs: list[int] = []

    @runner_of(locks).memoize
    def f(x: int) -> int:
        runs.append(x)
        return x

    assert [f(1), f(1), f(2), f(1)] == [1, 1, 2, 1]
    assert runs == [1, 2]


REBOUND = """
STEP, MORE = 5, [1]
runs = seen = 0
def note():
    global seen
    seen += 1
def helper(x):
    return x * STEP + MORE[0]
def process(x):
    global runs
    runs += 1
    note()
    return helper(x)
"""


@pytest.mark.parametrize(("name", "value"), [("STEP", 6), ("MORE", [2]), ("helper", abs)])
def test_a_name_that_is_bound_anew_counts_from_then_on(locks: LeaseManager, name: str, value: Any) -> None:
    """Else what is computed with the new value would be found where the old one was meant, by other processes too."""
    space, fresh = [dict[str, Any](__name__="__main__") for _ in range(2)]
    for each in (space, fresh):
        exec(REBOUND, each)
    runner = runner_of(locks)
    assert runner.call(space["process"], 1) == 6
    assert runner.call(space["process"], 1) == 6
    assert space["runs"] == 1
    space[name] = value
    assert runner.call(space["process"], 2) == {"STEP": 13, "MORE": 12, "helper": 2}[name]
    assert runner.call(fresh["process"], 2) == 11
    assert runner.call(fresh["process"], 1) == 6
    assert fresh["runs"] == 1


ORDERED = """
import abc
import dataclasses
import enum
import functools
import sys
import typing
class Steps:
    wash = 1
    rinse = 2
    def dry(self): ...
    coat = 3
class Slotted:
    __slots__ = ("z", "a")
    b = 1
    a_method = print
class Told(abc.ABC):
    z: int
    a: int
Told.register(int)
class Shaped(typing.Protocol):
    z: int
    b: str = ""
    def a(self): ...
class Pair(typing.NamedTuple):
    z: int
    a: int = 1
@dataclasses.dataclass
class Data:
    z: int
    a: int = 1
class Named(enum.Enum):
    def _generate_next_value_(name, start, count, last):
        return name
    Z = enum.auto()
    A = enum.auto()
class Shape(Shaped):
    def a(self): ...
class Choosing:
    @functools.singledispatchmethod
    def a(self, x): ...
    @a.register
    def _(self, x: int): ...
Alias = int
if sys.version_info >= (3, 12):
    exec("type Alias = Steps")
class Aliased:
    other = Alias
KINDS = [Steps, Slotted, Told, Shaped, Pair, Data, Named, Shape, Choosing, Aliased]
"""
ELSEWHERE = """
import pickle, sys
from lease_locks.memo.canonical import identity
for kind in pickle.load(sys.stdin.buffer):
    print(identity(kind).hex(), *(name for name in vars(kind) if name[0] != "_"))
"""


def test_a_class_of_a_script_is_in_a_remote_what_it_is_here_its_order_too() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(ORDERED, space)
    command = [sys.executable, "-c", ELSEWHERE]
    ran = subprocess.run(command, input=dumps(space["KINDS"]), capture_output=True, check=True, timeout=120)
    there = [line.split() for line in ran.stdout.decode().splitlines()]
    assert there[0][1:] == ["wash", "rinse", "dry", "coat"]
    assert [one[0] for one in there] == [identity(kind).hex() for kind in space["KINDS"]]


def test_a_class_of_a_protocol_has_one_key_whether_or_not_there_was_an_instance_of_it() -> None:
    fresh, used = [dict[str, Any](__name__="__main__") for _ in range(2)]
    exec(ORDERED, fresh)
    exec(ORDERED, used)
    used["Shape"]()
    assert identity(used["Shape"]) == identity(fresh["Shape"])
    exec(ORDERED.replace("class Shape(Shaped):", "class Shape(Shaped):\n    def __init__(self): self.n = 1"), used)
    assert identity(used["Shape"]) != identity(fresh["Shape"])


DOCUMENTED = """
from dataclasses import dataclass, field
class Prompt:
    \"\"\"Answer in French.\"\"\"
@dataclass
class Generated:
    n: object = field(default=object())
"""


OF_A_MODULE = """
WORD, TABLE = "one two three", {"a": [1, 2]}
def made(n):
    return lambda x: (WORD, TABLE, n, x)
"""


def test_a_nested_function_of_a_module_has_its_key_in_a_remote_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its globals are copies of what the module holds."""
    module = types.ModuleType("holds_a_word")
    exec(OF_A_MODULE, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    function = module.made(1)
    there = loads(dumps(function))
    assert there.__globals__ is not function.__globals__
    assert identity(there) == identity(function) != identity(module.made(2))


WITH_A_CLASS = """
def f(x):
    class Inner:
        size = 1
        def doubled(self):
            return x * 2
    return Inner
"""


@pytest.mark.parametrize("lines", [1, 3, 400])
def test_the_line_on_which_a_class_within_a_function_stands_is_no_part_of_its_key(lines: int) -> None:
    """Which the code of its body has in it from Python 3.13 on."""
    known = identity(drawn_functions.made(WITH_A_CLASS))
    assert identity(drawn_functions.made("# why\n" * lines + WITH_A_CLASS)) == known
    for old, new in (("size = 1", "size = 2"), ("size = 1", "size = 3"), ("x * 2", "x * 3")):
        assert identity(drawn_functions.made(WITH_A_CLASS.replace(old, new))) != known


@pytest.mark.parametrize("kind", ["Flag", "IntFlag"])
def test_a_flag_has_one_key_whatever_was_made_of_its_members(kind: str) -> None:
    def made(members: str = "A=1;B=2") -> Any:
        space: dict[str, Any] = {}
        exec(f"import enum\nclass F(enum.{kind}): {members}", {"__name__": "__main__"}, space)
        return space["F"]

    used = made()
    assert used.A | used.B and used(3) and ~used.A
    assert canonical(made().A) == canonical(used.A)
    assert canonical(made()(3)) == canonical(used.A | used.B)
    assert len({canonical(one.A) for one in (made(), made("A=1;B=4"), made("A=1;B=2;C=2"), made("A=1;B=2;C=3"))}) == 4


def test_the_docstring_of_a_class_counts_but_not_what_dataclasses_make_of_its_signature() -> None:
    spaces = [dict[str, Any](__name__="__main__") for _ in range(3)]
    for space, text in zip(spaces, (DOCUMENTED, DOCUMENTED, DOCUMENTED.replace("French", "English")), strict=True):
        exec(text, space)
    first, again, edited = ([identity(space[name]) for name in ("Prompt", "Generated")] for space in spaces)
    assert first[0] == again[0] != edited[0]
    assert "object at 0x" in spaces[0]["Generated"].__doc__
    assert [name for name, _ in body_of(spaces[0]["Generated"]) if name == "__doc__"] == []


CLOSED_OVER = """
import enum
class Named(enum.Enum):
    def _generate_next_value_(name, start, count, last):
        return name.lower()
def made():
    n = 0
    def inc():
        nonlocal n
        n += 1
    def get():
        return n
    return inc, get
inc, get = made()
TOLD = []
class Base:
    __slots__ = ("x", "__y")
    def __init_subclass__(cls, *, tag):
        TOLD.append(tag)
class Sub(Base, tag="sub"):
    __slots__ = ()
class Long:
    seconds = 60
class Middle(Long):
    pass
class Short:
    seconds = 30
class Again(Middle, Short):
    seconds = 30  # as the second base has it
def process():
    inc()
    inc()
    return get(), TOLD, hasattr(Sub(), "__dict__"), [one.value for one in Named("Colour", "RED BLUE")], Again.seconds
"""
CALLED = """
import sys
from lease_locks.memo.pickling import loads
print(loads(sys.stdin.buffer.read())())
"""


def test_a_function_of_a_script_does_in_a_remote_what_it_does_here() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(CLOSED_OVER, space)
    command = [sys.executable, "-c", CALLED]
    ran = subprocess.run(command, input=dumps(space["process"]), capture_output=True, check=True, timeout=120)
    assert ran.stdout.decode().strip() == str(space["process"]()) == "(2, ['sub'], False, ['red', 'blue'], 30)"


REGISTERED = """
import abc
import functools
class Base(abc.ABC):
    pass
@functools.singledispatch
def shown(x):
    return "something"
def process(x):
    return shown(x), isinstance(x, Base)
"""


@pytest.mark.parametrize("more", ["Base.register(int)", "@shown.register\ndef _(x: int):\n    return 'a number'"])
def test_what_is_registered_later_counts_from_then_on(locks: LeaseManager, more: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(REGISTERED, space)
    runner = runner_of(locks)
    assert [runner.call(space["process"], 1) for _ in range(2)] == [("something", False)] * 2
    exec(more, space)
    assert runner.call(space["process"], 1) == space["process"](1) != ("something", False)
    again: dict[str, Any] = {"__name__": "__main__"}
    exec(REGISTERED + more, again)
    keys = {bind("p", made["process"], (1,), {}).memo.digest for made in (space, again)}
    assert len(keys) == 1, "the same, whenever it was registered"


@pytest.mark.parametrize("make", [lambda n: [n], lambda n: {0: n}, lambda n: (n, [])], ids=["list", "dict", "tuple"])
def test_what_comes_to_lie_where_the_former_value_did_counts(locks: LeaseManager, make: Callable[[int], Any]) -> None:
    space = dict[str, Any](__name__="__main__", data=make(1))
    exec("def f(): return data[0]", space)
    runner = runner_of(locks)
    assert runner.call(space["f"]) == 1
    place = id(space["data"])
    del space["data"]
    others = []
    for _ in range(1_000):
        space["data"] = make(2)
        if id(space["data"]) == place:
            break
        others.append(space["data"])
    assert runner.call(space["f"]) == 2


def test_a_name_that_is_bound_to_none_once_its_value_is_gone_counts(locks: LeaseManager) -> None:
    space = dict[str, Any](__name__="__main__", data={1, 2})
    exec("def f(): return 0 if data is None else len(data)", space)
    runner = runner_of(locks)
    assert runner.call(space["f"]) == 2
    space["data"] = None
    assert runner.call(space["f"]) == 0


NAMESAKES = """
scale = 2
def norm(x):
    scale = 10
    return (lambda: x / scale)()
def counting():
    scale = 0
    def count():
        nonlocal scale
        scale += 1
    return count
count = counting()
def f(x):
    count()
    return norm(x) * scale
"""


def test_a_local_of_the_same_name_is_not_what_a_global_is(locks: LeaseManager) -> None:
    space = dict[str, Any](__name__="__main__")
    exec(NAMESAKES, space)
    runner = runner_of(locks)
    assert runner.call(space["f"], 10) == runner.call(space["f"], 10) == 2
    space["scale"] = 3
    assert runner.call(space["f"], 10) == 3


class Rebinding:
    """An argument that binds a name anew when it is pickled, as another thread may at any moment."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space

    def __memo_key__(self) -> str:
        return "always the same"

    def __reduce__(self) -> tuple[Any, ...]:
        self.space["n"] = 2
        return int, (7,)


@pytest.mark.parametrize("when", ["pickled", "started"])
def test_what_is_bound_anew_while_a_call_begins_is_stored_under_its_own_key(shared_url: str, when: str) -> None:
    space = dict[str, Any](__name__="__main__", n=1)
    exec("def f(x): return n", space)

    def shell(args: Sequence[str]) -> None:
        if when == "started":
            space["n"] = 2
        remote.main([arg for arg in args if when == "started" or not arg.startswith("--in-process")])

    with LeaseManager(shared_url, cluster="demo") as locks:
        runner = runner_of(locks, shell)
        argument = Rebinding(space) if when == "pickled" else 7
        assert runner.call(space["f"], argument) == 2
        assert runner.peek(space["f"], argument) == 2
        space["n"] = 1
        assert not runner.peek(space["f"], argument)


class Batch:
    """The object of a call, and its argument."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def total(self) -> int:
        return sum(self.values)


def total(values: list[int]) -> int:
    return sum(values)


@pytest.mark.parametrize("what", ["argument", "object"])
def test_what_changes_while_its_call_waits_for_the_lock_is_computed_under_its_own_key(
    locks: LeaseManager, what: str
) -> None:
    """A buffer that is filled again: else everybody would get the next one's result as that of the first."""
    runner, batch = runner_of(locks), Batch(1)

    def call(values: Batch) -> tuple[Any, ...]:
        return (total, values.values) if what == "argument" else (values.total,)

    lock = bind("demo", *call(batch)[:1], call(batch)[1:], {}).memo.lock_name
    held = locks.acquire(lock)
    future = runner.submit(*call(batch))
    eventually(lambda: locks.read(lock).waiters, "it waits")  # type: ignore[union-attr]
    batch.values.append(10)
    held.release()
    assert future.result(60) == 11
    assert runner.peek(*call(Batch(1, 10))) == 11
    assert not runner.peek(*call(Batch(1)))
    assert runner.call(*call(Batch(1))) == 1


def test_an_object_that_changes_before_its_method_runs_in_this_process_is_called_under_its_own_key(
    locks: LeaseManager,
) -> None:
    batch = Batch(1)

    def shell(args: Sequence[str]) -> None:
        if batch.values == [1]:
            batch.values.append(10)
        samethread_shell(args)

    runner = runner_of(locks, shell)
    assert runner.call(batch.total) == 11
    assert not runner.peek(Batch(1).total)


def test_an_argument_that_is_never_the_same_twice_is_refused(locks: LeaseManager) -> None:
    class Restless(list[int]):
        def __memo_key__(self) -> int:
            self.append(1)
            return len(self)

    with pytest.raises(LeaseError, match=r"argument 'values' of .*total changed while it was called: pass a copy"):
        runner_of(locks).call(total, Restless())
    assert locks.list() == []


def test_a_name_that_is_bound_anew_at_every_beginning_ends_no_call(locks: LeaseManager) -> None:
    space = dict[str, Any](__name__="__main__", n=1)
    exec("def f(): return n", space)

    def shell(args: Sequence[str]) -> None:
        space["n"] += 1
        samethread_shell(args)

    assert runner_of(locks, shell).call(space["f"]) == space["n"]


def test_what_a_function_closes_over_is_looked_at_again_where_it_was_bound_anew(locks: LeaseManager) -> None:
    def made() -> tuple[Callable[[int], int], Callable[[int], None], list[int]]:
        step, runs, calls = 1, 0, list[int]()

        def f(x: int) -> int:
            nonlocal runs
            runs += 1
            calls.append(x)
            return x + step

        def change(to: int) -> None:
            nonlocal step
            step = to

        return f, change, calls

    runner = runner_of(locks)
    f, change, calls = made()
    assert [runner.call(f, 1), runner.call(f, 1), runner.call(f, 2)] == [2, 2, 3]
    change(10)
    assert [runner.call(f, 1), runner.call(f, 3)] == [11, 13]
    other, _, _ = made()
    assert runner.call(other, 3) == 4
    f.__defaults__ = (7,)
    assert runner.call(f) == 17
    assert calls == [1, 2, 1, 3, 7]


def test_what_does_not_pickle_runs_in_this_process_and_is_shared_with_no_other_function(
    locks: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    def using(lock: Any, value: int) -> Callable[[], int]:
        holder = [lock, value]

        def f() -> int:
            with holder[0]:
                return holder[1]

        return f

    runner = runner_of(locks)
    lock = threading.Lock()
    first, second = using(lock, 1), using(lock, 2)
    assert [runner.call(f) for f in (first, second, first)] == [1, 2, 1]
    assert "'holder'" in caplog.text
    assert "in this process only" in caplog.text


GUARDED = """
import threading
class guarded:
    def __init__(self, function):
        self.lock, self.function = threading.Lock(), function
    def __get__(self, job, kind=None):
        return lambda: self.function(job)
class Job:
    @guarded
    def compute(self):
        return STEP
def process(job):
    return job.compute()
"""


def test_a_scripts_class_with_a_part_that_does_not_pickle_is_not_taken_for_its_earlier_self() -> None:
    def key(source: str) -> bytes:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(source, space)
        return bind("p", space["process"], (space["Job"](),), {}).memo.digest

    assert key(GUARDED.replace("STEP", "1")) != key(GUARDED.replace("STEP", "2"))


def test_what_does_not_pickle_is_named_where_another_process_is_to_run_it(shared_url: str) -> None:
    lock = threading.Lock()
    with (
        LeaseManager(shared_url, cluster="demo") as locks,
        pytest.raises(MemoKeyError, match=r"can't be sent to another process.*samethread_shell"),
    ):
        runner_of(locks, subprocess_shell).call(lambda: bool(lock))


def test_functions_that_were_called_are_not_kept_alive(locks: LeaseManager) -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = [1, 2, 3]

        def total(self) -> int:
            return sum(self.weights)

    def called() -> list[Any]:
        model, data = Model(), Model()

        def closure() -> int:
            return data.total()

        assert runner.call(model.total) == runner.call(closure) == 6
        return [weakref.ref(model), weakref.ref(data), weakref.ref(closure)]

    runner = runner_of(locks)
    gone = called()
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


@dataclass
class Scaled:
    factor: int

    def __call__(self, x: int) -> int:
        return self.factor * x


def test_a_dataclass_that_is_called_needs_no_hash(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    assert [runner.call(Scaled(2), 5), runner.call(Scaled(3), 5)] == [10, 15]


def test_functions_of_a_script_may_refer_to_their_runner_and_one_another(locks: LeaseManager) -> None:
    source = textwrap.dedent("""
        @runner.memoize
        def f(x):
            return x + 1
        @runner.memoize
        def g(x):
            return f(x) * 10 + runner.call(f, x)
    """)

    def key(manager: LeaseManager) -> bytes:
        space: dict[str, Any] = {"__name__": "__main__", "runner": runner_of(manager)}
        exec(source, space)
        assert space["g"](1) == 22
        return identity(space["g"].__wrapped__)

    with LeaseManager(open_database("memory:"), cluster="demo") as other:
        assert key(locks) == key(other)


def test_a_long_chain_of_functions_of_a_script_has_a_key() -> None:
    lines = [f"def f{n}(x):\n    return f{n + 1}(x) + f{(n * 7) % 2000}(x)" for n in range(2000)]
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("\n".join([*lines, "def f2000(x):\n    return x"]), space)
    assert bind("p", space["f0"], (1,), {}).memo.function == "__main__--f0"


# --- arguments


def test_arguments_that_only_copyreg_can_take_apart_have_keys() -> None:
    import re

    patterns = [re.compile("a"), re.compile("a"), re.compile("a", re.IGNORECASE), numpy.sin, numpy.cos]
    first, again, other, sin, cos = [canonical(value) for value in patterns]
    assert first == again
    assert len({first, other, sin, cos}) == 4


def test_sets_of_a_subclass_are_told_by_content_not_by_hashes() -> None:
    script = """
from lease_locks.memo.canonical import canonical_digest
class Names(frozenset): pass
print(canonical_digest([Names(["ab", "cd", "ef", "gh"]), {"ab", "x", "y"}, {"k": {"ab", "cd"}}]).hex())
"""
    assert len({python(script, seed=str(n)) for n in range(3)}) == 1


def test_a_dict_of_a_subclass_that_is_ordered_is_told_by_its_order() -> None:
    one, other = [decorated_functions.Ordered(pairs) for pairs in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])]
    assert one != other
    assert canonical(one) != canonical(other)


def test_a_memo_key_of_a_class_takes_the_place_of_its_pickle() -> None:
    one, other = bind("p", shout, (Payload("a"),), {}), bind("p", shout, (Payload("b"),), {})
    assert one.memo == other.memo


# --- what can't be memoized


async def coroutine() -> int:
    return 1


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator])
def test_what_does_not_return_its_value_is_refused_before_it_runs(locks: LeaseManager, function: Any) -> None:
    runner = runner_of(locks)
    with pytest.raises(MemoKeyError, match=r"is a (coroutine|generator) function: .* wrap it"):
        runner.memoize(function)
    with pytest.raises(MemoKeyError, match="wrap it"):
        runner.call(function)


@pytest.mark.parametrize("what", [property, classmethod])
def test_what_cannot_be_called_is_refused_where_it_is_decorated(locks: LeaseManager, what: Any) -> None:
    with pytest.raises(MemoKeyError, match="put the runner's below that one"):
        runner_of(locks).memoize(what(lambda self: 1))


@pytest.mark.parametrize("pipeline", [b"bytes", None, "", "line\nbreak", 7, "x" * 300])
def test_a_pipeline_id_that_is_no_name_is_refused_at_once(locks: LeaseManager, pipeline: Any) -> None:
    with pytest.raises(ValueError, match="pipeline_id"):
        MemoizingPicklingRunner(locks, pipeline_id=pipeline)


def test_a_result_that_does_not_pickle_is_told_from_a_function_that_failed(locks: LeaseManager) -> None:
    from lease_locks import UnpicklableResult

    with pytest.raises(
        UnpicklableResult, match=r"the function returned, but the result of .*, a lock, can't be stored"
    ):
        runner_of(locks).call(lambda: threading.Lock())


class Needy(Exception):
    """Pickles, and can't be made again; has no text."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        raise LookupError("no text")


def test_a_result_that_does_not_unpickle_is_told_with_what_to_do(locks: LeaseManager) -> None:
    from lease_locks import UnpicklableResult

    runner = runner_of(locks)
    for _ in range(2):
        with pytest.raises(
            UnpicklableResult, match=r"can't be unpickled here: TypeError.*`lease-locks invalidate memo:"
        ):
            runner.call(lambda: [Needy("a", "b")])


def test_a_failure_without_a_text_is_the_functions_failure(locks: LeaseManager) -> None:
    def fail() -> None:
        raise Needy("a", "b")

    with pytest.raises(Needy) as caught:
        runner_of(locks).call(fail)
    assert caught.value.args == ("a",)
    assert "its text raises LookupError" in str(caught.value)


def test_a_result_is_not_another_functions(locks: LeaseManager, tmp_path: Path) -> None:
    runner = runner_of(locks)
    assert runner.call(lambda xs: [x + "a" for x in xs], ["1"]) == ["1a"]
    assert runner.call(lambda xs: [x + "b" for x in xs], ["1"]) == ["1b"]


def test_defaults_are_those_of_each_function_though_one_code_makes_many() -> None:
    def make(default: Any) -> Callable[..., Any]:
        def f(x: int, k: Any = default, *rest: int, flag: Any = default, **more: int) -> Any:
            return x, k, flag

        return f

    for default in ([1], {"a": 1}, None):
        call = bind("p", make(default), (5,), {})
        assert dict(call.bound) == {"x": 5, "k": default, "rest": (), "flag": default, "more": {}}
        assert call.args == (5, default)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        bind("p", make(1), (), {})


# --- arrays and frames


class DataFrame:
    """What a key takes of pandas' frame: its columns, its index and its attributes; how it holds them is its own."""

    __module__ = "pandas"

    class _Column:
        def __init__(self, array: numpy.ndarray[Any, Any]) -> None:
            self.array = array

    def __init__(self, columns: dict[str, list[Any]], *, blocks: int, index: list[int], attrs: dict[str, Any]) -> None:
        self.columns, self.index, self.attrs = list(columns), index, attrs
        values = [numpy.array(values) for values in columns.values()]
        self.shape = (len(index), len(values))
        self.blocks = [values[at : at + blocks] for at in range(0, len(values), blocks)]

    @property
    def iloc(self) -> DataFrame:
        return self

    def __getitem__(self, where: tuple[slice, int]) -> _Column:
        return self._Column([each for block in self.blocks for each in block][where[1]])


OldDataFrame = type("DataFrame", (DataFrame,), {"__module__": "pandas.core.frame"})  # before version 3


def frame(
    blocks: int = 1, index: tuple[int, ...] = (0, 1), attrs: Any = None, kind: Any = DataFrame, **columns: list[Any]
) -> bytes:
    chosen = {"a": [1, 2], "b": [3.0, 4.0], **columns}
    return canonical(kind(chosen, blocks=blocks, index=list(index), attrs=attrs or {}))


def test_a_frame_has_the_key_of_its_columns_however_it_holds_them() -> None:
    assert frame(1) == frame(2) == frame(kind=OldDataFrame)
    others = [
        frame(),
        frame(index=(1, 2)),
        frame(a=[1, 3]),
        frame(a=[1.0, 2.0]),
        frame(c=[1, 2]),
        frame(attrs={"k": 1}),
    ]
    assert len(set(others)) == len(others)


class Masked:
    """As pandas' arrays whose state is a dict: what was asked of one is in it, and from version 3 on whether it is lent."""

    __module__ = "pandas.arrays"

    def __init__(self, values: Any, **more: Any) -> None:
        self._data = numpy.array(values)
        vars(self).update(more)


class Backed:
    """As those whose state is a tuple, which has more parts once something was asked."""

    __module__ = "pandas.arrays"

    def __init__(self, values: Any, **more: Any) -> None:
        self.values, self.more = numpy.array(values), more

    def __reduce__(self) -> Any:
        return Backed, (None,), ("dtype", self.values, self.more) if self.more else ("dtype", self.values)


class Derived(Masked):
    """Somebody's own, of another module."""

    __module__ = __name__


@pytest.mark.parametrize("kind", [Masked, Backed, Derived])
def test_an_array_of_pandas_has_one_key_whatever_it_was_asked(kind: Any) -> None:
    plain = canonical(kind([1, 2]))
    for asked in ({"_cache": {}}, {"_cache": {"dtype": "Int64"}}, {"_readonly": True, "_cache": {"_creso": 9}}):
        assert canonical(kind([1, 2], **asked)) == plain
        assert canonical(kind([1, 3], **asked)) != plain
    assert canonical(kind([1, 2], freq="D")) != plain


def test_an_array_has_the_key_of_its_type_shape_and_values_however_it_lies_in_memory() -> None:
    plain = numpy.arange(6).reshape(2, 3)
    for same in (numpy.asfortranarray(plain), numpy.arange(12).reshape(2, 6)[:, :3] * 0 + plain, plain.copy()):
        assert canonical(same) == canonical(plain)
    assert canonical(numpy.arange(10)[::2]) == canonical(numpy.arange(10)[::2].copy())
    others = [
        plain,
        plain.reshape(3, 2),
        plain.astype("i4"),
        plain.astype("f8"),
        plain + 1,
        plain.astype(">i8"),
        plain.tolist(),
        *(numpy.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, at]}) for at in (2, 6)),
    ]
    assert len({canonical(each) for each in others}) == len(others)


def test_a_masked_array_has_one_key_whether_or_not_it_was_shown() -> None:
    def made(values: Any = (1.0, 2.0), mask: Any = (0, 1), **more: Any) -> Any:
        return numpy.ma.masked_array(values, mask, **more)

    shown = made()
    repr(shown)
    copied = pickle.loads(pickle.dumps(made()))
    assert (
        canonical(made())
        == canonical(shown)
        == canonical(copied)
        == canonical(numpy.ma.masked_array([1.0, 2.0], [0, 1]))
    )
    assert canonical(numpy.ma.masked_array([1.0])) == canonical(numpy.ma.masked_array([1.0], [0]))
    others = [made(), made((1.0, 3.0)), made(mask=(1, 0)), made(fill_value=7), made((1, 2)), made().data]
    assert len({canonical(each) for each in others}) == len(others)


class Distribution:
    """As those of `scipy.stats`: it holds the generator that numpy has for all."""

    def __init__(self, generator: Any = None, width: float = 1.0) -> None:
        self.width = width
        self.generator = generator or numpy.random.mtrand._rand


def test_what_holds_the_generator_that_numpy_has_for_all_counts_without_its_state() -> None:
    before = canonical(Distribution())
    numpy.random.random()
    assert canonical(Distribution()) == before
    own = [canonical(Distribution(numpy.random.RandomState(seed))) for seed in (1, 1, 2)]
    assert own[0] == own[1] != own[2]
    assert len({before, *own, canonical(Distribution(width=2.0))}) == 4


def test_tables_of_arrow_have_keys() -> None:
    tables = [pyarrow.table({"a": [1, 2], "b": ["x", None]}) for _ in range(2)]
    assert canonical(tables[0]) == canonical(tables[1]) == canonical(pickle.loads(pickle.dumps(tables[0])))
    others = [
        tables[0],
        tables[0].rename_columns(["a", "c"]),
        tables[0].slice(1),
        pyarrow.table({"a": [1, 3], "b": ["x", None]}),
        pyarrow.table({"a": pyarrow.array([1, 2], "int32"), "b": ["x", None]}),
    ]
    assert len({canonical(each) for each in others}) == len(others)


def test_code_comes_with_the_name_of_its_file_also_by_a_cloudpickle_that_leaves_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = cloudpickle.Pickler._dispatch_table
    plain = table[types.CodeType]

    def without(code: types.CodeType) -> Any:  # as from 3.1.3 on
        make, args = plain(code)
        return make, tuple("<dynamic-code>" if arg == code.co_filename else arg for arg in args)

    monkeypatch.setitem(table, types.CodeType, without)
    space: dict[str, Any] = {"__name__": "__main__"}
    text = "def outer(x):\n    def inner():\n        return x\n    return inner\n"
    exec(compile(text, "/home/me/run.py", "exec"), space)
    for function in (space["outer"], space["outer"](1)):
        assert loads(dumps(function)).__code__.co_filename == "/home/me/run.py"
