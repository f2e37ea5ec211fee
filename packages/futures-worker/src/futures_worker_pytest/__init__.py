"""Fixtures for pytest: a cluster with a client, an embedded database, injected faults. Installed with futures-worker, loaded by pytest itself.

A package of its own: pytest imports it in every run of an environment, so nothing else is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from futures_worker import Client, LocalCluster
    from futures_worker_pytest.databases import FaultyDatabases

_SCOPES = ("session", "module", "function")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings, for `[tool.pytest.ini_options]`."""
    parser.addini("mainspring_workers", "worker processes of the cluster that `mainspring_client` is of", default="1")
    parser.addini("mainspring_slots", "tasks that each of these workers runs at a time", default="2")
    parser.addini("mainspring_scope", "how long that cluster lasts: session, module, or function", default="session")


def _scope(fixture_name: str, config: pytest.Config) -> Literal["session", "module", "function"]:
    chosen = config.getini("mainspring_scope")
    if chosen not in _SCOPES:
        raise pytest.UsageError(f"mainspring_scope is one of {', '.join(_SCOPES)}, found {chosen!r}")
    return chosen  # type: ignore[no-any-return]


def _count(config: pytest.Config, name: str) -> int:
    given = config.getini(name)
    if not str(given).isdecimal() or int(given) < 1:
        raise pytest.UsageError(f"{name} is a whole number, 1 or more, found {given!r}")
    return int(given)


@pytest.fixture(scope=_scope)
def mainspring_cluster(pytestconfig: pytest.Config) -> Iterator[LocalCluster]:
    """A `futures_worker.LocalCluster`, for a session of tests, for a module or for one (`mainspring_scope`)."""
    workers, slots = (_count(pytestconfig, name) for name in ("mainspring_workers", "mainspring_slots"))
    from futures_worker import LocalCluster

    cluster = LocalCluster(workers, slots)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def mainspring_client(mainspring_cluster: LocalCluster, pytestconfig: pytest.Config) -> Iterator[Client]:
    """A client of a cluster with workers, whose `with` block the test is in.

    What the test has submitted, and what its tasks have, is cancelled and erased at its end, schedules, limits and queues too, and workers
    that it killed are replaced.
    """
    from futures_worker import Client
    from futures_worker_pytest.erasing import erase_all

    mainspring_cluster.scale(_count(pytestconfig, "mainspring_workers"))
    with Client(mainspring_cluster.url, mainspring_cluster.cluster) as client:
        yield client
    erase_all(mainspring_cluster.url, mainspring_cluster.cluster)


@pytest.fixture
def fdb(tmp_path: Path) -> Iterator[Any]:
    """An empty embedded database of the test's own, as `fdb_embedded.open` and `fdb.open` return it."""
    from futures_worker_pytest.databases import opened

    with opened(tmp_path / "fdb") as database:
        yield database


@pytest.fixture
def faults(fdb: Any, tmp_path: Path) -> Iterator[FaultyDatabases]:
    """The database of `fdb` with faults: `faults(seed=7, unknown_after=0.2)` opens it once more, and what goes through that meets them."""
    from futures_worker_pytest.databases import FaultyDatabases

    databases = FaultyDatabases(tmp_path / "fdb")
    try:
        yield databases
    finally:
        databases.close()
