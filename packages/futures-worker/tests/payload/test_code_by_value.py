"""What goes by value: modules registered late, attributes set late, code of another Python."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import msgpack
import pytest

from futures_worker import payload, value_pickler
from futures_worker.code import code_modules
from futures_worker.code.code_files import needed_files, version_of
from futures_worker.errors import ResultPickleError, TaskUnpickleError

LOAD = (
    "import sys, msgpack\nfrom futures_worker import payload\ncode, args, result = msgpack.unpackb(sys.stdin.buffer.read())\n"
    "f, a, k = payload.load_call(code, args)\nprint(f(*a, **k), payload.load_result(result).x)"
)


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Write a module outside the installation, import it, and forget it at the end."""
    made: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("futures_worker.code.function_code.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("futures_worker.code.code_files.LOOK_SECONDS", 0.0)

    def make(name: str, text: str) -> ModuleType:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        made.append(name)
        importlib.invalidate_caches()
        # In a process that has begun others multiprocessing leaves a `__mp_main__`, which is known then.
        monkeypatch.delitem(sys.modules, name, raising=False)
        code_modules.modules._seen.discard(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        if name in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
        sys.modules.pop(name, None)


def elsewhere(*parts: bytes) -> str:
    """What a Python says that can't import what this one has made."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=msgpack.packb(parts),
        capture_output=True,
        env=environment,
        timeout=60,
        cwd="/",
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode().strip()


def test_a_module_registered_by_value_after_the_first_try_goes_by_value_with_arguments_and_results(
    make_module: Callable[..., ModuleType],
) -> None:
    module = make_module("mine_late", "class C:\n    x = 7\ndef f(c): return c.x + 1\n")
    cache = payload.CodeCache()
    by_reference = cache.dump(module.f)
    assert payload.dump_args((module.C(),), {})[0].find(b"_make_skeleton") < 0
    cloudpickle.register_pickle_by_value(module)
    by_value = cache.dump(module.f)
    assert by_value.digest != by_reference.digest
    args = payload.dump_args((module.C(),), {})[0]
    assert elsewhere(by_value.data, args, payload.dump_result(module.C()).to_bytes()) == "8 7"
    cloudpickle.unregister_pickle_by_value(module)
    assert cache.dump(module.f).digest == by_reference.digest


def test_a_script_goes_by_value_in_a_process_of_multiprocessing_too(make_module: Callable[..., ModuleType]) -> None:
    module = make_module("__mp_main__", "class C:\n    x = 7\ndef f(c): return c.x + 3\n")
    args, result = payload.dump_args((module.C(),), {})[0], payload.dump_result(module.C()).to_bytes()
    assert elsewhere(payload.CodeCache().dump(module.f).data, args, result) == "10 7"


def test_registering_a_package_counts_for_its_modules(make_module: Callable[..., ModuleType]) -> None:
    package = make_module("mine_package.__init__", "")
    sys.modules["mine_package"] = package = importlib.import_module("mine_package")
    module = make_module("mine_package.inner", "class C:\n    x = 7\ndef f(c): return c.x + 2\n")
    cache = payload.CodeCache()
    cache.dump(module.f)
    cloudpickle.register_pickle_by_value(package)
    try:
        code, args = cache.dump(module.f), payload.dump_args((module.C(),), {})[0]
        assert elsewhere(code.data, args, payload.dump_result(module.C()).to_bytes()) == "9 7"
    finally:
        cloudpickle.unregister_pickle_by_value(package)
        sys.modules.pop("mine_package", None)


def test_attributes_set_after_the_first_submit_arrive() -> None:
    cache = payload.CodeCache()

    def counts() -> Any:
        return getattr(counts, "limit", None)

    def inner() -> None: ...

    def outer() -> Any:
        return getattr(inner, "limit", None), inner.__doc__, inner.__annotations__

    assert payload.load_code(cache.dump(counts).data)() is None
    assert payload.load_code(cache.dump(outer).data)()[0] is None
    counts.limit = inner.limit = 3  # type: ignore[attr-defined]
    assert payload.load_code(cache.dump(counts).data)() == 3
    assert payload.load_code(cache.dump(outer).data)()[0] == 3
    del inner.limit  # type: ignore[attr-defined]
    inner.__doc__ = "new"
    assert payload.load_code(cache.dump(outer).data)()[:2] == (None, "new")
    inner.__annotations__["x"] = int
    assert payload.load_code(cache.dump(outer).data)()[2]["x"] is int


def test_an_edit_of_any_file_that_a_function_needs_changes_its_key(
    make_module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    deep = make_module("mine_deep", "K = 1\n")
    make_module("mine_helper", "from mine_deep import (  # the one\n    K as other,\n)\nclass C: pass\n")
    module = make_module("mine_top", "import os, mine_helper as h; import json\ndef f(*a): return h.other\n")
    (tmp_path / "mine_unrelated.py").write_text("")
    cache = payload.CodeCache()

    def by_value() -> Any:
        from mine_deep import K  # type: ignore[import-not-found]

        return K

    def keys() -> list[bytes]:
        whole = payload.dump_call(len, ([sys.modules["mine_helper"].C()],), cache=cache)
        return [cache.dump(module.f).digest, cache.dump(by_value).digest, whole.code.digest]

    first = keys()
    assert keys() == first
    assert [name for name, _ in payload.code_needs(cache.dump(module.f).data)] == [
        "mine_deep",
        "mine_helper",
        "mine_top",
    ]
    assert deep.__file__ is not None
    Path(deep.__file__).write_text("K = 2\n")
    assert all(before != after for before, after in zip(first, keys(), strict=True))
    (tmp_path / "mine_unrelated.py").write_text("changed = True")
    second = keys()
    assert version_of("mine_unrelated") is not None
    assert keys() == second


def test_the_installation_and_mainspring_itself_are_not_followed() -> None:
    assert (
        needed_files(["json", "numpy", "futures_worker.payload", "fdb_schema", "__main__", "sys", "no_such_module"])
        == ()
    )
    assert payload.code_needs(payload.dump_code(pickle.loads).data) == []


def test_files_are_followed_through_packages_and_relative_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "mine_tree/__init__.py": "from . import leaf\n",
        "mine_tree/leaf.py": "from .twig import K\n",
        "mine_tree/twig.py": "def later():\n    from .no_such import x\n    import mine_lone\nK = 1\n",
        "mine_lone.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = [name for name, _ in needed_files(["mine_tree.leaf"])]
    assert found == ["mine_lone", "mine_tree", "mine_tree.leaf", "mine_tree.twig"]
    assert not {"mine_tree", "mine_lone"} & sys.modules.keys()  # nothing was imported for it


@pytest.mark.parametrize(
    "text",
    [
        "from mine_split import (  # noqa (F401)\n    part,\n)\n",
        "import os, \\\n    mine_split.part\n",
        "\ufeffimport mine_split.part\n",
    ],
)
def test_needed_is_what_an_import_statement_names_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "mine_split").mkdir()
    for name, content in {"mine_split/__init__.py": "", "mine_split/part.py": "", "mine_whole.py": text}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine_split.part" in [name for name, _ in needed_files(["mine_whole"])]


def test_code_by_value_of_another_python_is_refused_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> int:
        return 1

    monkeypatch.setattr(value_pickler, "PYTHON_MINOR", "3.99")
    monkeypatch.setattr("futures_worker.code.function_code.PYTHON_VERSION", "3.99.1")
    code, args = payload.dump_code(function).data, payload.dump_args((function,), {})[0]
    result = payload.dump_result(function).to_bytes()
    by_reference = payload.dump_code(len).data
    monkeypatch.undo()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    both = rf"Python 3\.99.*Python {here}"
    with pytest.raises(TaskUnpickleError, match=both):
        payload.load_code(code)
    with pytest.raises(TaskUnpickleError, match=both):
        payload.load_args(args, name="f", python="3.99.1")
    with pytest.raises(ResultPickleError, match=both):
        payload.load_result(result)
    assert payload.load_code(by_reference) is len


ORDERED = """
class Steps:
    wash = 1
    rinse = 2
    def dry(self): ...
    coat = 3
def f():
    return [name for name in vars(Steps) if name[0] != "_"]
class Answer:
    x = "ok"
"""


def test_code_comes_with_the_name_of_its_file_also_by_a_cloudpickle_that_leaves_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = cloudpickle.Pickler._dispatch_table
    plain = table[CodeType]

    def without(code: CodeType) -> Any:  # as from 3.1.3 on
        make, args = plain(code)
        return make, tuple("<dynamic-code>" if arg == code.co_filename else arg for arg in args)

    monkeypatch.setitem(table, CodeType, without)
    space: dict[str, Any] = {"__name__": "__main__"}
    text = "def outer(x):\n    def inner():\n        return x\n    return inner\n"
    exec(compile(text, "/home/me/run.py", "exec"), space)
    for function in (space["outer"], space["outer"](1)):
        assert payload.load_own(payload.dump_result(function).to_bytes()).__code__.co_filename == "/home/me/run.py"


def test_what_a_classs_body_made_comes_in_its_order() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(ORDERED, space)
    assert space["f"]() == ["wash", "rinse", "dry", "coat"]
    code = payload.CodeCache().dump(space["f"])
    args, answer = payload.dump_args((), {})[0], payload.dump_result(space["Answer"]()).to_bytes()
    assert elsewhere(code.data, args, answer) == "['wash', 'rinse', 'dry', 'coat'] ok"


def test_bytecode_without_a_mark_is_refused_by_the_version_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("futures_worker.code.function_code.PYTHON_VERSION", "3.99.1")
    monkeypatch.setattr(value_pickler, "dumps", lambda obj, needs: cloudpickle.dumps(obj))  # as an older release did
    code = payload.dump_code(lambda: 1).data
    monkeypatch.undo()
    with pytest.raises(TaskUnpickleError, match=r"3\.99\.1.*Python 3"):
        payload.load_code(code)


def test_classes_of_one_content_stay_two() -> None:
    def make() -> type:
        class Same(Exception):
            pass

        return Same

    one, two = make(), make()
    value_pickler.dumps((one, two))
    loaded = pickle.loads(value_pickler.dumps({"one": one, "two": two, "of one": one()}))
    assert loaded["one"] is one
    assert loaded["two"] is two
    assert type(loaded["of one"]) is one


def test_buffers_are_taken_once_although_a_class_is_met_for_the_first_time() -> None:
    import numpy as np

    class Fresh:
        def __init__(self) -> None:
            self.array = np.arange(100_000)

    result = payload.dump_result(Fresh())
    assert len(result.buffers) == 1
    assert payload.load_result(result.to_bytes()).array[-1] == 99_999


def test_an_edit_is_seen_at_once_where_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_edited.py").write_text("VALUE = 1\n")
    first = needed_files(["mine_edited"])
    assert needed_files(["mine_edited"]) is first  # remembered for as long as the file is what it was
    (tmp_path / "mine_edited.py").write_text("VALUE = 2\n")
    assert needed_files(["mine_edited"]) != first


def test_a_class_of_this_process_stays_as_it_is_when_an_instance_of_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result that holds an instance of the script's own class brings the class as it was when the task was submitted."""
    main = sys.modules["__main__"]
    tally: Any = type("Tally", (), {"__module__": "__main__", "total": 0, "kind": "first"})
    data = payload.dump_result(tally()).to_bytes()
    tally.total, tally.added = 5, True
    found = payload.load_result(data)
    assert type(found) is tally
    assert (tally.total, tally.added) == (5, True)
    assert getattr(main, "Tally", None) is None

    # What another process made is as that process sends it.
    script = (
        "import sys\nfrom futures_worker import payload\nclass Theirs:\n    total = 1\n"
        "one = payload.dump_result(Theirs()).to_bytes()\nTheirs.total = 2\ntwo = payload.dump_result(Theirs()).to_bytes()\n"
        "sys.stdout.write(one.hex() + ' ' + two.hex())\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    one, two = (payload.load_result(bytes.fromhex(part)) for part in ran.stdout.split())
    assert type(one) is type(two)
    assert one.total == 2
