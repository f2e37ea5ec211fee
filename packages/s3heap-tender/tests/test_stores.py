"""One contract for every store: memory, a directory, and a real S3-compatible server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s3heap_tender import (
    ConflictError,
    HeapStore,
    OutcomeUnknownError,
    StoreUnavailableError,
    StoreUrlError,
    UnconditionalStoreError,
)
from s3heap_tender.errors import OversizedObjectError
from s3heap_tender.stores import NotModified, StoredObject, port
from s3heap_tender.stores.memory import MemoryStore


def body_of(store: Any, key: str) -> bytes | None:
    found = store.get(key)
    return found.body if isinstance(found, StoredObject) else None


@pytest.mark.parametrize(
    ("client", "module", "extra"), [("aioboto3", "aioboto3", "s3"), ("obstore", "obstore", "obstore")]
)
def test_without_its_client_a_heap_on_s3_says_what_to_install(
    client: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreUrlError, match=rf"s3heap-tender\[{extra}\]"):
        HeapStore("s3://bucket/prefix", endpoint_url="http://127.0.0.1:9", client=client)


def test_a_heap_in_a_directory_needs_no_sdk() -> None:
    program = (
        "import sys\n"
        "for name in ('aioboto3', 'aiobotocore', 'boto3', 'botocore', 'obstore'): sys.modules[name] = None\n"
        "import s3heap_tender, s3heap_tender.cli, s3heap_tender.claims.tending, s3heap_tender.devserver\n"
        "s3heap_tender.HeapStore('memory:x').close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_store_written_for_the_first_port_lists_as_any_other(quick: Any, wrapped: bool) -> None:
    class First(MemoryStore):
        def list(self, prefix: str, *, before: str | None = None) -> Any:  # type: ignore[override]
            return super().list(prefix, before=before)

    store: Any = HeapStore("first:", store=First()) if wrapped else First()
    bench = type(quick)(quick.db, store=store)
    bench.sysdb.create_task("p", "t", cadence=0)
    assert bench.settle(lambda *args: None, seconds=2) == 1
    if wrapped:
        assert [there.key for there in store.list("", since="n")] == []


def test_an_object_is_created_once_and_read_back(any_store: Any) -> None:
    assert any_store.get("a") is None
    etag = any_store.put("a", b"one", if_match=None)
    assert any_store.get("a") == StoredObject(b"one", etag)
    with pytest.raises(ConflictError):
        any_store.put("a", b"two", if_match=None)
    assert body_of(any_store, "a") == b"one"


@pytest.mark.parametrize("client", ["aioboto3", "obstore"])
def test_a_forked_child_is_told_to_open_its_own_store(request: pytest.FixtureRequest, client: str) -> None:
    """The client's threads are the parent's: the child would wait for them for ever."""
    store = request.getfixturevalue("s3_store" if client == "aioboto3" else "obstore_store")
    store.put("a", b"one", if_match=None)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            for ask in (
                lambda: store.get("a"),
                lambda: store.put("b", b"", if_match=None),
                lambda: store.delete("a", if_match="x"),
                lambda: list(store.list("")),
            ):
                with pytest.raises(StoreUrlError, match="forked"):
                    ask()
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert body_of(store, "a") == b"one"


def test_an_object_is_replaced_only_under_its_etag(any_store: Any) -> None:
    first = any_store.put("a", b"one", if_match=None)
    second = any_store.put("a", b"two", if_match=first)
    assert second != first
    with pytest.raises(ConflictError):
        any_store.put("a", b"three", if_match=first)
    with pytest.raises(ConflictError):
        any_store.put("absent", b"x", if_match=first)
    assert body_of(any_store, "a") == b"two"
    assert any_store.get("absent") is None


def test_an_object_is_deleted_only_under_its_etag(any_store: Any) -> None:
    first = any_store.put("a", b"one", if_match=None)
    second = any_store.put("a", b"two", if_match=first)
    with pytest.raises(ConflictError):
        any_store.delete("a", if_match=first)
    assert body_of(any_store, "a") == b"two"
    any_store.delete("a", if_match=second)
    assert any_store.get("a") is None
    with pytest.raises(ConflictError):
        any_store.delete("a", if_match=second)


def test_a_read_under_the_etag_one_knows_says_not_modified(any_store: Any) -> None:
    etag = any_store.put("a", b"one", if_match=None)
    assert isinstance(any_store.get("a", if_none_match=etag), NotModified)
    other = any_store.put("a", b"two", if_match=etag)
    assert any_store.get("a", if_none_match=etag) == StoredObject(b"two", other)


def test_a_listing_is_in_order_with_the_etags_reads_show(any_store: Any) -> None:
    etags = {key: any_store.put(key, key.encode() * 3, if_match=None) for key in ("x-2", "x-1", "x-3", "y-1")}
    assert [(o.key, o.etag, o.size) for o in any_store.list("x-")] == [
        (key, etags[key], 9) for key in ("x-1", "x-2", "x-3")
    ]
    assert [o.key for o in any_store.list("x-", before="x-3")] == ["x-1", "x-2"]
    assert list(any_store.list("z-")) == []
    assert [o.key for o in any_store.list("x-", since="x-2")] == ["x-2", "x-3"]
    assert [o.key for o in any_store.list("x-", since="x-1a", before="x-3")] == ["x-2"]
    assert [o.key for o in any_store.list("x-", since="x-4")] == []
    assert any_store.get("x-1").etag == etags["x-1"]


def test_a_megabyte_and_nothing_at_all_are_kept(any_store: Any) -> None:
    blob = os.urandom(1_000_000)
    any_store.put("big", blob, if_match=None)
    assert body_of(any_store, "big") == blob
    any_store.put("empty", b"", if_match=None)
    assert body_of(any_store, "empty") == b""


def test_an_object_larger_than_any_of_the_heaps_is_not_read(any_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    any_store.put("a", bytes(1_000), if_match=None)
    any_store.put("b", bytes(1_001), if_match=None)
    monkeypatch.setattr(port, "MOST_BYTES", 1_000)
    assert body_of(any_store, "a") == bytes(1_000)
    with pytest.raises(OversizedObjectError, match="1,001 bytes") as refused:
        any_store.get("b")
    assert refused.value.key == "b"
    assert body_of(any_store, "a") == bytes(1_000)  # the connection is of use still


def test_of_writers_at_once_exactly_one_wins(any_store: Any) -> None:
    etag = any_store.put("a", b"base", if_match=None)
    barrier = threading.Barrier(4)
    wins: list[int] = []

    def write(number: int) -> None:
        barrier.wait(60)
        try:
            any_store.put("a", b"by %d" % number, if_match=etag)
        except ConflictError:
            return
        wins.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(wins) == 1
    assert body_of(any_store, "a") == b"by %d" % wins[0]


def test_many_objects_are_listed(any_store: Any) -> None:
    if any_store.url.startswith("s3:"):
        pytest.skip("covered by a smaller page in test_an_s3_listing_is_paged")
    for number in range(203):
        any_store.put(f"k-{number:05d}", b"", if_match=None)
    assert [o.key for o in any_store.list("k-")] == [f"k-{number:05d}" for number in range(203)]


def test_an_s3_listing_is_paged(s3_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3heap_tender.stores.s3._PAGE", 3)
    for number in range(10):
        s3_store.put(f"k-{number}", b"x", if_match=None)
    assert [o.key for o in s3_store.list("k-", before="k-8")] == [f"k-{number}" for number in range(8)]


def test_an_s3_listing_goes_on_after_an_empty_page() -> None:
    asked: list[dict[str, Any]] = []
    row = {"Key": "prefix/k-1", "ETag": '"e"', "Size": 1}
    pages = [{"IsTruncated": True, "NextContinuationToken": "more"}, {"Contents": [row], "IsTruncated": False}]

    class Client:
        async def list_objects_v2(self, **options: Any) -> Any:
            asked.append(options)
            return pages[len(asked) - 1]

    store: Any = HeapStore(
        "s3://bucket/prefix",
        endpoint_url="http://127.0.0.1:9",
        probe=False,
        client="aioboto3",
        access_key="a",
        secret_key="s",
    )
    with store:
        store.inner._client = Client()
        assert [found.key for found in store.list("k-")] == ["k-1"]
        assert asked[1]["ContinuationToken"] == "more"
        pages[:] = [{"IsTruncated": True}]
        asked.clear()
        with pytest.raises(StoreUnavailableError, match="before its end"):
            list(store.list("k-"))


def _increment(path: str, times: int) -> None:
    store = HeapStore(f"file:{path}", probe=False, fsync=False)
    for _ in range(times):
        while True:
            found = store.get("counter")
            assert isinstance(found, StoredObject)
            try:
                store.put("counter", str(int(found.body) + 1).encode(), if_match=found.etag)
                break
            except ConflictError:
                continue


def test_processes_that_compare_and_swap_a_file_lose_no_update(tmp_path: Path) -> None:
    store = HeapStore(f"file:{tmp_path}", fsync=False)
    store.put("counter", b"0", if_match=None)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_increment, args=(str(tmp_path), 200)) for _ in range(3)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
    assert body_of(store, "counter") == b"600"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("heap", "no scheme"),
        ("gs://bucket/x", "unknown scheme 'gs'"),
        ("file:", "names no directory"),
        ("s3://", "needs a bucket"),
        ("s3://bucket/a//b", "'//'"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, message: str) -> None:
    with pytest.raises(StoreUrlError, match=message):
        HeapStore(url)


def test_an_endpoint_is_for_s3_alone() -> None:
    with pytest.raises(StoreUrlError, match="endpoint_url"):
        HeapStore("memory:", endpoint_url="http://127.0.0.1:1")


class Answer(Exception):
    """An error of the S3 client, as botocore shapes it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("error", "writes", "means"),
    [
        (Answer(412, "PreconditionFailed"), True, ConflictError),
        (Answer(409, "ConditionalRequestConflict"), True, ConflictError),
        (Answer(409, "OperationAborted"), False, StoreUnavailableError),
        (Answer(404, "NoSuchKey"), True, ConflictError),
        (Answer(404, "NoSuchBucket"), True, StoreUrlError),
        (Answer(403, "AccessDenied"), False, StoreUrlError),
        (Answer(429, "TooManyRequests"), True, OutcomeUnknownError),
        (Answer(429, "TooManyRequests"), False, StoreUnavailableError),
        (Answer(400, "RequestTimeout"), True, OutcomeUnknownError),
        (Answer(503, "SlowDown"), True, OutcomeUnknownError),
        (Answer(503, "SlowDown"), False, StoreUnavailableError),
        (TimeoutError(), True, OutcomeUnknownError),
        (TimeoutError(), False, StoreUnavailableError),
    ],
)
def test_each_answer_of_s3_has_one_meaning(s3_store: Any, error: Exception, writes: bool, means: type) -> None:
    assert type(s3_store.inner._translated("written", "k", error, writes=writes)) is means


def test_a_clock_that_is_wrong_is_said_to_be_so(s3_store: Any) -> None:
    said = str(s3_store.inner._translated("read", "k", Answer(403, "RequestTimeTooSkewed"), writes=False))
    assert "clock" in said
    assert "credentials" not in said


CLIENTS = pytest.mark.parametrize("client", ["aioboto3", "obstore"])


def needs(client: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")


@CLIENTS
def test_wrong_credentials_are_said_to_be_so(s3_server: Any, client: str) -> None:
    needs(client)
    options = {**s3_server.options, "secret_key": "wrong", "client": client}
    with pytest.raises(StoreUrlError, match="credentials"):
        HeapStore("s3://heap/x", **options)


@pytest.mark.parametrize(
    ("name", "said", "writes", "means"),
    [
        ("AlreadyExistsError", "412", True, ConflictError),
        ("PreconditionError", "412", True, ConflictError),
        ("NotFoundError", "<Code>NoSuchKey</Code>", True, ConflictError),
        ("NotFoundError", "<Code>NoSuchBucket</Code>", True, StoreUrlError),
        ("PermissionDeniedError", "403", True, StoreUrlError),
        ("UnauthenticatedError", "401", False, StoreUrlError),
        ("GenericError", "timed out", True, OutcomeUnknownError),
        ("GenericError", "503", False, StoreUnavailableError),
    ],
)
def test_each_error_of_obstore_has_one_meaning(name: str, said: str, writes: bool, means: type) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    store = HeapStore("s3://heap/x", client="obstore", probe=False, access_key="a", secret_key="b")
    error = getattr(exceptions, name)(said)
    assert type(store.inner._translated("written", "k", error, writes=writes)) is means


@CLIENTS
def test_a_server_that_does_not_answer_is_unavailable(client: str) -> None:
    needs(client)
    with pytest.raises(StoreUnavailableError):
        HeapStore(
            "s3://heap/x",
            endpoint_url="http://127.0.0.1:9",
            access_key="a",
            secret_key="b",
            timeout=2,
            client=client,
        )


def test_a_client_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUrlError, match="no S3 client 'curl': use aioboto3 or obstore"):
        HeapStore("s3://heap/x", client="curl")
    monkeypatch.setenv("MAINSPRING_S3_CLIENT", "wget")
    with pytest.raises(StoreUrlError, match="no S3 client 'wget'"):
        HeapStore("s3://heap/x")


def test_a_client_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreUrlError, match=r"pip install 's3heap-tender\[obstore\]'"):
        HeapStore("s3://heap/x", client="obstore", access_key="a", secret_key="b")


def test_what_one_client_wrote_the_other_reads_and_replaces(s3_store: Any, s3_server: Any) -> None:
    pytest.importorskip("obstore")
    with HeapStore(s3_store.url, client="obstore", **s3_server.options) as other:
        etag = s3_store.put("a", b"one", if_match=None)
        assert other.get("a") == StoredObject(b"one", etag)
        second = other.put("a", b"two", if_match=etag)
        assert [o.etag for o in s3_store.list("")] == [second]
        s3_store.delete("a", if_match=second)
        assert other.get("a") is None


@CLIENTS
def test_a_server_that_never_answers_costs_its_time_out(client: str) -> None:
    needs(client)
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it accepts, and says nothing
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            HeapStore(
                "s3://heap/x",
                endpoint_url=f"http://127.0.0.1:{deaf.getsockname()[1]}",
                access_key="a",
                secret_key="b",
                timeout=1.0,
                client=client,
            )
        assert time.monotonic() - began < 60


def test_an_endpoint_that_is_no_url_is_refused_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(StoreUrlError, match="endpoint_url='nonsense'"):
        HeapStore("s3://heap/x", endpoint_url="nonsense", access_key="a", secret_key="b")
    assert set(threading.enumerate()) <= before


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreUrlError, match="Unable to locate credentials; set credentials"):
        HeapStore("s3://heap/x", endpoint_url="http://127.0.0.1:9")


def test_what_a_writer_that_died_left_in_a_directory_is_removed(tmp_path: Path) -> None:
    store = HeapStore(f"file:{tmp_path}")
    etag = store.put("0000-x", b"sound", if_match=None)
    (tmp_path / ".0000-x.0123456789abcdef").write_bytes(b"half")
    again = HeapStore(f"file:{tmp_path}")
    assert sorted(os.listdir(tmp_path)) == [".locks", "0000-x"]
    assert again.get("0000-x") == StoredObject(b"sound", etag)


def test_a_directory_whose_flush_fails_leaves_the_outcome_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HeapStore(f"file:{tmp_path}")
    flush = os.fsync

    def failing(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(5, "Input/output error")
        flush(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutcomeUnknownError, match="Input/output"):
        store.put("a", b"x", if_match=None)
    monkeypatch.undo()
    assert body_of(store, "a") == b"x"


class Lax(MemoryStore):
    """A store that ignores one condition."""

    def __init__(self, ignores: str) -> None:
        super().__init__()
        self.ignores = ignores

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        if self.ignores == ("If-None-Match on PUT" if if_match is None else "If-Match on PUT"):
            with self._lock:
                self._objects[key] = body
            return self.get(key).etag  # type: ignore[union-attr]
        return super().put(key, body, if_match=if_match)

    def delete(self, key: str, *, if_match: str) -> None:
        if self.ignores == "If-Match on DELETE":
            with self._lock:
                self._objects.pop(key, None)
            return
        super().delete(key, if_match=if_match)


@pytest.mark.parametrize("condition", ["If-None-Match on PUT", "If-Match on PUT", "If-Match on DELETE"])
def test_a_store_that_ignores_a_condition_is_refused_at_open(condition: str) -> None:
    lax = Lax(condition)
    with pytest.raises(UnconditionalStoreError, match=condition):
        HeapStore("memory:", store=lax)
    assert list(lax.list("")) == []


class Forgetful(MemoryStore):
    """A store whose writes land although their callers are told of a time-out, or don't, as `plan` says."""

    def __init__(self, plan: list[str]) -> None:
        super().__init__()
        self.plan = plan

    def _faulty(self, write: Callable[[], Any]) -> Any:
        step = self.plan.pop(0) if self.plan else "answer"
        if step == "503":
            raise StoreUnavailableError("503")
        result = write() if step in ("answer", "landed") else None
        if step != "answer":
            raise OutcomeUnknownError("time-out")
        return result

    def put(self, key: str, body: bytes, *, if_match: str | None) -> str:
        etag: str = self._faulty(lambda: super(Forgetful, self).put(key, body, if_match=if_match))
        return etag

    def delete(self, key: str, *, if_match: str) -> None:
        self._faulty(lambda: super(Forgetful, self).delete(key, if_match=if_match))


@pytest.mark.parametrize("plan", [["landed"], ["lost"], ["503"], ["lost", "landed"], ["503", "lost", "503", "landed"]])
def test_a_write_whose_answer_is_lost_is_read_again(quick: Any, plan: list[str]) -> None:
    store = Forgetful([])
    heap = type(quick.heap)(store, quick.sysdb, threads=0, linger=0, sleep=lambda _: None)
    task = quick.sysdb.create_task("p", "t", cadence=0)
    store.plan = list(plan)
    heap.push(task)
    assert heap.peek() == [task.item]
    quick.sysdb.delete(task.id)
    quick.clock.sleep(100)
    store.plan = list(plan)
    assert heap.prune().deleted == 1
    assert heap.buckets() == []
    assert store.plan == []
