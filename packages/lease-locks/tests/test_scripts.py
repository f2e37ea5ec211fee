"""Memoized functions of scripts: what comes out of the memo is of the script's own classes, and leaves them as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = """
import dataclasses, enum, os, sys
from lease_locks import LeaseManager, MemoizingPicklingRunner, Unmemoized, samethread_shell, subprocess_shell

@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)

class Color(enum.Flag):
    RED = 1
    BLUE = 2

class Outer:
    class Inner:
        def __eq__(self, other):
            return type(self) is type(other)

class Wrong(Exception):
    pass

seen = {}

class Notes:
    def note(self):
        seen["noted"] = True

def made(x):
    Notes().note()
    return Point(x), Color.RED | Color.BLUE, Outer.Inner(), [Point, Wrong], seen["noted"]

def fails(x):
    raise Wrong(x)

def doubled(point):
    return os.getpid(), Point(point.x * 2)

def main(url, shell):
    with LeaseManager(url) as locks:
        runner = MemoizingPicklingRunner(locks, shell=globals()[shell], rerun_exceptions=False)

        def through_a_remote(x):
            return runner.call(doubled, Point(x))

        hit = runner.peek(made, 1) is not None and not isinstance(runner.peek(made, 1), Unmemoized)
        values = runner.call(made, 1)
        expected = Point(1), Color.RED | Color.BLUE, Outer.Inner(), [Point, Wrong], True
        try:
            runner.call(fails, 1)
        except Wrong as error:
            caught = error.args == (1,)
        inner = runner.call(through_a_remote, 5)
        print(hit, values == expected, caught, inner == runner.call(doubled, Point(5)), inner[1] == Point(10))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def run(script: Path, *args: str) -> str:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, str(script), *args],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def written(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "script.py"
    script.write_text(text)
    return script


@pytest.mark.parametrize("shell", ["samethread_shell", "subprocess_shell"])
def test_results_are_of_the_scripts_own_classes_whoever_computed_them(
    tmp_path: Path, shared_url: str, shell: str
) -> None:
    script = written(tmp_path, RUN)
    assert [run(script, shared_url, shell) for _ in range(2)] == [
        "False True True True True",
        "True True True True True",
    ]
    # Another script has a class of that name which does something else: it gets none of its results in its place.
    other = written(tmp_path, RUN.replace("    y: list", "    z: int = 0\n    y: list"))
    assert run(other, shared_url, shell) == "False True True True True"


SPAWNING = """
import dataclasses, multiprocessing, os, sys
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell, subprocess_shell

@dataclasses.dataclass
class Point:
    x: int

def moved(point):
    return os.getpid(), Point(point.x + 1)

def call(shell, url):
    with LeaseManager(url) as locks:
        runner = MemoizingPicklingRunner(locks, shell=globals()[shell], pipeline_id=shell)
        pid, point = runner.call(moved, Point(1))
        return pid, point == Point(2)

if __name__ == "__main__":
    for shell in ("samethread_shell", "subprocess_shell"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            there = pool.apply(call, (shell, sys.argv[1]))
        print(there[1], there == call(shell, sys.argv[1]))
"""


def test_a_script_and_its_processes_of_multiprocessing_share_their_calls(tmp_path: Path, shared_url: str) -> None:
    assert run(written(tmp_path, SPAWNING), shared_url).splitlines() == ["True True", "True True"]


LEFT_ALONE = """
from fdb_schema import open_database
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell

step = 1

class Model:
    known = {}

    def value(self):
        return step

def local():
    class Local(Model):
        def value(self):
            return step
    return Local

def value_of(model):
    return model, model.value()

with LeaseManager(open_database("memory:")) as locks:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
    for kind in (Model, local()):
        step = 1
        method, known = kind.value, kind.known
        first, value = runner.call(value_of, kind())
        step = 2
        again, _ = runner.call(value_of, kind())
        print(value, kind().value(), first.value(), kind.value is method, kind.known is known, type(again) is kind)
"""


def test_the_classes_of_a_script_are_not_changed_by_calls_and_results_of_theirs(tmp_path: Path) -> None:
    assert run(written(tmp_path, LEFT_ALONE)).splitlines() == ["1 2 2 True True True"] * 2


KEYS = """
import dataclasses, pickle, sys
from lease_locks.memo.canonical import identity

@dataclasses.dataclass
class Point:
    x: int = 0

if sys.argv[1] == "pickled":
    pickle.dumps(Point())
print(identity(Point).hex())
"""


def test_what_a_class_is_known_by_is_the_same_after_its_first_pickle(tmp_path: Path) -> None:
    script = written(tmp_path, KEYS)
    assert run(script, "pickled") == run(script, "fresh")


def test_a_class_that_is_sent_again_comes_with_its_state_of_then() -> None:
    """Where it was made it stays; a remote that lives on, as a worker, has what the newest call brought."""
    from lease_locks.memo.pickling import dumps, loads

    def made() -> Any:
        class Model:
            step = 1

        return Model

    kind = made()
    sent = dumps(kind)
    kind.step = 2
    assert loads(sent) is kind
    assert kind.step == 2
    code = (
        "import sys; from lease_locks.memo.pickling import loads; "
        "print([loads(bytes.fromhex(data)).step for data in sys.argv[1:]])"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    there = subprocess.run(
        [sys.executable, "-c", code, sent.hex(), dumps(kind).hex()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert there.stdout.strip() == "[1, 2]", there.stderr


NAMED_ONLY = """
import functools, sys, typing
from lease_locks import LeaseManager, MemoizingPicklingRunner, Unmemoized, subprocess_shell

UserId = typing.NewType("UserId", int)

@functools.lru_cache(maxsize=3, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Model:
    @functools.cached_property
    def step(self):
        return 10
    @functools.cache
    def scaled(self, x):
        return self.step * x

def f(x: UserId) -> UserId:
    return UserId(fib(x) + Model().scaled(x)), fib.cache_parameters()

if __name__ == "__main__":
    with LeaseManager(sys.argv[1]) as locks:
        runner = MemoizingPicklingRunner(locks, shell=subprocess_shell)
        print(not isinstance(runner.peek(f, 7), Unmemoized), runner.call(f, 7), runner.call(fib, 7), runner.call(Model().scaled, 2))
"""


def test_what_is_cached_or_named_only_runs_in_a_remote_too(tmp_path: Path, shared_url: str) -> None:
    """Pickle takes each of these for a name that a remote could import, or finds a lock in it."""
    script = written(tmp_path, NAMED_ONLY)
    found = "(83, {'maxsize': 3, 'typed': True}) 13 20"
    assert [run(script, shared_url) for _ in range(2)] == [f"False {found}", f"True {found}"]


OF_LIBRARIES = """
import sys
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell, Unmemoized

def generated(source):  # as attrs does it: with the hash of a text, which is another one in each process
    made = {}
    exec(compile(source % hash("Point"), "<attrs generated methods __main__.Point>", "exec"), made)
    return made["__hash__"]

class Point:
    __hash__ = generated("def __hash__(self): return hash((%d, self.x))")
    __pydantic_core_schema__ = {"ref": f"Point:{id(generated)}"}  # as pydantic does it
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return type(self) is type(other) and self.x == other.x

def f(x):
    return Point(x)

with LeaseManager(sys.argv[1]) as locks:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
    print(isinstance(runner.peek(f, 1), Unmemoized), runner.call(f, 1) == Point(1))
"""


def test_classes_that_libraries_made_are_the_same_in_every_process(tmp_path: Path, shared_url: str) -> None:
    script = written(tmp_path, OF_LIBRARIES)
    assert [run(script, shared_url) for _ in range(2)] == ["True True", "False True"]


OF_PYDANTIC = """
import inspect, sys
from pydantic import BaseModel, Field, computed_field, field_serializer, field_validator, model_validator
from lease_locks import LeaseManager, MemoizingPicklingRunner, subprocess_shell
from lease_locks.memo.functions import bind

class Settings(BaseModel):
    rate: float = Field(0.1, gt=0)
    more: list["Settings"] = []

    @field_validator("rate", mode="before")
    @classmethod
    def checked(cls, value):
        return value

    @model_validator(mode="after")
    def whole(self):
        return self

    @field_serializer("rate")
    def shown(self, value):
        return value

    @computed_field
    @property
    def double(self) -> float:
        return self.rate * 2

class Other(Settings):
    pass

def f(settings):
    return Settings(), Other()

def key(settings):
    return bind("default", f, (settings,), {}).memo.digest.hex()

if len(sys.argv) > 1:
    with LeaseManager(sys.argv[1]) as locks:
        found = MemoizingPicklingRunner(locks, shell=subprocess_shell).call(key, Other())
    assert found == key(Other())
    inspect.signature(Settings), inspect.signature(Other), Other(more=[Settings()]).model_dump_json()
print(key(Other()))
"""


def test_a_model_of_pydantic_with_validators_has_one_key_in_every_process(tmp_path: Path, shared_url: str) -> None:
    pytest.importorskip("pydantic")
    script = written(tmp_path, OF_PYDANTIC)
    first = run(script)
    assert first == run(script, shared_url)
    for old, new in (('mode="before"', 'mode="after"'), ("gt=0", "gt=1"), ("return value", "return -value")):
        assert run(written(tmp_path, OF_PYDANTIC.replace(old, new))) != first


NAMED_AS_TEXT = """
from __future__ import annotations
import sys, typing
from dataclasses import dataclass
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell, subprocess_shell
from lease_locks.memo.functions import bind

@dataclass
class Part:
    size: int
    def __post_init__(self):
        self.size *= FACTOR

@dataclass
class Whole:
    parts: list["Part"]
    whole: Whole | None = None

def made(x: Part) -> int:
    hints = typing.get_type_hints(Whole, vars(sys.modules["__main__"]))
    return typing.get_args(hints["parts"])[0](x).size

def key(x):
    return bind("default", made, (x,), {}).memo.digest

with LeaseManager(sys.argv[1]) as locks:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
    found = runner.call(made, 1)
    same = MemoizingPicklingRunner(locks, shell=subprocess_shell).call(key, 1) == key(1)
    class Part:
        size = 70
        def __init__(self, x): pass
    print(found, same, runner.call(made, 1))
"""


def test_what_annotations_name_as_text_counts_in_every_process(tmp_path: Path, shared_url: str) -> None:
    """As all annotations do under `from __future__ import annotations`."""
    found = [run(written(tmp_path, NAMED_AS_TEXT.replace("FACTOR", factor)), shared_url) for factor in "232"]
    assert found == ["2 True 70", "3 True 70", "2 True 70"]
