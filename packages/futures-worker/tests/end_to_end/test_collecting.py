"""Nothing of a client stays for ever: handles let go, clients that die in the middle of something, clients that were stopped."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdb_datamodel import (
    Capacity,
    FutureResult,
    FutureSpec,
    WorkerId,
    beat_session,
    collect,
    finish_turn,
    new_future_id,
    put_realized_future,
    register_worker,
    session_sightings,
    streams,
    submit_futures,
)
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import layout_of
from fdb_schema import ClusterSpace, open_database, read_range
from futures_worker import Client, FutureDeletedError
from futures_worker.client.session import session as client_session
from futures_worker.objects.object_names import copy_name, item_name, parse_name, put_name, result_name
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker.audit import StoreAudit
from idempotent_txn import run

WAIT = 60.0
QUICK = ("--collect-after", "0.5", "--session-ttl", "3")


def rows(demo: Any) -> Counter[str]:
    """How many rows of each kind the cluster has; tombstones by themselves."""
    space = ClusterSpace(demo.name)
    span = space.range(())
    found: Counter[str] = Counter()
    for key, _ in run(open_database(demo.url), lambda tr: read_range(tr, span.start, span.stop), strategy="off"):
        parts = space.unpack(key)
        found["tombstones" if parts[0] == "futures" and parts[2] == "deleted" else parts[0]] += 1
    return found


def await_true(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT
    while not check():
        assert time.monotonic() < deadline, "it didn't come true in time"
        time.sleep(0.1)


def beating(demo: Any) -> Client:
    """A client whose beats come well within the session's time to live of these tests."""
    client = Client(demo.url, demo.name)
    client._context().life._seconds = 0.5
    return client


def large(size: int) -> bytes:
    return bytes(size)


def names_in_store(demo: Any) -> set[str]:
    pid = demo.workers[0].pid
    (folder,) = Path("/dev/shm").glob(f"futures-worker-{os.getuid()}-{pid}-*/objects")
    return {path.name for path in folder.iterdir()}


def test_what_a_client_lets_go_is_collected_while_it_lives(cluster: Any, monkeypatch: Any) -> None:
    demo = cluster(1, 2, *QUICK)
    with beating(demo) as client:
        kept = client.submit(large, 50_000)
        named = client.submit(large, 60_000, name="by its name")
        futures = [client.submit(large, 40_000 + i) for i in range(5)] + client.map(abs, range(20))
        ids = [future.id for future in futures]
        client.gather([kept, named, *futures], timeout=WAIT)
        assert len(names_in_store(demo)) == 7
        del futures
        gc.collect()
        client._context().life.release_dropped()  # what the beat has not let go by itself
        await_true(lambda: rows(demo)["tombstones"] == 25)
        await_true(lambda: len(names_in_store(demo)) == 2)
        assert len(kept.result(WAIT)) == 50_000
        again = client.get_future(ids[0])
        try:
            again.result(WAIT)
        except FutureDeletedError:
            pass
        else:
            raise AssertionError("a collected future has no result")
        name = named.id
    await_true(lambda: rows(demo)["tombstones"] == 26)
    with beating(demo) as client:
        assert len(client.get_future(name).result(WAIT)) == 60_000, "named: kept"
    demo.check()


def gives_futures(count: int) -> list[Any]:
    """A result that contains futures of the task's own."""
    from futures_worker import current_client

    made = current_client().map(abs, range(count))
    current_client().gather(made)
    return made


def test_futures_inside_a_result_live_as_long_as_it_does(cluster: Any) -> None:
    demo = cluster(1, 2, *QUICK)
    with beating(demo) as client:
        outer = client.submit(gives_futures, 3)
        inner = outer.result(WAIT)
        assert rows(demo)["references"] >= 3
        box = client.put({"futures": inner})
        free = client.submit(abs, -1)
        assert free.result(WAIT) == 1
        assert client.gather(inner, timeout=WAIT) == [0, 1, 2]
        ids = [future.id for future in inner]
        del inner, free
        outer._value = None  # the handle keeps what it read
        gc.collect()
        client._context().life.release_dropped()
        await_true(lambda: rows(demo)["tombstones"])  # what nobody holds, let go at the same time, is collected
        again = [client.get_future(one) for one in ids]
        assert client.gather(again, timeout=WAIT) == [0, 1, 2], "held by the results that contain them"
        del again
        client.delete_all([outer, box])
        gc.collect()
        client._context().life.release_dropped()
    demo.workers[0].kill()  # the session of the child that submitted them ends with it
    demo.start("--slots", "1", *QUICK)
    await_true(lambda: rows(demo)["tombstones"] == 6)
    demo.check()


DIES = """
import signal, sys
from futures_worker import Client
from futures_worker.client.session import objects
client = Client(sys.argv[1], sys.argv[2])
client._context().life._seconds = 0.2  # well within the time to live
futures = client.map(abs, range(50))
client.gather(futures)
if sys.argv[3] == "put":
    real = objects.ask
    def ask(db, fn, *args, **kwargs):
        if fn.__name__ == "record":
            print("stored", flush=True)
            signal.pause()
        return real(db, fn, *args, **kwargs)
    objects.ask = ask
    client.put(bytes(100_000))
elif sys.argv[3] == "upload":
    from futures_worker.client.session import storing
    real_upload = storing.put_blob
    def put_blob(*args, **kwargs):
        real_upload(*args, **kwargs)
        print("uploaded", flush=True)
        signal.pause()
    storing.put_blob = put_blob
    client.submit(len, bytes(2_000_000)).result()
else:
    more = client.map(abs, range(30))
    client.flush()
    print("submitted", flush=True)
    signal.pause()
"""


def test_clients_killed_with_futures_amid_a_put_and_amid_an_upload_leave_nothing_but_tombstones(
    cluster: Any, tmp_path: Path
) -> None:
    demo = cluster(1, 2, "--collect-after", "0.5", "--session-ttl", "1")
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    command = [sys.executable, str(script), demo.url, demo.name]
    clients = [subprocess.Popen([*command, how], stdout=subprocess.PIPE) for how in ("futures", "put", "upload")]
    try:
        for client in clients:
            assert client.stdout is not None and client.stdout.readline().strip()
        (name,) = names_in_store(demo)
        parsed = parse_name(name)
        assert parsed is not None and len(parsed.session) == 16
        assert rows(demo)["blobs"] > 10
    finally:
        for client in clients:
            client.kill()
            client.wait()
    await_true(lambda: rows(demo)["tombstones"] == 3 * 50 + 30)
    await_true(lambda: not set(rows(demo)) & {"sessions", "mailboxes", "futures", "results", "garbage", "blobs"})
    await_true(lambda: names_in_store(demo) == set())
    demo.check()


STOPS = """
import sys, time
from futures_worker import Client
with Client(sys.argv[1], sys.argv[2]) as client:
    slow = client.submit(time.sleep, 1)
    large = client.submit(bytes, 50_000)
    large.exception()
    print("waiting", flush=True)
    assert slow.result(60) is None
    assert len(large.result(60)) == 50_000
    assert client.submit(abs, -1).result(60) == 1
    print("done", flush=True)
"""


def test_a_client_that_was_stopped_past_its_ttl_goes_on(cluster: Any, tmp_path: Path) -> None:
    demo = cluster(1, 2, "--session-ttl", "1")
    script = tmp_path / "stops.py"
    script.write_text(STOPS)
    process = subprocess.Popen([sys.executable, str(script), demo.url, demo.name], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"waiting\n"
        os.kill(process.pid, signal.SIGSTOP)
        await_true(lambda: "sessions" not in rows(demo))
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == b"done\n"
        assert process.wait(WAIT) == 0
    finally:
        process.kill()
        process.wait()
    demo.check()


def test_a_client_that_never_waits_keeps_no_mail_and_no_handles(cluster: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("futures_worker.client.basis.session_life.SESSION_BEAT_SECONDS", 0.2)
    demo = cluster(1, 2)
    with Client(demo.url, demo.name) as client:
        session = client._context()
        session.life._seconds = 0.2
        for i in range(50):
            client.submit(abs, i)
        client.flush()
        await_true(lambda: not session.pending)
        await_true(lambda: not rows(demo)["mailboxes"])
        await_true(lambda: not session.life._held)
        assert client_session.Session is type(session)


def test_the_audit_removes_what_two_looks_found_unrecorded(tmp_path: Path) -> None:
    db, space = open_database("memory:audit"), ClusterSpace("audit")
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    store = ObjectStore(directory, 1 << 20)
    worker = WorkerId("127.0.0.1", 1, bytes(16))
    session = os.urandom(16)
    run(db, register_worker, space, worker)
    run(db, beat_session, space, session, 1)
    spec = FutureSpec(session=session)
    result = FutureResult(None, 3, put_name(spec.id, session), worker)
    run(db, put_realized_future, space, spec, worker, result)
    others = [
        put_name(bytes(16), session),
        put_name(bytes(16), bytes(16)),
        result_name(spec.id, 0, 1),
        copy_name(spec.id),
    ]
    generator = FutureSpec(b"code", session=session)
    run(db, submit_futures, space, [generator])
    (claim,) = run(db, finish_turn, space, worker, [], Capacity(), 1)
    writer = run(db, streams.begin_stream, space, claim.id, claim.attempt, session)
    yielded = [FutureResult(None, 3, item_name(claim.id, n, 1), worker) for n in range(2)]
    run(db, streams.add_items, space, writer, [(0, yielded[0])])
    others.append(yielded[1].name)
    try:
        for name in (result.name, yielded[0].name, *others, "stream-of-something-else"):
            store.add(name, [b"abc"])
        audit = StoreAudit(db, space, store, lambda: worker)
        assert audit.look() == []
        assert sorted(audit.look()) == sorted(others[1:])
        assert store.names() == [result.name, yielded[0].name, others[0], "stream-of-something-else"]
        run(db, lambda tr: tr.set(layout_of(space).stream_item(encode_id(claim.id), 0), b"\xc1"))
        stray = result_name(new_future_id(), 0, 1)
        store.add(stray, [b"abc"])
        audit.look()
        assert stray in audit.look(), "a damaged row ends no look"
        (alive,) = run(db, session_sightings, space)
        assert alive.id == session
    finally:
        store.close()
        directory.remove()


class Giver:
    """An actor whose results contain futures of its own."""

    def give(self, size: int) -> list[Any]:
        return gives_futures(size)


def yields_futures(stop: int) -> Any:
    for number in range(stop):
        yield gives_futures(number + 1)


def test_futures_inside_what_actors_return_and_generators_yield_live_as_long_as_it_does(cluster: Any) -> None:
    demo = cluster(1, 2, *QUICK)
    with beating(demo) as client:
        call = client.actor(Giver, name="giver").give(3)
        stream = client.submit(yields_futures, 2)
        free = client.submit(abs, -1)
        inner = [*call.result(WAIT), *(one for item in stream.stream(WAIT) for one in item)]
        assert client.gather([*inner, free], timeout=WAIT) == [0, 1, 2, 0, 0, 1, 1]
        ids = [future.id for future in inner]
        del inner, free
        call._value = None  # the handle keeps what it read
        gc.collect()
        client._context().life.release_dropped()
        client.kill_actor(client.get_actor("giver"))
        demo.workers[0].kill()  # with the sessions of the children that submitted them
        demo.start("--slots", "1", *QUICK)
        await_true(lambda: rows(demo)["sessions"] == 1)
        for _ in range(3):  # marked, judged, judged again
            collect(open_database(demo.url), demo.name, grace=-1.0)
        assert rows(demo)["tombstones"], "what nobody held is gone"
        again = [client.get_future(one) for one in ids]
        assert client.gather(again, timeout=WAIT) == [0, 1, 2, 0, 0, 1]
    demo.check()
