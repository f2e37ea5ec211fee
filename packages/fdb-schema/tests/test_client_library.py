"""Any binding from 7.3 on works over any client library from 7.3 on; what can't work says what helps.

The binding is the one that is installed; the library is a stand-in that knows the functions of some release and behaves as
`fdb_select_api_version_impl` does (bindings/c/fdb_c.cpp). With a library and a cluster `nox -s bindings` runs the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
import ctypes, sys
RELEASE = int(sys.argv[1])
NEWER = ("fdb_transaction_get_range_split_points_with_limit", "cdc")

class Function:
    def __init__(self, call): self.call = call
    def __call__(self, *arguments): return self.call(*arguments)

class Library:
    asked = []
    def __getattr__(self, name):
        if RELEASE < 800 and any(part in name for part in NEWER):
            raise AttributeError(name)
        def call(*arguments):
            if name == "fdb_get_max_api_version":
                return RELEASE
            if name == "fdb_select_api_version_impl":
                self.asked.append(arguments)
                return 2203 if arguments[1] > RELEASE or arguments[0] > arguments[1] else 0
            if name == "fdb_get_client_version":
                return b"%d.%d.1,source,protocol" % (RELEASE // 100, RELEASE // 10 % 10)
            raise AssertionError(f"{name} was called")
        found = Function(call)
        setattr(self, name, found)
        return found

ctypes.CDLL = lambda name, *rest, **more: Library()
import fdb
from fdb_schema.client_library import client_release, select_api_version
"""


def run(release: int, program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIBRARY + program, str(release)],
        capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ),
    )  # fmt: skip


@pytest.mark.parametrize("release", [730, 740, 800, 810])
def test_a_library_of_any_release_from_7_3_on_is_used(release: int, tmp_path: Path) -> None:
    ended = run(
        release,
        "select_api_version(fdb); select_api_version(fdb)\n"
        "version, header = Library.asked[-1]\n"
        "print(version, header <= RELEASE, fdb.get_api_version(), callable(fdb.open), client_release(fdb))",
        tmp_path,
    )
    release_text = f"{release // 100}.{release // 10 % 10}.1"
    assert ended.stdout.split() == ["730", "True", "730", "True", release_text], ended.stderr


def test_the_binding_alone_refuses_an_older_library_so_that_the_test_above_says_something(tmp_path: Path) -> None:
    ended = run(730, "print(fdb.LATEST_API_VERSION); fdb.api_version(730)", tmp_path)
    if int(ended.stdout) <= 730:
        assert ended.returncode == 0
    else:
        assert "not supported by the installed" in ended.stderr


def test_a_function_that_the_library_has_not_fails_by_its_name_when_it_is_called(tmp_path: Path) -> None:
    ended = run(
        730,
        "from fdb_schema.client_library import _OlderLibrary\n"
        "older = _OlderLibrary(Library(), 730)\n"
        "function = older.fdb_transaction_get_range_split_points_with_limit\n"
        "function.restype = int\n"
        "print(older.fdb_transaction_get_range_split_points_with_limit is function, hasattr(older, 'fdb_database_cdc'))\n"
        "function()",
        tmp_path,
    )
    assert ended.stdout.split() == ["True", "False"]
    assert (
        "NotImplementedError: fdb_transaction_get_range_split_points_with_limit: libfdb_c of API version 730"
        in ended.stderr
    )


@pytest.mark.parametrize(
    ("release", "program", "says"),
    [
        (710, "", "knows FoundationDB's API up to version 710, and 730 is needed"),
        (0, "ctypes.CDLL = None\n", "FoundationDB's client library can't be loaded"),
    ],
)
def test_what_does_not_work_names_the_command_that_helps(release: int, program: str, says: str, tmp_path: Path) -> None:
    ended = run(release, program + "from fdb_schema import open_database; open_database('fdb:')", tmp_path)
    assert ended.returncode == 1
    assert f"DatabaseUnreachableError: fdb:: {says}" in ended.stderr.replace("the libfdb_c that is installed ", "")
    assert (
        "curl -fLo /usr/local/lib/libfdb_c.so https://github.com/apple/foundationdb/releases/download/VERSION/"
        in ended.stderr
    )


@pytest.mark.parametrize(("selected", "works"), [(730, True), (800, True), (710, False)])
def test_a_version_that_the_program_selected_stays_if_it_is_new_enough(
    selected: int, works: bool, tmp_path: Path
) -> None:
    ended = run(
        810,
        f"if {selected} > fdb.LATEST_API_VERSION: print({selected}); raise SystemExit\n"
        f"fdb.api_version({selected}); select_api_version(fdb); print(fdb.get_api_version())",
        tmp_path,
    )
    if works:
        assert ended.stdout.split() == [str(selected)], ended.stderr
    else:
        assert f"this program selected FoundationDB's API version {selected}" in ended.stderr
