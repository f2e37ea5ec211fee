"""Fixtures every package's tests share: databases on each engine, and seeds for randomized suites.

- `any_url`: the test runs once per engine: `memory:NAME` and `embedded:DIR`, or a real cluster where one is offered.
- `shared_url`: the same, over the engines that several processes can open at once (no `memory:`).
- `any_db`, `shared_db`: the database behind the URL, opened and empty.
- `cluster`: workers as real processes (`tests/support/clusters.py`).
- `seed_params(count)`: parameters for `@pytest.mark.parametrize("seed", seed_params(200))`.

A real cluster is used when `libfdb_c` loads, `FDB_CLUSTER_FILE` names a file, and `MAINSPRING_DISPOSABLE_CLUSTER=1`
says that everything in it may be erased: each test starts by clearing its whole user key space. Such a run is of the
cluster alone, since one process has one engine behind the name `fdb`: tests that ask for none of these databases are
skipped, and those marked `embedded_only` with them.
"""

from __future__ import annotations

import ctypes.util
import gc
import os
import random
import re
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the processes that tests start, as noxfile.py says
sys.dont_write_bytecode = False
sys.path.insert(0, str(Path(__file__).parent / "tests"))
pytest_plugins = ["support.clusters"]

FRESH_SEEDS = 4
"""How many seeds nobody has tried before are added to the fixed ones of a suite."""

_FRESH_BASE = "MAINSPRING_FRESH_SEED"


def _fresh_base() -> int:
    """One number per test run, inherited by pytest-xdist's workers, so that all collect the same tests."""
    return int(os.environ.setdefault(_FRESH_BASE, str(secrets.randbelow(2**31))))


_fresh_base()  # chosen when the run starts, before pytest-xdist starts its workers


def seed_params(count: int, *, fresh: int = FRESH_SEEDS, most: int | None = None) -> list[ParameterSet]:
    """Seeds of a randomized suite: fixed ones first, then `fresh` new ones, `count` in all.

    `MAINSPRING_SEEDS=N` replaces `count` (the soak session uses it), by no more than `most` where a seed takes seconds.
    The fixed seeds are 0, 1, 2, …; the fresh ones come from `MAINSPRING_FRESH_SEED`, which the head of the run prints;
    each is part of its test's name, and to repeat one is to run the test of that name with the printed number in the
    environment.
    """
    total = int(os.environ.get("MAINSPRING_SEEDS") or count)
    if most is not None:
        total = min(total, most)
    fresh = min(fresh, total)
    rng = random.Random(_fresh_base())
    seeds = [*range(total - fresh), *(rng.randrange(1_000_000, 2**31) for _ in range(fresh))]
    return [pytest.param(seed, id=f"seed-{seed}") for seed in seeds]


def pytest_report_header() -> str:
    engines = ", ".join(ENGINES)
    return f"mainspring: engines {engines}; fresh seeds from {_FRESH_BASE}={_fresh_base()}"


def _cluster_offered() -> bool:
    if os.environ.get("MAINSPRING_DISPOSABLE_CLUSTER") != "1":
        return False
    cluster_file = os.environ.get("FDB_CLUSTER_FILE")
    if not cluster_file or not Path(cluster_file).is_file():
        return False
    try:
        ctypes.CDLL(ctypes.util.find_library("fdb_c") or "libfdb_c.so")
    except OSError:
        return False
    return True


QUICK = bool(os.environ.get("MAINSPRING_QUICK"))
SHARED_ENGINES = ["fdb"] if _cluster_offered() else ["embedded"]
ENGINES = ["memory"] if QUICK else ["fdb"] if _cluster_offered() else ["memory", "embedded"]

NOT_QUICK = re.compile(
    r"subprocess|multiprocessing|os\.fork|playwright|seed_params|stateful|shared_(url|db)|thread_worker|[Cc]luster\(|embedded:"
    r"|time\.sleep|threading\.Event|interrupt|histories"
)
"""What a file of tests names that starts processes, writes a database's files, waits, or tries hundreds of seeds or instants:
`nox -s quick` leaves the file out, and runs the others on the engine in memory alone."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if QUICK and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        slow = "end_to_end" in collection_path.parts or NOT_QUICK.search(collection_path.read_text(encoding="utf-8"))
        return True if slow else None
    return None


"""What `any_url` runs over, here and now."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it runs in the background with these ignored, `nohup` with the last, and children inherit that.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    config.addinivalue_line(
        "markers", "embedded_only(reason): the test asks for a database, but not of a cluster; the reason says why"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "fdb" not in ENGINES:
        return
    for item in items:
        mark = item.get_closest_marker("embedded_only")
        if mark is not None:
            reason = mark.args[0] if mark.args else mark.kwargs.get("reason", "no reason is given")
            item.add_marker(pytest.mark.skip(reason=f"not on a cluster: {reason}"))
        elif not {"any_url", "shared_url"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="this run is of a cluster, and the test asks for none"))


def pytest_collection_finish() -> None:
    """What collecting has made stays until the end: it isn't looked through again by each of the many `gc.collect()` of tests, and
    forks of this process don't copy it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed or logged may hold half a character, which pytest-xdist can't send to who reports it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def _erase_cluster() -> None:
    from fdb_schema import open_database

    db: Any = open_database("fdb:")
    # A process has one object per cluster, which would carry one test's strategies and client id into the next.
    db.__dict__.pop("_idempotent_txn_session", None)
    tr = db.create_transaction()
    while True:
        try:
            tr.options.set_access_system_keys()
            tr.clear_range(b"", b"\xff")
            tr.clear_range(b"\xff\x02/idmp/", b"\xff\x02/idmp0")  # idempotency ids
            # What a test put there; of a value that isn't its own the client would die.
            tr.clear(b"\xff\x02/idmpExpiredVersion")
            tr.commit().wait()
            return
        except Exception as error:
            tr.on_error(getattr(error, "code", 0)).wait()


@pytest.fixture
def database_dir(tmp_path: Path) -> Iterator[Path]:
    """An absent path for an embedded database, in memory-backed storage where there is some, removed afterwards."""
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK | os.X_OK):
        parent = Path(tempfile.mkdtemp(prefix="mainspring-test-", dir=shm))
        yield parent / "db"
        shutil.rmtree(parent, ignore_errors=True)
    else:
        yield tmp_path / "db"


def _url(engine: str, request: pytest.FixtureRequest) -> str:
    if engine == "memory":
        return f"memory:test-{uuid.uuid4().hex}"
    if engine == "embedded":
        return f"embedded:{request.getfixturevalue('database_dir')}"
    _erase_cluster()
    return "fdb:"


@pytest.fixture(params=ENGINES)
def any_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once per engine."""
    return _url(request.param, request)


@pytest.fixture(params=SHARED_ENGINES)
def shared_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database that several processes may open at once, once per engine that allows it."""
    return _url(request.param, request)


@pytest.fixture
def any_db(any_url: str) -> Any:
    """An open, empty database, once per engine."""
    from fdb_schema import open_database

    return open_database(any_url)


@pytest.fixture
def shared_db(shared_url: str) -> Any:
    """An open, empty database of an engine that several processes share; others open `shared_url`."""
    from fdb_schema import open_database

    return open_database(shared_url)


def calls_of(work: Callable[[], object], *, events: Collection[str] = ("call",)) -> int:
    """How many functions of Python this thread calls: what work costs, on a machine of any speed. `PYTHON_AND_C`: of C, too."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in events

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


PYTHON_AND_C = ("call", "c_call")
