"""Where metrics can't be served, the error says so in a line."""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving import metrics
from fdb_schema.serving.metrics import (
    MOST_CONNECTIONS,
    Metric,
    MetricsAddressError,
    MetricsServer,
    host_name,
    metrics_served,
)


def test_a_port_that_is_taken_is_a_usage_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsAddressError, match=f"127.0.0.1:{port}") as caught:
            MetricsServer(list, "127.0.0.1", port)
    assert isinstance(caught.value, OSError)
    assert caught.value.exit_code == EXIT_USAGE


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_where_they_are_served_can_be_told_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    began = []
    with metrics_served(list, "127.0.0.1", 0):
        began.append(True)
    assert began


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    server = MetricsServer(lambda: [Metric("up", "Up.").add(1)], "::1")
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.address[1]}/metrics", timeout=60) as answer:
            assert b"up 1" in answer.read()
    finally:
        server.close()


def answered(server: MetricsServer) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/healthz", timeout=30) as answer:
        return bool(answer.read() == b"ok\n")


def test_connections_that_ask_for_nothing_keep_nobody_out() -> None:
    server = MetricsServer(list)
    silent = [socket.create_connection(server.address, 30) for _ in range(300)]
    try:
        assert answered(server)
        assert len(server._server._open) <= MOST_CONNECTIONS
    finally:
        for one in silent:
            one.close()
        server.close()


class _Turn:
    """A lock that tells who comes to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = threading.Semaphore(0)

    def acquire(self, timeout: float) -> bool:
        self.asked.release()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class _Collection:
    """Figures that are there when `go_on` is set, as of a database that is away until then."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.count = 0

    def __call__(self) -> list[Metric]:
        self.count += 1
        self.go_on.wait(30)
        return [Metric("collections", "So far.").add(self.count)]


@pytest.fixture
def collection() -> Iterator[_Collection]:
    made = _Collection()
    yield made
    made.go_on.set()


def _asking(server: MetricsServer) -> socket.socket:
    one = socket.create_connection(server.address, 30)
    one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    return one


def test_who_asks_while_figures_are_collected_costs_no_further_collection_and_few_threads(
    collection: _Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(metrics, "MOST_THREADS", 4)
    server, turn, asking = MetricsServer(collection), _Turn(), []
    server._page._turn = turn  # type: ignore[assignment]
    try:
        for _ in range(4):
            asking.append(_asking(server))
            assert turn.asked.acquire(timeout=30)
        with contextlib.suppress(ConnectionError), _asking(server) as one_more:
            assert not one_more.recv(1)
        collection.go_on.set()
        for one in asking[2:]:  # the others gave their places to them
            with one.makefile("rb") as answer:
                assert b"collections 2" in answer.read()
        assert collection.count == 2
    finally:
        for one in asking:
            one.close()
        server.close()


def test_who_asks_while_figures_can_not_be_had_is_told_so(
    collection: _Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE", 0.01)
    server, turn = MetricsServer(collection), _Turn()
    server._page._turn = turn  # type: ignore[assignment]
    try:
        with _asking(server), contextlib.suppress(ConnectionError):
            assert turn.asked.acquire(timeout=30)
            with _asking(server) as other, other.makefile("rb") as answer:
                assert b" 503 " in answer.readline()
        assert answered(server)
    finally:
        collection.go_on.set()
        server.close()


@pytest.mark.parametrize("sent", [b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, b"GET /metr", b""])
def test_a_request_without_end_costs_a_connection_for_a_while_and_no_memory(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE", 0.2)
    server = MetricsServer(list)
    try:
        with socket.create_connection(server.address, 30) as one, contextlib.suppress(ConnectionError):
            one.sendall(sent)
            one.settimeout(0.05)
            for _ in range(100):  # byte by byte it gets no more time
                with contextlib.suppress(TimeoutError):
                    assert not one.recv(1)
                    break
                one.sendall(b"x")
            else:
                pytest.fail("it still has its place")
        assert answered(server)
    finally:
        server.close()


def test_a_shortage_of_descriptors_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MetricsServer(list)
    accept = socket.socket.accept
    failures = [OSError(errno.EMFILE, "scarce"), OSError(errno.ENFILE, "scarce"), MemoryError()]

    def scarce(self: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    try:
        assert answered(server)
        assert not failures
    finally:
        server.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9100", 200),
        ("localhost", 200),
        ("[::1]:9100", 200),
        ("evil.example", 403),
        ("10.0.0.7", 403),
        ("", 403),
        ("evil@localhost", 403),
        ("[", 403),
    ],
)
def test_on_loopback_a_page_that_lets_its_own_name_point_here_reads_nothing(host: str, status: int) -> None:
    server = MetricsServer(lambda: [Metric("up", "Up.").add(1)])
    asking = HTTPConnection(*server.address, timeout=30)
    try:
        asking.request("GET", "/metrics", headers={"Host": host})
        assert asking.getresponse().status == status
    finally:
        asking.close()
        server.close()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("127.0.0.1:8420", "127.0.0.1"),
        ("[::1]:8420", "::1"),
        ("[::1]", "::1"),
        ("localhost:80@evil.example", ""),
        ("[::1]evil.example", ""),
        ("::1", ""),
        ("", ""),
        ("localhost:8420:1", ""),
    ],
)
def test_the_host_of_a_header_that_is_more_than_a_host_is_none(header: str, name: str) -> None:
    assert host_name(header) == name
