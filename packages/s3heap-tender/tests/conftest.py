"""What this package's tests share: a virtual clock, sysdbs on it, and the simulation's world (`world.py`)."""

from __future__ import annotations

import functools
import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from s3heap_tender import failpoints


def _local(name: str) -> Any:
    """A module beside this file, under a name that no other package's tests use."""
    full = f"s3heap_tender_tests_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


for _name in ("virtual", "model", "world", "seaweed"):
    if Path(__file__).with_name(f"{_name}.py").exists():
        _local(_name)


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def bench(any_db: Any) -> Any:
    """A sysdb and a heap on a virtual clock, with a trace, once per engine."""
    return _local("virtual").Bench(any_db)


@pytest.fixture
def quick() -> Any:
    """The same, in memory."""
    from fdb_schema import open_database

    return _local("virtual").Bench(open_database(f"memory:heap-{uuid.uuid4().hex}"))


@pytest.fixture
def new_name() -> Callable[[], str]:
    return lambda: uuid.uuid4().hex


def _read_the_sdks_files_once() -> None:
    """Each new session of the SDK reads what describes S3 anew, which takes a tenth of a second; each test has a store of its own."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running SeaweedFS, shared by the tests; each uses a prefix of its own."""
    if importlib.util.find_spec("botocore") is not None:
        _read_the_sdks_files_once()
    server = _local("seaweed").start(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.kill()


@pytest.fixture
def s3_store(s3_server: Any) -> Iterator[Any]:
    """A new, empty store on the S3 server."""
    store = _local("seaweed").new_store(s3_server)
    yield store
    store.close()


@pytest.fixture
def obstore_store(s3_server: Any) -> Iterator[Any]:
    """A new, empty store on the S3 server, through the other client."""
    pytest.importorskip("obstore")
    store = _local("seaweed").new_store(s3_server, client="obstore")
    yield store
    store.close()


@pytest.fixture(params=["memory", "file", "s3", "obstore"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty store, once per kind, and per client of S3."""
    from s3heap_tender import HeapStore

    if request.param in ("s3", "obstore"):
        return request.getfixturevalue(f"{request.param}_store")
    return HeapStore("memory:" if request.param == "memory" else f"file:{tmp_path / 'heap'}")
