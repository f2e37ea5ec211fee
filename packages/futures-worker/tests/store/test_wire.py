"""Frames and the handshake: who does not know the secret gets nothing, and nothing it sends is parsed."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from fdb_schema import boot_id
from futures_worker.errors import AddressInUseError, AuthenticationError, ObjectLostError, OversizeError, WireError
from futures_worker.objects import store_client
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.ports import wire
from futures_worker.ports.sealing import HEADER, Half, Halves

SECRET = b"s" * 32
CUT_OFF = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    store = ObjectStore(directory, 1 << 20)
    yield store
    store.close()
    directory.remove()


@pytest.fixture
def address(store: ObjectStore) -> Iterator[tuple[str, int]]:
    sock = listen("127.0.0.1", 0)
    ip, port = sock.getsockname()
    server = StoreServer(sock, SECRET, store, lambda: {"incarnation": b"i", "pid": 7})
    server.start()
    yield ip, port
    server.close()


@pytest.fixture
def fetcher() -> Iterator[ObjectFetcher]:
    fetcher = ObjectFetcher(SECRET)
    yield fetcher
    fetcher.close()


def handshake(server_secret: bytes, client_secret: bytes, **options: Any) -> tuple[Any, Any]:
    """Both halves; each outcome is a connection or the exception it ended with."""
    listener = socket.create_server(("127.0.0.1", 0))
    outcomes: list[Any] = [None]

    def serve() -> None:
        peer, _ = listener.accept()
        try:
            outcomes[0] = wire.accept(peer, server_secret, **options)
        except Exception as exc:
            peer.close()
            outcomes[0] = exc

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client: Any = wire.connect(listener.getsockname(), client_secret)
    except Exception as exc:
        client = exc
    thread.join()
    listener.close()
    return outcomes[0], client


def test_who_knows_the_secret_is_heard_whatever_the_size() -> None:
    server, client = handshake(SECRET, SECRET)
    body = bytes(range(256)) * 4000
    with server, client:
        sender = threading.Thread(target=client.send, args=({"op": "x", "n": 1}, body))
        sender.start()
        assert server.receive() == ({"op": "x", "n": 1}, bytearray(body))
        sender.join()
        server.send({"ok": True})
        assert client.receive() == ({"ok": True}, bytearray())
        client.close()
        with pytest.raises(EOFError):
            server.receive()


def test_who_does_not_know_the_secret_is_refused_on_both_sides() -> None:
    server, client = handshake(SECRET, b"t" * 32)
    assert isinstance(server, AuthenticationError)
    assert isinstance(client, AuthenticationError)


def test_a_server_that_does_not_know_the_secret_is_not_trusted() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def impostor() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(wire.MAGIC + bytes(32))
            peer.recv(1000)
            peer.sendall(bytes(32))

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(AuthenticationError, match="does not know this cluster's secret"):
        wire.connect(listener.getsockname(), SECRET)
    thread.join()
    listener.close()


def test_a_server_that_dies_during_the_handshake_did_not_refuse() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def mortal() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(wire.MAGIC + bytes(32))
            peer.recv(1000)

    thread = threading.Thread(target=mortal)
    thread.start()
    with pytest.raises(WireError, match="left during the handshake") as raised:
        wire.connect(listener.getsockname(), SECRET)
    assert not isinstance(raised.value, AuthenticationError)
    thread.join()
    listener.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n" + b"x" * 100, b"x" * 72, b"short"])
def test_strangers_are_cut_off_before_a_frame_is_read(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address, 30) as sock:
        assert sock.recv(40).startswith(wire.MAGIC)
        try:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        except OSError as exc:
            # Cut off with bytes unread, the kernel resets the connection, and says so in several ways.
            assert exc.errno in CUT_OFF  # noqa: PT017


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (struct.pack(">IQ", wire.MAX_HEADER + 1, 0), "header of 65537 bytes, over the limit"),
        (struct.pack(">IQ", 10, 1001), "body of 1001 bytes, over the limit of 1000"),
        (struct.pack(">IQ", 5, 0) + b"\x80", "in the middle of a message"),
        (struct.pack(">IQ", 1, 0) + b"\x80" + bytes(16), "isn't what the peer sent"),
    ],
)
def test_bad_frames_are_errors_that_say_what_was_found(frame: bytes, message: str) -> None:
    server, client = handshake(SECRET, SECRET, max_body=1000)
    with server, client:
        client.sock.sendall(frame)
        client.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(WireError, match=message):
            server.receive()


@pytest.mark.parametrize(
    ("header", "message"), [(b"\xc1", "no msgpack"), (b"\x01", "no map but int"), (b"\x91" * 5000, "no msgpack")]
)
def test_bad_headers_of_a_proven_peer_are_errors_that_say_what_was_found(header: bytes, message: str) -> None:
    server, client = handshake(SECRET, SECRET)
    with server, client:
        lengths = struct.pack(">IQ", len(header), 0)
        client.sock.sendall(lengths + b"".join(client.halves.sending.seal(HEADER, header, lengths)))
        with pytest.raises(WireError, match=message):
            server.receive()


def test_headers_over_the_limit_are_not_sent() -> None:
    server, client = handshake(SECRET, SECRET)
    with server, client, pytest.raises(WireError, match="over the limit"):
        client.send({"x": bytes(wire.MAX_HEADER)})


def test_two_listeners_on_one_address_are_refused(address: tuple[str, int]) -> None:
    with pytest.raises(AddressInUseError, match=f"127.0.0.1:{address[1]}"):
        listen(*address)


@pytest.mark.parametrize("by_file", [True, False])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_objects_are_fetched_by_mapping_and_by_network(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher, by_file: bool, size: int
) -> None:
    data = bytes(i % 251 for i in range(size))
    store.add("thing", [data])
    assert bytes(fetcher.fetch(address, "thing", by_file=by_file)) == data
    assert fetcher.hello(address) == {"ok": True, "incarnation": b"i", "pid": 7}


def test_a_fetched_file_is_a_link_on_the_same_file_system_and_a_copy_elsewhere(
    store: ObjectStore,
    address: tuple[str, int],
    fetcher: ObjectFetcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.add("thing", [b"data"])
    located = store.locate("thing")
    assert located is not None
    assert fetcher.fetch_file(address, "thing", tmp_path / "link") == 4
    assert (tmp_path / "link").samefile(located[0])

    def other_file_system(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(store_client.os, "link", other_file_system)
    assert fetcher.fetch_file(address, "thing", tmp_path / "copy") == 4
    assert (tmp_path / "copy").read_bytes() == b"data"
    assert not (tmp_path / "copy").samefile(located[0])


def test_objects_are_stored_and_removed_from_afar(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher
) -> None:
    assert fetcher.put(address, "thing", b"data") == 4
    assert store.names() == ["thing"]
    assert fetcher.delete(address, "thing")
    assert not fetcher.delete(address, "thing")
    with pytest.raises(ObjectLostError, match="no longer holds object thing"):
        fetcher.fetch(address, "thing")


def test_a_large_object_is_stored_as_it_comes_and_one_that_fits_nowhere_is_refused(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(i % 251 for i in range(2_500_000))
    assert fetcher.put(address, "large", data) == len(data)
    assert bytes(fetcher.fetch(address, "large")) == data

    def refuse(name: str, size: int, pieces: object) -> int:
        raise OversizeError(f"no room for {size} bytes")

    monkeypatch.setattr(store, "add_stream", refuse)
    monkeypatch.setattr(store, "grant", lambda name, size: refuse(name, size, None))
    with pytest.raises(ObjectLostError, match="no room for 2500000 bytes"):
        fetcher.put(address, "refused", data)
    assert store.names() == ["large"]
    assert bytes(fetcher.fetch(address, "large", by_file=False)) == data  # the connection is still in step


def test_names_that_leave_the_directory_end_the_connection(address: tuple[str, int], store: ObjectStore) -> None:
    with wire.connect(address, SECRET) as connection:
        connection.send({"op": "get", "name": "../../etc/passwd"})
        with pytest.raises((EOFError, WireError)):
            connection.receive()


def test_a_worker_that_is_gone_is_an_object_lost(fetcher: ObjectFetcher) -> None:
    sock = listen("127.0.0.1", 0)
    gone = sock.getsockname()
    sock.close()
    with pytest.raises(ObjectLostError, match="can't be reached for object thing"):
        fetcher.fetch(gone, "thing")


def test_a_fetcher_of_another_cluster_is_told_so(address: tuple[str, int]) -> None:
    fetcher = ObjectFetcher(b"t" * 32)
    with pytest.raises(AuthenticationError, match="another cluster"):
        fetcher.fetch(address, "thing")


def test_a_restarted_worker_is_found_again_over_a_connection_that_broke(
    store: ObjectStore, fetcher: ObjectFetcher
) -> None:
    sock = listen("127.0.0.1", 0)
    where = sock.getsockname()
    first = StoreServer(sock, SECRET, store, dict)
    first.start()
    store.add("thing", [b"data"])
    assert bytes(fetcher.fetch(where, "thing")) == b"data"
    first.close()
    second = StoreServer(listen(*where), SECRET, store, dict)
    second.start()
    try:
        assert bytes(fetcher.fetch(where, "thing")) == b"data"
    finally:
        second.close()


def test_many_readers_at_once(store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher) -> None:
    for i in range(20):
        store.add(f"thing-{i}", [msgpack.packb(i) * 1000])
    failures: list[BaseException] = []

    def read(i: int) -> None:
        try:
            for _ in range(10):
                assert bytes(fetcher.fetch(address, f"thing-{i}", by_file=i % 2 == 0)) == msgpack.packb(i) * 1000
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_stranger_who_sends_a_byte_now_and_then_has_no_longer_than_one_who_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT", 0.3)
    with listen("127.0.0.1", 0) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(OSError):
                theirs.send(b"m")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        begun = time.monotonic()
        with pytest.raises(wire.WireError, match="left during the handshake"):
            wire.accept(ours, SECRET)
        assert time.monotonic() - begun < 0.1 * (8 + 32 + 32), "byte by byte it could have had that long"
    finally:
        ended.set()
        dripping.join()
        ours.close()
        theirs.close()


def test_a_body_that_comes_byte_by_byte_is_not_waited_for_longer_than_one_that_does_not_come() -> None:
    ours, theirs = socket.socketpair()
    key = b"k" * 32
    sender, receiver = (
        wire.Connection(one, Halves(Half(key, False), Half(key, False)), max_body=1 << 20) for one in (ours, theirs)
    )
    over = threading.Event()
    dripped = 0

    def drip() -> None:
        nonlocal dripped
        ours.sendall(sender._head(msgpack.packb({"ok": True}), 1 << 20))
        while dripped < 1000 and not over.wait(0.01):
            ours.sendall(b"x")
            dripped += 1
        ours.close()

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        theirs.settimeout(0.5)
        with pytest.raises(TimeoutError):
            receiver.receive()
        assert dripped < 1000
        assert theirs.gettimeout() == 0.5
    finally:
        over.set()
        thread.join()
        theirs.close()


def test_idle_connections_make_room_for_whoever_comes(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients as like may know a worker: what they keep open for later holds no place for good."""
    monkeypatch.setattr("futures_worker.objects.store_server.MAX_CONNECTIONS", 3)
    server = StoreServer(listen("127.0.0.1", 0), SECRET, store, dict)
    where = server._sock.getsockname()
    server.start()
    store.add("thing", [b"data"])
    fetchers = [ObjectFetcher(SECRET, timeout=30.0) for _ in range(8)]
    writer = wire.connect(where, SECRET)
    try:
        writer.send({"op": "grant", "name": "other", "size": 4, "boot": boot_id()})
        granted, _ = writer.receive()
        for _ in range(2):  # the second time over connections that were closed meanwhile
            for fetcher in fetchers:
                assert bytes(fetcher.fetch(where, "thing")) == b"data"
        Path(granted["path"]).write_bytes(b"more")
        writer.send({"op": "adopt", "name": "other", "size": 4})
        assert writer.receive()[0]["ok"], "who was granted room isn't idle"
        assert len(server._connections) <= 3
    finally:
        writer.close()
        for fetcher in fetchers:
            fetcher.close()
        server.close()


def test_bodies_that_somebody_holds_up_on_their_way_hold_no_place_for_good(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is between two processes can let their connection live on, and nothing come through."""
    monkeypatch.setattr("futures_worker.objects.store_server.MAX_CONNECTIONS", 2)
    monkeypatch.setattr("futures_worker.objects.store_server.STALL_SECONDS", 0.0, raising=False)
    store.add("thing", [b"data"])
    store.add("large", [bytes(64 << 20)])
    began, add = threading.Event(), store.add_stream

    def add_stream(*arguments: Any) -> int:
        began.set()
        return add(*arguments)

    monkeypatch.setattr(store, "add_stream", add_stream)
    server = StoreServer(listen("127.0.0.1", 0), SECRET, store, dict)
    where = server._sock.getsockname()
    server.start()
    fetcher = ObjectFetcher(SECRET, timeout=10.0)
    with wire.connect(where, SECRET) as writer, wire.connect(where, SECRET) as reader:
        try:
            reader.send({"op": "get", "name": "large"})
            assert reader.receive_header()[1] == 64 << 20
            header = msgpack.packb({"op": "put", "name": "other"})
            writer.sock.sendall(writer._head(header, 1 << 20) + b"a part")
            assert began.wait(20)
            assert bytes(fetcher.fetch(where, "thing")) == b"data"
            assert len(server._connections) <= 2
        finally:
            fetcher.close()
            server.close()


def test_connections_to_workers_of_long_ago_are_closed(
    store: ObjectStore, fetcher: ObjectFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("futures_worker.objects.store_client.MAX_IDLE_WORKERS", 2)
    store.add("thing", [b"data"])
    servers = [StoreServer(listen("127.0.0.1", 0), SECRET, store, dict) for _ in range(6)]
    try:
        for server in servers:
            server.start()
            assert bytes(fetcher.fetch(server._sock.getsockname(), "thing")) == b"data"
        assert list(fetcher._idle) == [server._sock.getsockname() for server in servers[-2:]]
    finally:
        for server in servers:
            server.close()
