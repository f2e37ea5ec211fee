"""The pytest plugin: its fixtures in a run of their own, what it costs where nobody uses it, and what it says of wrong settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import threading

import pytest

from futures_worker import current_client
from idempotent_txn import run


def count(path):
    with open(path, "a") as file:
        file.write("x")
    return 7


class Counter:
    def __init__(self):
        self.value = 0

    def add(self):
        self.value += 1
        return self.value


@pytest.mark.parametrize("turn", [1, 2])
def test_nothing_of_the_test_before_is_there(mainspring_client, tmp_path, turn):
    assert mainspring_client.futures() == []
    assert mainspring_client.schedules() == mainspring_client.limits() == []
    assert mainspring_client.queue("jobs").empty() and not mainspring_client.event("ready").is_set()
    assert current_client() is mainspring_client
    assert mainspring_client.submit(count, str(tmp_path / "counted"), key="the same").result(timeout=60) == 7
    assert (tmp_path / "counted").read_text() == "x", "the key is of this test"
    assert mainspring_client.actor(Counter, name="shared").add().result(timeout=60) == 1
    mainspring_client.submit(sum, [1, 2])
    mainspring_client.submit(forever)
    mainspring_client.every(3600, forever)
    mainspring_client.limit("one", concurrent=1)
    mainspring_client.queue("jobs").put(1)
    mainspring_client.event("ready").set()
    mainspring_client.map(sum, [[1], [2]], limits=["one"])


def forever():
    threading.Event().wait(600)


def test_the_cluster_is_the_sessions(mainspring_cluster, mainspring_client):
    (worker,) = mainspring_cluster.workers
    assert worker.slots == 3
    assert mainspring_client.workers()[0].pid == worker.pid


def add(tr, key):
    tr.add(key, b"\\x01")


def test_a_database_of_its_own(fdb, tmp_path):
    fdb[b"a"] = b"b"
    assert fdb[b"a"] == b"b"
    assert (tmp_path / "fdb").is_dir()


@pytest.mark.parametrize("seed", range(3))
def test_faults_meet_one_handle_of_it(fdb, faults, seed):
    assert fdb[b"a"] is None
    shaky = faults(seed=seed, not_committed=0.2, unknown_after=0.2, unknown_late=0.2)
    for _ in range(20):
        run(shaky, add, b"a")
    faults.land_all()
    assert fdb[b"a"] == bytes([20])


def test_every_commit_may_fail(fdb, faults):
    broken = faults(too_old=1.0)
    tr = broken.create_transaction()
    tr[b"x"] = b"y"
    with pytest.raises(Exception) as found:
        tr.commit().wait()
    assert found.value.code == 1007
    fdb[b"x"] = b"z"
"""


@pytest.fixture
def outside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody's."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def test_the_fixtures_serve_and_isolate(outside: pytest.Pytester) -> None:
    outside.makeini("[pytest]\nmainspring_slots = 3\n")
    outside.makepyfile(TESTS)
    outside.runpytest_subprocess("-q", "-p", "futures_worker_pytest", "-p", "no:cacheprovider").assert_outcomes(
        passed=8
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("mainspring_scope = week", "mainspring_scope is one of session, module, function, found 'week'"),
        ("mainspring_workers = none", "mainspring_workers is a whole number, 1 or more, found 'none'"),
    ],
)
def test_a_wrong_setting_is_named(outside: pytest.Pytester, settings: str, says: str) -> None:
    outside.makeini(f"[pytest]\n{settings}\n")
    outside.makepyfile("def test_one(mainspring_cluster): pass")
    found = outside.runpytest_subprocess("-q", "-p", "futures_worker_pytest", "-p", "no:cacheprovider")
    assert says in found.stdout.str() + found.stderr.str()


def test_pytest_loads_what_the_plugin_comes_with_and_it_goes_by_reference_all_the_same(
    outside: pytest.Pytester,
) -> None:
    outside.makepyfile(
        """
        import cloudpickle
        import futures_worker.value_pickler as ours
        from futures_worker.code.code_modules import modules


        def test_it():
            assert type(ours.__spec__.loader).__name__ == "AssertionRewritingHook"
            modules.refresh()
            assert not modules.goes_by_value(ours.__name__)
        """
    )
    outside.makeconftest("import pytest\n\npytest.register_assert_rewrite('futures_worker')\n")
    outside.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_where_nobody_uses_it_nothing_is_imported() -> None:
    told = "import pytest, sys; before = set(sys.modules); import futures_worker_pytest; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['futures_worker_pytest']"
