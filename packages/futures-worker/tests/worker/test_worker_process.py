"""Workers as real processes: killed, paused, restarted, drained. After each the cluster's invariants hold."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.clusters import ClusterFactory, LocalCluster

from fdb_datamodel import FutureState, list_workers, read_results
from fdb_schema import ClusterSpace, open_database
from futures_worker import (
    Client,
    FutureFailedError,
    FutureTimeoutError,
    OutOfMemoryError,
    ResultPickleError,
    WorkerLostError,
    wait,
)
from futures_worker.cli import main
from futures_worker.errors import AddressUnknownError
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_secret import cluster_secret
from futures_worker.worker.service import advertised
from idempotent_txn import run

PATIENCE = 60.0


def await_(condition: Callable[[], Any], what: str) -> Any:
    """Polls what only the database or the file system can tell."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return found


def pids_in(folder: Path, count: int) -> list[int]:
    """The process ids that tasks left as names of files, once there are so many."""
    return await_(lambda: found if len(found := [int(p.name) for p in folder.iterdir()]) >= count else None, "pids")


def claims_of(cluster: LocalCluster) -> int:
    db, space = open_database(cluster.url), ClusterSpace(cluster.name)
    return sum(status.claims for status in run(db, list_workers, space))


def live_addresses(cluster: LocalCluster) -> list[str]:
    db, space = open_database(cluster.url), ClusterSpace(cluster.name)
    return [f"{s.id.ip}:{s.id.port}" for s in run(db, list_workers, space)]


QUICK = ("--ttl", "2")
"""Workers that judge others dead sooner than by default, so that the tests take less time."""


def address_of(line: str) -> str:
    return line.split()[2]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


# --- tasks ------------------------------------------------------------------------------------------------------------


def mark_and_sleep(folder: str, seconds: float) -> int:
    Path(folder, str(os.getpid())).touch()
    time.sleep(seconds)
    return os.getpid()


def until(path: str, folder: str | None = None) -> int:
    if folder is not None:
        Path(folder, str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return os.getpid()


def die_the_first_time(flag: str) -> str:
    if not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second attempt"


def double(x: int) -> int:
    return 2 * x


# --- children ---------------------------------------------------------------------------------------------------------


def test_a_killed_child_costs_one_attempt_and_never_the_worker(shared_cluster: ClusterFactory, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    f = client.submit(die_the_first_time, str(tmp_path / "flag"))
    others = client.map(double, range(50))
    assert f.result(timeout=PATIENCE) == "second attempt"
    assert client.gather(others) == [2 * i for i in range(50)]
    assert demo.workers[0].process.poll() is None
    demo.check()


def test_a_task_that_always_kills_its_process_fails_for_that_reason(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    f = client.submit(os.kill, 0, signal.SIGKILL, max_retries=1)
    g = client.submit(os._exit, 3, max_retries=0)
    with pytest.raises(WorkerLostError, match="signal SIGKILL"):
        f.result(timeout=PATIENCE)
    with pytest.raises(WorkerLostError, match="exit code 3"):
        g.result(timeout=PATIENCE)
    assert client.submit(double, 4).result(timeout=PATIENCE) == 8
    demo.check()


def test_a_timeout_kills_the_child_only(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    f = client.submit(time.sleep, 1000, timeout=0.3, max_retries=0)
    with pytest.raises((FutureTimeoutError, TimeoutError)):
        f.result(timeout=PATIENCE)
    assert f.state() == FutureState.failed
    assert client.submit(double, 4).result(timeout=PATIENCE) == 8
    demo.check()


def test_a_cancelled_task_is_stopped_and_its_slot_is_free_again(shared_cluster: ClusterFactory, marks: Path) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    f = client.submit(mark_and_sleep, str(marks), 1000)
    (child,) = pids_in(marks, 1)
    f.cancel()
    with pytest.raises(CancelledError):
        f.result(timeout=PATIENCE)
    await_(lambda: not Path(f"/proc/{child}").exists(), "the child's end")
    assert client.submit(double, 4).result(timeout=PATIENCE) == 8
    demo.check()


def test_a_long_task_holds_back_neither_finished_nor_waiting_ones(
    shared_cluster: ClusterFactory, tmp_path: Path
) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    assert client.gather(client.map(double, range(500))) == [2 * i for i in range(500)]
    go = tmp_path / "go"
    long = client.submit(until, str(go))
    assert client.gather(client.map(double, range(500))) == [2 * i for i in range(500)]
    go.touch()
    assert long.result(timeout=PATIENCE) > 0
    demo.check()


def test_memory_errors_are_counted_apart(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    f = client.submit(lambda: [0] * (1 << 60), max_retries=0)
    with pytest.raises((OutOfMemoryError, MemoryError)):
        f.result(timeout=PATIENCE)

    class Pickled:
        def __reduce__(self) -> Any:
            raise MemoryError

    with pytest.raises(OutOfMemoryError):  # as large ones do: their pickle is a second copy
        client.submit(Pickled, max_oom=0).result(timeout=PATIENCE)
    demo.check()


def test_results_that_do_not_pickle_fail_at_once(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1)
    f = demo.client().submit(threading.Lock, max_retries=5)
    with pytest.raises(ResultPickleError, match="lock"):
        f.result(timeout=PATIENCE)
    demo.check()


def test_a_task_that_waits_for_another_gives_up_its_slot(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()

    def nested(depth: int) -> int:
        from futures_worker import current_client

        if depth == 0:
            return 0
        return 1 + current_client().submit(nested, depth - 1).result(timeout=PATIENCE)

    assert client.submit(nested, 5).result(timeout=PATIENCE) == 5
    demo.check()


# --- large results ----------------------------------------------------------------------------------------------------


def test_large_results_are_served_to_clients_and_to_tasks_of_other_workers(cluster: ClusterFactory) -> None:
    demo = cluster(workers=2, slots=1)
    client = demo.client()
    big = [client.submit(bytes, 200_000 + i) for i in range(8)]
    sizes = [client.submit(len, f) for f in big]
    assert client.gather(sizes) == [200_000 + i for i in range(8)]
    assert client.submit(lambda parts: sum(map(len, parts)), big).result(timeout=PATIENCE) == sum(
        range(200_000, 200_008)
    )
    assert [len(f.result(timeout=PATIENCE)) for f in big] == [200_000 + i for i in range(8)]
    demo.check()


def test_results_over_the_memory_limit_are_spilled_and_never_lost(cluster: ClusterFactory, tmp_path: Path) -> None:
    demo = cluster(1, 1, "--object-store", "1MB")
    client = demo.client()
    big = [client.submit(bytes, 300_000 + i) for i in range(12)]
    wait(big, timeout=PATIENCE)
    await_(lambda: len(list((tmp_path / "spill-1").glob("*/*"))) >= 8, "spilled files")
    assert [len(f.result(timeout=PATIENCE)) for f in big] == [300_000 + i for i in range(12)]
    demo.check()


def test_an_input_lost_with_its_worker_is_computed_again(cluster: ClusterFactory, marks: Path) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    big = client.submit(bytes, 300_000)
    wait([big], timeout=PATIENCE)
    demo.workers[0].kill()
    demo.start("--slots", "1")
    assert client.submit(len, big).result(timeout=PATIENCE) == 300_000
    assert len(big.result(timeout=PATIENCE)) == 300_000
    demo.check()


def test_an_object_that_its_live_holder_no_longer_has_is_computed_again(cluster: ClusterFactory) -> None:
    demo = cluster(workers=2)
    client = demo.client()
    big = [client.submit(bytes, 300_000 + i) for i in range(4)]
    wait(big, timeout=PATIENCE)
    db, space = open_database(demo.url), ClusterSpace(demo.name)
    fetcher = ObjectFetcher(cluster_secret(db, space))
    for result in run(db, read_results, space, [f.id.bytes for f in big]):
        assert fetcher.delete((result.worker.ip, result.worker.port), result.name)
    fetcher.close()
    sizes = [client.submit(len, f) for f in big]
    assert client.gather(sizes) == [300_000 + i for i in range(4)]
    assert [len(f.result(timeout=PATIENCE)) for f in big] == [300_000 + i for i in range(4)]
    demo.check()


def test_the_heartbeat_tells_what_the_store_holds_and_a_deleted_future_frees_it(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    demo = cluster(1, 1, "--object-store", "10MB")
    client = demo.client()
    f = client.submit(bytes, 3_000_000)
    assert len(f.result(timeout=PATIENCE)) == 3_000_000
    db, space = open_database(demo.url), ClusterSpace(demo.name)

    def free() -> int:
        (status,) = run(db, list_workers, space)
        return status.heartbeat.object_store_free if status.heartbeat is not None else 0

    def objects() -> list[Path]:
        return list(Path("/dev/shm").glob(f"futures-worker-*-{demo.workers[0].pid}-*/objects/*"))

    await_(lambda: 0 < free() <= 7_000_000, "a heartbeat that tells of the object")
    assert len(objects()) == 1
    client.delete(f)
    await_(lambda: objects() == [], "the removal of the object")
    await_(lambda: free() == 10_000_000, "a heartbeat that tells of the removal")
    demo.check()


# --- workers ----------------------------------------------------------------------------------------------------------


def test_the_work_of_a_killed_worker_is_done_by_another(cluster: ClusterFactory, marks: Path, tmp_path: Path) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    f = client.submit(until, str(tmp_path / "go"), str(marks))
    (child,) = pids_in(marks, 1)
    demo.start("--slots", "1", *QUICK)
    demo.workers[0].kill()
    await_(lambda: not Path(f"/proc/{child}").exists(), "the child's death")
    (tmp_path / "go").touch()
    assert f.result(timeout=PATIENCE) != child
    assert len(list(marks.iterdir())) == 2
    demo.check()


def test_fire_and_forget_work_of_a_killed_worker_is_done_though_nobody_waits(
    cluster: ClusterFactory, marks: Path
) -> None:
    demo = cluster(workers=1)
    with demo.client() as client:
        client.submit(mark_and_sleep, str(marks), 1000)
        f = client.submit(mark_and_sleep, str(marks / ".."), 0.0)
        pids_in(marks, 1)
        assert f.id
    demo.workers[0].kill()
    demo.start("--slots", "2", *QUICK)
    pids_in(marks, 2)
    demo.check()


def test_a_worker_restarted_on_its_address_gives_back_what_it_had_claimed(
    cluster: ClusterFactory, marks: Path, tmp_path: Path
) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    f = client.submit(until, str(tmp_path / "go"), str(marks))
    pids_in(marks, 1)
    port = address_of(demo.workers[0].line).rpartition(":")[2]
    demo.workers[0].kill()
    again = demo.start("--slots", "1", "--port", port)
    assert address_of(again.line) == address_of(demo.workers[0].line)
    pids_in(marks, 2)
    (tmp_path / "go").touch()
    assert f.result(timeout=PATIENCE) > 0
    assert len(live_addresses(demo)) == 1
    demo.check()


def test_two_workers_on_one_address_are_refused(cluster: ClusterFactory) -> None:
    demo = cluster(workers=1)
    port = address_of(demo.workers[0].line).rpartition(":")[2]
    second = demo.start("--port", port, wait=False)
    assert second.process.wait(PATIENCE) == 1
    assert f"127.0.0.1:{port}" in second.text()
    assert second.text().startswith("error: ")


def test_an_address_whose_registered_worker_beats_elsewhere_is_refused(cluster: ClusterFactory) -> None:
    """The address is free on this host, yet a live worker is registered under it (another host, another namespace)."""
    from fdb_datamodel import Heartbeat, WorkerId, WorkerInfo, heartbeat, new_incarnation, register_worker

    demo = cluster(workers=0)
    db, space = open_database(demo.url), ClusterSpace(demo.name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    elsewhere = WorkerId("127.0.0.1", port, new_incarnation())
    run(db, register_worker, space, elsewhere, WorkerInfo(boot_id="another host", pid=1, host="elsewhere"))
    stop = threading.Event()

    def beat() -> None:
        counter = 1
        while not stop.wait(0.2):
            counter += 1
            run(db, heartbeat, space, elsewhere, Heartbeat(counter=counter))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        refused = demo.start("--port", str(port), *QUICK, wait=False)
        assert refused.process.wait(PATIENCE) == 1
        assert "is alive" in refused.text()
        assert "elsewhere" in refused.text()
    finally:
        stop.set()
        thread.join()
    demo.start("--port", str(port), *QUICK)  # once its heartbeat has stood still for a TTL
    assert live_addresses(demo) == [f"127.0.0.1:{port}"]
    demo.check()


def test_a_drain_finishes_what_runs_gives_back_the_rest_and_exits_cleanly(
    cluster: ClusterFactory, marks: Path, tmp_path: Path
) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    running = client.submit(until, str(tmp_path / "go"), str(marks))
    waiting = client.map(double, range(20))
    pids_in(marks, 1)
    demo.workers[0].process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert demo.workers[0].process.poll() is None, "it left a running task"
    (tmp_path / "go").touch()
    assert demo.workers[0].process.wait(PATIENCE) == 0
    assert running.result(timeout=PATIENCE) > 0
    assert live_addresses(demo) == []
    demo.check()
    demo.start()
    assert client.gather(waiting) == [2 * i for i in range(20)]
    demo.check()


def test_what_outlasts_the_grace_is_given_back_uncharged(cluster: ClusterFactory, marks: Path, tmp_path: Path) -> None:
    demo = cluster(1, 1, "--grace", "0.2")
    client = demo.client()
    f = client.submit(until, str(tmp_path / "go"), str(marks), max_retries=0, max_worker_losses=0)
    (child,) = pids_in(marks, 1)
    assert demo.workers[0].stop() == 0
    assert not Path(f"/proc/{child}").exists()
    assert f.state() == FutureState.unclaimed
    demo.check()
    (tmp_path / "go").touch()
    demo.start()
    assert f.result(timeout=PATIENCE) > 0
    demo.check()


def test_a_worker_paused_beyond_its_ttl_loses_its_claims_and_starts_anew(
    cluster: ClusterFactory, marks: Path, tmp_path: Path
) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    f = client.submit(until, str(tmp_path / "go"), str(marks))
    (first,) = pids_in(marks, 1)
    paused = demo.workers[0]
    paused.pause()
    demo.start("--slots", "1", *QUICK)
    pids_in(marks, 2)  # the other one has taken it over
    assert len(live_addresses(demo)) == 1
    paused.resume()
    await_(lambda: not Path(f"/proc/{first}").exists(), "the end of the child of the fenced worker")
    await_(lambda: len(live_addresses(demo)) == 2, "the paused worker's return")
    assert "declared dead" in paused.text()
    (tmp_path / "go").touch()
    assert f.result(timeout=PATIENCE) != first
    assert len(list(marks.iterdir())) == 2
    demo.workers[1].kill()
    assert client.submit(double, 21).result(timeout=PATIENCE) == 42
    demo.check()


def test_a_killed_template_is_replaced_and_its_children_cost_one_attempt(
    cluster: ClusterFactory, marks: Path, tmp_path: Path
) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    f = client.submit(until, str(tmp_path / "go"), str(marks))
    (child,) = pids_in(marks, 1)
    template = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(template, signal.SIGKILL)
    pids_in(marks, 2)
    (tmp_path / "go").touch()
    assert f.result(timeout=PATIENCE) != child
    assert demo.workers[0].process.poll() is None
    demo.check()


def test_nothing_is_left_on_the_host_by_a_worker_that_is_killed(cluster: ClusterFactory, tmp_path: Path) -> None:
    demo = cluster(workers=1)
    client = demo.client()
    wait([client.submit(bytes, 200_000)], timeout=PATIENCE)
    pid = demo.workers[0].pid
    mine = lambda: list(Path("/dev/shm").glob(f"futures-worker-*-{pid}-*")) + list((tmp_path / "spill-1").iterdir())  # noqa: E731
    assert mine() != []
    demo.workers[0].kill()
    await_(lambda: mine() == [], "the removal of its files")


def test_random_kills_of_children_and_workers_lose_nothing(cluster: ClusterFactory) -> None:
    demo = cluster(workers=2, slots=2)
    client = demo.client()
    fs = client.map(_work, range(300))
    for number in range(3):
        time.sleep(0.5)
        demo.workers[number].kill()
        demo.start("--slots", "2", *QUICK)
    assert client.gather(fs) == [_work(i) for i in range(300)]
    demo.check()
    await_(lambda: claims_of(demo) == 0, "all claims to end")


def _work(i: int) -> int:
    total = 0
    for k in range(20_000):
        total += (i * k) % 7
    return total


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str) -> SimpleNamespace:
    """Runs a command inside this process: a new one would mostly import."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["futures-worker", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = argv
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_listing_shows_futures_and_workers_as_tables_and_as_json(cluster: ClusterFactory) -> None:
    import json

    demo = cluster(workers=1)
    client = demo.client()
    f = client.submit(double, 4)
    bad = client.submit(int, "x", max_retries=0)
    assert f.result(timeout=PATIENCE) == 8
    with pytest.raises(ValueError, match="invalid literal"):
        bad.result(timeout=PATIENCE)
    where = ("--db", demo.url, "--cluster", demo.name)
    rows = json.loads(command("ls", *where, "--json").stdout)
    assert {row["id"]: row["state"] for row in rows} == {str(f.id): "realized", str(bad.id): "failed"}
    assert str(f.id) in command("ls", *where).stdout
    assert [r["id"] for r in json.loads(command("ls", *where, "--json", "--state", "failed").stdout)] == [str(bad.id)]
    shown = json.loads(command("show", str(bad.id), *where, "--json").stdout)
    assert shown["state"] == "failed"
    assert "invalid literal" in shown["failure"]
    assert "double" in command("show", str(f.id), *where).stdout
    (worker,) = json.loads(command("workers", *where, "--json").stdout)
    assert worker["address"] == address_of(demo.workers[0].line)
    assert worker["slots"] == 1
    assert worker["pid"] == demo.workers[0].pid
    first = command("ls", *where, "--limit", "1")
    assert f"--after {f.id}" in first.stderr
    assert str(bad.id) in command("ls", *where, "--after", str(f.id)).stdout
    for listing in ("ls", "workers"):
        nothing = command(listing, "--db", demo.url, "--cluster", "mistyped")
        assert nothing.returncode == 0
        assert repr(demo.name) in nothing.stderr, "whoever mistyped the cluster is told which there are"


def test_exit_codes_tell_what_went_wrong(cluster: ClusterFactory, tmp_path: Path) -> None:
    demo = cluster(workers=0)
    demo.client()  # whoever only looks makes no database
    where = ("--db", demo.url, "--cluster", demo.name)
    missing = command("show", "01890000-0000-7000-8000-000000000000", *where)
    assert (missing.returncode, missing.stderr.startswith("error: ")) == (3, True)
    assert command("show", "not-an-id", *where).returncode == 2
    assert command("run", "--ram", "much", *where).returncode == 2
    assert command("ls", "--db", "nothing:here").returncode == 2
    (tmp_path / "file").write_text("no database")
    assert command("ls", "--db", f"embedded:{tmp_path / 'file'}").returncode == 4
    assert "--object-store" in command("run", "--help").stdout


def test_workers_of_another_cluster_do_not_touch_the_work(shared_cluster: ClusterFactory) -> None:
    demo = shared_cluster(workers=1)
    from futures_worker import Client

    with Client(demo.url, "elsewhere") as other:
        f = other.submit(double, 1)
        with pytest.raises(TimeoutError):
            f.result(timeout=1.0)
    assert not issubclass(FutureFailedError, TimeoutError)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_a_worker_is_not_known_by_an_address_that_nobody_can_dial(address: str) -> None:
    assert advertised("0.0.0.0", "10.1.2.3", "0.0.0.0") == "10.1.2.3"
    assert advertised("localhost", None, "127.0.0.1") == "127.0.0.1"
    with pytest.raises(AddressUnknownError, match="--advertise"):
        advertised(address, None, address)
    with pytest.raises(AddressUnknownError, match="IP address"):
        advertised(address, "host.example", address)


def where_an_actor_listens() -> str:
    from futures_worker.worker.actor_host import _listen_for

    with _listen_for("203.0.113.5") as sock:
        return str(sock.getsockname()[0])


def test_an_actor_listens_where_its_worker_does_and_nowhere_else(tmp_path: Path) -> None:
    """Also where both are dialled at the address of another machine, which passes on what comes."""
    url = f"embedded:{tmp_path / 'db'}"
    base = [sys.executable, "-m", "futures_worker", "run", "--db", url, "--slots", "1", "--address", "127.0.0.2"]
    with subprocess.Popen([*base, "--advertise", "203.0.113.5"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: worker 203.0.113.5:")
            with Client(url) as client:
                assert client.submit(where_an_actor_listens).result(60) == "127.0.0.2"
        finally:
            process.terminate()


def test_a_worker_that_listens_everywhere_is_reached_where_it_says(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'db'}"
    base = [sys.executable, "-m", "futures_worker", "run", "--db", url, "--slots", "1", "--address", "0.0.0.0"]
    refused = subprocess.run(base, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 2
    assert "--advertise" in refused.stderr
    with subprocess.Popen([*base, "--advertise", "127.0.0.1"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: worker 127.0.0.1:")
            with Client(url) as client:
                assert client.submit(bytes, 100_000).result(60) == bytes(100_000)
        finally:
            process.terminate()


def test_a_worker_says_that_it_stopped(tmp_path: Path) -> None:
    base = [sys.executable, "-m", "futures_worker", "run", "--db", f"embedded:{tmp_path / 'db'}", "--slots", "1"]
    with subprocess.Popen(base, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" of cluster mainspring, 1 slot\n")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "stopped\n"
    assert process.returncode == 0
