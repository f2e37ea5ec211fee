"""Connections that ask for nothing, or slowly, or don't read their answers hold no place of the dashboard's."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from mainspring_dashboard import serving
from mainspring_dashboard.cli import app

LARGE = 16 << 20  # bytes; more than the system takes in for a peer that doesn't read


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 100_000
        await asyncio.sleep(0)  # where it can be cancelled


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(serving, "MOST_SILENT", 8)
    sock = socket.create_server(("127.0.0.1", 0))
    app = Starlette(
        routes=[
            Route("/", lambda request: PlainTextResponse("here")),
            Route("/large", lambda request: PlainTextResponse(b"x" * LARGE)),
            Route("/stream", lambda request: StreamingResponse(_endless())),
        ]
    )
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


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each connection that the server gave up or its peer closed."""
    released = threading.Semaphore(0)
    lose = serving.PatientProtocol.connection_lost

    def counted(self: serving.PatientProtocol, exc: Exception | None) -> None:
        lose(self, exc)
        released.release()

    monkeypatch.setattr(serving.PatientProtocol, "connection_lost", counted)
    return released


UNREAD = [
    b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
    b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n",
]


def _ask(place: tuple[str, int], request: bytes) -> socket.socket:
    """Asks, and takes a single byte of the answer."""
    made = socket.create_connection(place, 30)
    made.sendall(request)
    made.settimeout(30)
    assert made.recv(1)
    return made


@pytest.mark.parametrize("request_", UNREAD, ids=["pipelined", "closing", "stream"])
def test_who_doesnt_read_an_answer_is_cut_off(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch, lost: threading.Semaphore, request_: bytes
) -> None:
    monkeypatch.setattr(serving, "READING_SECONDS", 0.2)
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    with _ask(place, request_):
        assert lost.acquire(timeout=30)


def test_those_who_dont_read_their_answers_keep_nobody_out(place: tuple[str, int], lost: threading.Semaphore) -> None:
    unread = [_ask(place, UNREAD[number % 3]) for number in range(20)]
    try:
        for _ in range(20 - serving.MOST_SILENT):
            assert lost.acquire(timeout=30)
        with urllib.request.urlopen(f"http://127.0.0.1:{place[1]}/", timeout=30) as answer:
            assert answer.read() == b"here"
    finally:
        for one in unread:
            one.close()


def test_who_reads_slowly_is_not_cut_off(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch, lost: threading.Semaphore
) -> None:
    waits = threading.Semaphore(0)
    give_up = serving.PatientProtocol._give_up

    def counted(self: serving.PatientProtocol) -> None:
        give_up(self)
        waits.release()

    monkeypatch.setattr(serving, "READING_SECONDS", 0.05)
    monkeypatch.setattr(serving, "LEAST_READ", -LARGE)  # however little was read since
    monkeypatch.setattr(serving.PatientProtocol, "_give_up", counted)
    with _ask(place, UNREAD[1]) as slow:
        for _ in range(3):
            assert waits.acquire(timeout=30)
        got = 1
        while piece := slow.recv(1 << 20):
            got += len(piece)
    assert got > LARGE


@pytest.mark.parametrize(
    ("token", "said"), [("short", "anybody could guess"), ("sixteen-and-a-€-sign", "no header can carry")]
)
def test_a_token_that_cant_serve_is_refused_at_the_start(token: str, said: str) -> None:
    refused = CliRunner().invoke(app, ["--token", token, "--db", "memory:"])
    assert refused.exit_code == 2, refused.output
    assert said in refused.output
