"""Strangers and shortages at a port: whoever knows the secret gets in, and nothing that comes ends the accepting."""

from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from futures_worker.errors import WireError
from futures_worker.objects.store_server import listen
from futures_worker.ports import acceptor as acceptor_module
from futures_worker.ports import wire
from futures_worker.ports.acceptor import Acceptor, source_of
from futures_worker.ports.handshake import ClientHandshake

SECRET = b"s" * 32


class Site:
    """An acceptor, and what it let in."""

    def __init__(self, sock: Any = None) -> None:
        self.sock = sock or listen("127.0.0.1", 0)
        self.place = self.sock.getsockname()
        self.let_in: queue.Queue[wire.Connection] = queue.Queue()
        self.on_peer: Callable[[wire.Connection], bool] = self.keep
        self.acceptor = Acceptor(self.sock, SECRET, lambda connection: self.on_peer(connection))
        self.acceptor.start()

    def keep(self, connection: wire.Connection) -> bool:
        self.let_in.put(connection)
        return True

    def gets_in(self) -> None:
        """A process of the cluster comes, and a message of it arrives."""
        with wire.connect(self.place, SECRET, timeout=20) as client:
            client.send({"op": "hello"})
            with self.let_in.get(timeout=20) as connection:
                assert connection.receive()[0] == {"op": "hello"}

    def close(self) -> None:
        self.acceptor.close()
        self.sock.close()
        assert not self.acceptor.thread.is_alive()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def test_half_open_connections_keep_nobody_out(site: Site) -> None:
    strangers = [socket.create_connection(site.place, 20) for _ in range(600)]
    try:
        site.gets_in()
        assert len(site.acceptor._peers) <= acceptor_module.MOST_UNPROVEN
        with socket.create_connection(site.place, 20) as probe:  # as an orchestrator does
            assert probe.recv(8) == wire.MAGIC
        site.gets_in()
    finally:
        for stranger in strangers:
            stranger.close()


def test_who_comes_from_one_address_however_often_keeps_out_no_slow_peer_of_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers: list[socket.socket] = []
    hello = ClientHandshake.hello

    def late(shake: ClientHandshake, greeting: bytes) -> bytes:
        """By the time it comes, many others have."""
        while len(strangers) < 30:
            strangers.append(socket.create_connection(site.place, 20, ("127.0.0.2", 0)))
            assert strangers[-1].recv(8) == wire.MAGIC
        return hello(shake, greeting)

    monkeypatch.setattr(ClientHandshake, "hello", late)
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT", 60.0)
    site.acceptor._most = 8
    try:
        site.gets_in()
        assert len(site.acceptor._peers) <= 8
        assert site.acceptor._sources.total() == len(site.acceptor._peers)
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 2), True),
        (("fe80::1%eth0", 1, 0, 3), ("fe80::2%eth0", 1, 0, 3), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        ("", "", True),  # of a socket in the file system
    ],
)
def test_where_peers_come_from(one: object, other: object, same: bool) -> None:
    assert (source_of(one) == source_of(other)) is same


def test_who_says_nothing_is_cut_off_in_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT", 0.2)
    with socket.create_connection(site.place, 20) as stranger:
        stranger.settimeout(20)
        data = b""
        while more := stranger.recv(100):  # until it is cut off
            data += more
        assert data.startswith(wire.MAGIC)
    assert not site.acceptor._peers


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 145, wire.MAGIC + b"x" * 137, b""])
def test_what_strangers_say_ends_their_connection_only(site: Site, sent: bytes) -> None:
    for _ in range(3):
        with socket.create_connection(site.place, 20) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            try:
                while stranger.recv(100):
                    pass
            except ConnectionError:
                pass  # cut off with bytes unread
        site.gets_in()


class Scarce:
    """A listening socket whose `accept` fails as long as something is scarce."""

    def __init__(self, error: int | None) -> None:
        self.sock = listen("127.0.0.1", 0)
        self.error = error
        self.failed = 0
        self.scarce = True

    def accept(self) -> Any:
        if self.scarce:
            self.failed += 1
            if self.error is None:
                raise MemoryError
            raise OSError(self.error, "scarce")
        return self.sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EPERM, None])
def test_a_shortage_passes_and_who_came_meanwhile_gets_in(error: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if error is None:  # there is no memory for what would be said, either

        def warning(*arguments: object) -> None:
            raise MemoryError

        monkeypatch.setattr(acceptor_module.log, "warning", warning)
    scarce = Scarce(error)
    site = Site(scarce)
    begun = threading.Thread(target=site.gets_in)
    try:
        begun.start()
        while scarce.failed < 3 and site.acceptor.thread.is_alive():
            time.sleep(0.01)
        scarce.scarce = False
        begun.join(20)
        assert not begun.is_alive()
        assert scarce.failed < 1000, "it doesn't turn in circles meanwhile"
        site.gets_in()
    finally:
        site.close()


def test_one_peer_that_cant_be_served_is_cut_off_and_the_next_is_served(site: Site) -> None:
    def no_thread(connection: wire.Connection) -> bool:
        raise RuntimeError("can't start new thread")

    site.on_peer = no_thread
    with wire.connect(site.place, SECRET) as client, pytest.raises((EOFError, WireError)):
        client.receive()
    site.on_peer = site.keep
    site.gets_in()


def test_who_finds_no_place_gets_one_when_it_is_free(site: Site) -> None:
    asked = threading.Event()

    def no_place(connection: wire.Connection) -> bool:
        asked.set()
        return False

    site.on_peer = no_place
    with wire.connect(site.place, SECRET) as client:
        client.send({"op": "hello"})
        assert asked.wait(20)
        assert site.let_in.empty()
        site.on_peer = site.keep
        site.acceptor.poke()
        with site.let_in.get(timeout=20) as connection:
            assert connection.receive()[0] == {"op": "hello"}


def test_closing_cuts_off_whoever_is_half_in() -> None:
    site = Site()
    with socket.create_connection(site.place, 20) as stranger:
        assert stranger.recv(8) == wire.MAGIC
        site.close()
        site.acceptor.close()  # twice does no harm
        stranger.settimeout(20)
        while stranger.recv(100):
            pass
