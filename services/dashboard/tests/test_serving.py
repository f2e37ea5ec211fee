"""Connections that ask for nothing, or slowly, hold no place of the dashboard's."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from typer.testing import CliRunner

from mainspring_dashboard import serving
from mainspring_dashboard.cli import app


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(serving, "MOST_SILENT", 8)
    sock = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **serving.limits()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    yield sock.getsockname()
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
    assert not serving.PatientProtocol.silent


def test_silent_connections_keep_nobody_out(place: tuple[str, int]) -> None:
    silent = [socket.create_connection(place, 30) for _ in range(50)]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{place[1]}/", timeout=30) as answer:
            assert answer.read() == b"here"
        with pytest.raises((ConnectionError, AssertionError)):  # the first had to go
            assert silent[0].recv(1)
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_whose_request_doesnt_come_in_time_is_cut_off(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(place, 30) as slow:
        slow.sendall(sent)
        slow.settimeout(30)
        with pytest.raises((ConnectionError, AssertionError)):
            assert slow.recv(1)


def test_whose_second_request_doesnt_come_in_time_is_cut_off(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(place, 30) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.settimeout(30)
        answer = b""
        while not answer.endswith(b"here"):
            answer += slow.recv(1000)
        slow.sendall(b"G")
        with pytest.raises((ConnectionError, AssertionError)):
            assert slow.recv(1)


def test_those_who_asked_once_keep_nobody_out(place: tuple[str, int]) -> None:
    held = []
    try:
        for _ in range(30):
            one = socket.create_connection(place, 30)
            held.append(one)
            one.settimeout(30)
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(1)
        assert len(serving.PatientProtocol.silent) <= serving.MOST_SILENT
    finally:
        for one in held:
            one.close()


@pytest.mark.parametrize(
    ("token", "said"), [("short", "anybody could guess"), ("sixteen-and-a-€-sign", "no header can carry")]
)
def test_a_token_that_cant_serve_is_refused_at_the_start(token: str, said: str) -> None:
    refused = CliRunner().invoke(app, ["--token", token, "--db", "memory:"])
    assert refused.exit_code == 2, refused.output
    assert said in refused.output
