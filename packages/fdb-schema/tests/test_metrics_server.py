"""Where metrics can't be served, the error says so in a line."""

from __future__ import annotations

import errno
import socket
import urllib.request
from http.client import HTTPConnection

import pytest

from fdb_schema.errors import EXIT_USAGE
from fdb_schema.metrics import MOST_CONNECTIONS, Metric, MetricsAddressError, MetricsServer, host_name


def test_a_port_that_is_taken_is_a_usage_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsAddressError, match=f"127.0.0.1:{port}") as caught:
            MetricsServer(list, "127.0.0.1", port)
    assert isinstance(caught.value, OSError)
    assert caught.value.exit_code == EXIT_USAGE


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
