"""CPython's own tests of executors, run on the cluster's: adapted only in how the executor is made.

They are taken from where this interpreter has them (`test.test_concurrent_futures`), or from the directory that the
environment variable CPYTHON_TESTS names (`Lib/test` of a source tree or of another installation); many installations leave
them out. Cases that make an executor of their own by its class's name, or test how many workers it is made with, are
about making it and left out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from support.clusters import LocalCluster

GROUPS = {
    "test_executor executor": "ExecutorTest",
    "test_wait": "WaitTests",
    "test_as_completed": "AsCompletedTests",
    "test_shutdown": "ExecutorShutdownTest",
}
"""Files of the newer layout (a package) and the class of each that holds for any executor."""

ABOUT_MAKING = {
    "test_max_workers_negative",
    "test_interpreter_shutdown",
    "test_submit_after_interpreter_shutdown",
    "test_hang_gh83386",
    "test_map_buffersize_validation",
}
WORKERS = 5  # slots of the cluster, the number of workers that CPython's cases make


def _found() -> Path | None:
    """`test_concurrent_futures`, a package or a file."""
    named = os.environ.get("CPYTHON_TESTS")
    spec = None if named else importlib.util.find_spec("test")
    places = [named] if named else list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for path in (Path(place, "test_concurrent_futures"), Path(place, "test_concurrent_futures.py")):
            if path.is_dir() or path.is_file():
                return path
    return None


def _load(name: str, path: Path) -> ModuleType:
    places = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def _cases() -> dict[str, type]:
    """The classes of cases, by name; none where CPython's tests aren't installed."""
    path = _found()
    if path is None:
        return {}
    if path.is_file():
        module = _load("test_concurrent_futures", path)
        return {name: getattr(module, name) for name in GROUPS.values()}
    package = "test.test_concurrent_futures"
    _load(package, path / "__init__.py")
    found = {}
    for files, name in GROUPS.items():
        for file in files.split():
            if (path / f"{file}.py").is_file():
                module = _load(f"{package}.{file}", path / f"{file}.py")
                if hasattr(module, name):
                    found[name] = getattr(module, name)
    return found


CASES = _cases()
pytestmark = pytest.mark.skipif(not CASES, reason="this interpreter has no test.test_concurrent_futures")


@pytest.fixture(scope="module")
def demo() -> Iterator[LocalCluster]:
    folder = Path(tempfile.mkdtemp(prefix="mainspring-cpython-"))
    local = LocalCluster(f"embedded:{folder / 'db'}", "cpython", folder)
    try:
        local.start("--slots", str(WORKERS))
        yield local
        local.check()
    finally:
        local.close()
        shutil.rmtree(folder, ignore_errors=True)


class OnTheCluster:
    """What stands in the place of CPython's mixin that makes an executor."""

    worker_count = WORKERS

    @pytest.fixture(autouse=True)
    def _made(self, demo: LocalCluster) -> Iterator[None]:
        client = demo.client()
        self.executor_type = lambda max_workers=WORKERS: client.executor()
        self.executor: Any = client.executor()
        yield
        self.executor.shutdown(wait=True)
        self.executor = None
        client.close()


def _adapted(name: str, cases: type) -> type:
    left_out = {case: None for case in ABOUT_MAKING if hasattr(cases, case)}
    return type(f"Test{name}", (OnTheCluster, cases, unittest.TestCase), left_out)


for _name, _class in CASES.items():
    globals()[f"Test{_name}"] = _adapted(_name, _class)


def test_cases_were_found() -> None:
    assert set(CASES) == set(GROUPS.values())
