"""Who a peer is: knowing the secret isn't being the one that was dialled, and what is sent can't be changed on its way."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fdb_datamodel import ClusterSpace
from fdb_schema import RecordError, boot_id, open_database
from futures_worker.cli import main
from futures_worker.errors import AuthenticationError, ObjectLostError, WireError
from futures_worker.objects import store_secret
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectAbsentError, ObjectFetcher
from futures_worker.objects.store_secret import ClusterSecrets, cluster_secret
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.ports import wire
from futures_worker.ports.handshake import ACTOR, OBJECTS, FixedSecret, Identity, MisdirectedError, secret_id
from futures_worker.ports.sealing import Half, Halves, Records
from idempotent_txn import run

SECRET = b"s" * 32
SPACE = ClusterSpace("test")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    store = ObjectStore(directory, 1 << 24)
    yield store
    store.close()
    directory.remove()


@contextlib.contextmanager
def serving(store: ObjectStore, secret: Any = SECRET, *incarnations: bytes) -> Iterator[tuple[str, int]]:
    sock = listen("127.0.0.1", 0)
    ip, port = sock.getsockname()
    identity = Identity(OBJECTS, ip, port, lambda: incarnations) if incarnations else None
    server = StoreServer(sock, secret, store, dict, identity=identity)
    server.start()
    yield ip, port
    server.close()


@contextlib.contextmanager
def stranger(to: tuple[str, int], change: Callable[[bytes, bool], bytes] = lambda data, up: data) -> Iterator[Any]:
    """Somebody between two processes, who knows no secret: passes on what `change` gives of what it sees. Its address, what it saw."""
    sock = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def pump(source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                seen.append(data)
                target.sendall(change(data, up))
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def relay() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = sock.accept()
                there = socket.create_connection(to)
                both = [(peer, there, True), (there, peer, False)]
                pumps = [threading.Thread(target=pump, args=one, daemon=True) for one in both]
                for one in pumps:
                    one.start()
                for one in pumps:
                    one.join(30)
                peer.close()
                there.close()

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    yield sock.getsockname(), seen
    sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    thread.join(30)


def test_a_stranger_on_a_dead_workers_port_who_relays_to_a_live_one_is_not_taken_for_either(store: ObjectStore) -> None:
    store.add("thing", [pickle.dumps("a result")])
    fetcher = ObjectFetcher(SECRET)
    with serving(store) as live, stranger(live) as (dead, seen):
        with pytest.raises(MisdirectedError, match="another process"):
            wire.connect(dead, SECRET)
        with pytest.raises(ObjectAbsentError, match="another one by now"):
            fetcher.fetch(dead, "thing", by_file=False)
        with pytest.raises(ObjectAbsentError):
            fetcher.put(dead, "planted", b"x")
        assert not any(b"a result" in data for data in seen)
        assert store.names() == ["thing"]


def test_another_start_of_a_worker_at_the_same_place_is_not_the_one_that_was_dialled(store: ObjectStore) -> None:
    store.add("thing", [b"data"])
    fetcher = ObjectFetcher(SECRET)
    with serving(store, SECRET, b"first", b"second") as (ip, port):
        for known in ((ip, port), (ip, port, b"first"), (ip, port, b"second")):
            assert bytes(fetcher.fetch(known, "thing", by_file=False)) == b"data"
        with pytest.raises(ObjectAbsentError, match="another one by now"):
            fetcher.fetch((ip, port, b"third"), "thing")
    fetcher.close()


def test_a_worker_is_not_an_actor(store: ObjectStore) -> None:
    with serving(store) as live, pytest.raises(MisdirectedError):
        wire.connect(live, SECRET, role=ACTOR)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("at", [0, 5, 13, 40, 200_000])
def test_a_byte_that_was_changed_on_its_way_ends_the_connection(at: int, encrypted: bool) -> None:
    """In the lengths, the header, a tag or the body."""
    if encrypted:
        pytest.importorskip("cryptography")
    ours, theirs = socket.socketpair()
    key = b"k" * 32
    sender = wire.Connection(ours, Halves(Half(key, encrypted), Half(key, encrypted)))
    receiver = wire.Connection(theirs, Halves(Half(key, encrypted), Half(key, encrypted)), max_body=1 << 20)
    collected = bytearray()
    with sender, receiver:
        sending = threading.Thread(target=sender.send, args=({"op": "put"}, b"b" * 300_000))
        sending.start()
        while len(collected) < 300_000:
            collected += theirs.recv(1 << 20)
        sending.join()
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            collected += theirs.recv(1 << 20)
        theirs.setblocking(True)
        collected[at] ^= 1

        def send_again() -> None:
            with contextlib.suppress(OSError):
                ours.sendall(collected)
                ours.shutdown(socket.SHUT_WR)

        again = threading.Thread(target=send_again)
        again.start()
        with pytest.raises(WireError):
            receiver.receive()
        theirs.close()
        again.join()


@pytest.mark.parametrize("trick", ["changed", "twice", "left out", "swapped", "another session's", "sent back"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_record_that_isnt_the_next_one_ends_a_stream(trick: str, encrypted: bool) -> None:
    if encrypted:
        pytest.importorskip("cryptography")

    def halves(one: bytes, other: bytes) -> Halves:
        return Halves(Half(one * 32, encrypted), Half(other * 32, encrypted))

    client, server = Records(halves(b"a", b"b")), Records(halves(b"b", b"a"))
    first, second = client.pack(b"first"), client.pack(b"second")
    sent = {
        "changed": first[:5] + bytes([first[5] ^ 1]) + first[6:],
        "twice": first + first,
        "left out": second,
        "swapped": second + first,
        "another session's": Records(halves(b"c", b"d")).pack(b"first"),
        "sent back": server.pack(b"first"),
    }[trick]
    with pytest.raises(WireError, match="isn't what the peer sent"):
        list(server.feed(sent))
    assert list(Records(halves(b"b", b"a")).feed(first + second)) == [b"first", b"second"]


def test_a_record_of_any_size_arrives_in_any_portions() -> None:
    data = bytes(i % 251 for i in range(700_000))
    client, server = Records(Halves(Half(b"a" * 32, False), Half(b"b" * 32, False))), b""
    packed = client.pack(data)
    reader = Records(Halves(Half(b"b" * 32, False), Half(b"a" * 32, False)))
    for at in range(0, len(packed), 30_011):
        server += b"".join(reader.feed(packed[at : at + 30_011]))
    assert server == data
    with pytest.raises(WireError, match="over the limit"):
        list(reader.feed(b"\xff\xff\xff\xff"))


# --- secrets change ---


@pytest.fixture
def db(tmp_path: Path) -> Any:
    return open_database(f"memory:{tmp_path}")


def test_a_secret_is_rotated_while_everybody_works(
    db: Any, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_secret, "LOOK_SECONDS", 0.0)
    store.add("thing", [b"data"])
    servers = ClusterSecrets(db, SPACE)
    with serving(store, servers) as live:
        early = ClusterSecrets(db, SPACE)
        former = early.newest
        run(db, store_secret.rotate_secret, SPACE)
        late = ClusterSecrets(db, SPACE)
        assert late.newest != former
        for known in (late, early, late):  # the server learns of the fresh one, and takes the former still
            fetcher = ObjectFetcher(known)
            assert bytes(fetcher.fetch(live, "thing", by_file=False)) == b"data"
            fetcher.close()
        run(db, store_secret.retire_secrets, SPACE)
        servers._read -= store_secret.STALE_SECONDS + 1  # some time later
        with pytest.raises(AuthenticationError):
            wire.connect(live, former)
        with wire.connect(live, early):  # refused, it looks again and knows the fresh one
            assert early.newest == late.newest


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_knows_a_retired_secret_is_taken_for_no_worker(
    db: Any, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    """He listens where a dead worker listened, and accepts whatever is dialled. Nobody else tells the client of the change."""
    if encrypted:
        pytest.importorskip("cryptography")
        run(db, store_secret.set_encryption, SPACE, True)
    early = ClusterSecrets(db, SPACE)
    former = FixedSecret(early.newest, encrypted=encrypted)
    run(db, store_secret.rotate_secret, SPACE)
    run(db, store_secret.retire_secrets, SPACE)
    early._read -= store_secret.STALE_SECONDS + 1  # some time later
    monkeypatch.setattr(Identity, "is_meant", lambda self, digest: True)
    sock = socket.create_server(("127.0.0.1", 0))
    proved: list[bool] = []

    def impostor() -> None:
        peer, _ = sock.accept()
        try:
            with wire.accept(peer, former):
                proved.append(True)
        except WireError:
            proved.append(False)
            peer.close()

    thread = threading.Thread(target=impostor, daemon=True)
    thread.start()
    with pytest.raises(WireError):
        wire.connect(sock.getsockname(), early, incarnation=b"any").close()
    thread.join(30)
    sock.close()
    assert proved == [False]


def test_a_row_of_secrets_that_was_damaged_ends_no_connections_of_those_who_know_them(
    db: Any, store: ObjectStore
) -> None:
    store.add("thing", [b"data"])
    servers, clients = ClusterSecrets(db, SPACE), ClusterSecrets(db, SPACE)
    db[store_secret.secret_key(SPACE)] = b"damaged"
    with serving(store, servers) as live:
        for known in (servers, clients):
            known._read -= store_secret.STALE_SECONDS + 1
        fetcher = ObjectFetcher(clients)
        assert bytes(fetcher.fetch(live, "thing", by_file=False)) == b"data"
        fetcher.close()


def test_connections_are_encrypted_where_the_cluster_says_so(
    db: Any, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setattr(store_secret, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(wire, "Destination", lambda role, ip, port, incarnation: SimpleDestination())
    store.add("thing", [b"something to hide" * 100])
    early = ClusterSecrets(db, SPACE)
    run(db, store_secret.set_encryption, SPACE, True)
    with serving(store, ClusterSecrets(db, SPACE)) as live:
        monkeypatch.setattr(SimpleDestination, "place", live, raising=False)
        with stranger(live) as (between, seen):
            monkeypatch.setattr(SimpleDestination, "dialled", live, raising=False)
            with pytest.raises(AuthenticationError):
                wire.connect(live, FixedSecret(early.newest))  # what isn't encrypted is refused
            monkeypatch.setattr(SimpleDestination, "dialled", between)
            with wire.connect(between, early) as connection:  # refused, it looks again
                connection.send({"op": "get", "name": "thing"})
                header, body = connection.receive()
            assert header["ok"]
            assert bytes(body) == b"something to hide" * 100
            assert b"something to hide" not in b"".join(seen)
            assert sum(map(len, seen)) > 1700


class SimpleDestination:
    """Dials the one between while meaning the server."""

    place: tuple[str, int]
    dialled: tuple[str, int]

    @property
    def ip(self) -> str:
        return self.dialled[0]

    @property
    def port(self) -> int:
        return self.dialled[1]

    def digest(self) -> bytes:
        from futures_worker.ports.handshake import Destination

        return Destination(OBJECTS, *self.place).digest()


@pytest.mark.parametrize(
    "value", [b"", b"short", store_secret.PRIVATE, store_secret.PRIVATE + b"\x91" * 3000, b"x" * 33]
)
def test_a_damaged_row_of_secrets_says_so(value: bytes) -> None:
    with pytest.raises(RecordError, match="secret can't be read"):
        store_secret.unpack_secrets(value)


def test_a_row_of_one_secret_is_understood() -> None:
    assert store_secret.unpack_secrets(SECRET).secrets == (SECRET,)


def test_the_command_changes_secrets_and_shows_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"embedded:{tmp_path / 'db'}"
    first = cluster_secret(open_database(url), ClusterSpace("mainspring"))

    def said(*arguments: str) -> Any:
        monkeypatch.setattr("sys.argv", ["futures-worker", "secret", *arguments, "--db", url, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert first.hex() not in text
        return json.loads(text)

    assert said("show") == {"secrets": [secret_id(first).hex()], "encrypted": False}
    rotated = said("rotate")["secrets"]
    assert rotated[1:] == [secret_id(first).hex()]
    assert said("encrypt", "--on") == {"secrets": rotated, "encrypted": True}
    assert said("encrypt", "--off")["encrypted"] is False
    assert said("retire")["secrets"] == rotated[:1]


def test_a_dump_of_the_database_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = open_database(f"embedded:{path}")
    secret = cluster_secret(db, SPACE)
    db[b"other"] = b"row"
    command = [sys.executable, "-m", "fdb_embedded", "dump", "--db", f"embedded:{path}", "-"]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    values = [base64.b64decode(json.loads(line).get("v", "")) for line in dumped.splitlines()]
    assert b"row" in values
    assert not any(secret in value for value in values)
    whole = subprocess.run([*command, "--private"], check=True, capture_output=True, text=True, timeout=60).stdout
    values = [base64.b64decode(json.loads(line).get("v", "")) for line in whole.splitlines()]
    assert any(secret in value for value in values)


# --- paths that a peer names ---


def answering(answers: list[dict[str, Any]]) -> Any:
    """A worker of the cluster that gives these answers."""
    sock = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = sock.accept()
        with contextlib.suppress(EOFError, WireError), wire.accept(peer, SECRET) as connection:
            for answer in answers:
                connection.receive()
                connection.send(answer)
            connection.receive()
        sock.close()

    threading.Thread(target=serve, daemon=True).start()
    return sock.getsockname()


@pytest.mark.parametrize("place", ["elsewhere", "a link", "a name with dots"])
def test_an_object_is_not_written_to_any_path_that_a_peer_names(tmp_path: Path, store: ObjectStore, place: str) -> None:
    assert boot_id()
    precious = tmp_path / "precious"
    precious.write_bytes(b"p" * 1_000_000)
    named = precious
    if place == "a link":
        named = store.directory.objects / "thing.new"
        named.symlink_to(precious)
    elif place == "a name with dots":
        named = store.directory.objects / ".." / ".." / "precious"
    where = answering([{"ok": True, "path": str(named)}])
    fetcher = ObjectFetcher(SECRET, timeout=10)
    with pytest.raises(ObjectLostError):  # it goes by the network then, and nobody takes it there
        fetcher.put(where, "thing", b"w" * 1_000_000)
    assert precious.read_bytes() == b"p" * 1_000_000


def test_an_object_is_not_read_from_any_path_that_a_peer_names(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_bytes(b"p" * 1000)
    where = answering([{"ok": True, "path": str(private), "size": 1000}, {"ok": False}])
    fetcher = ObjectFetcher(SECRET, timeout=10)
    with pytest.raises(ObjectLostError):
        fetcher.fetch(where, "thing")
    fetcher.close()
