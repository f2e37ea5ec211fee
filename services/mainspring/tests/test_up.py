"""`mainspring up`: one command, every service kept alive, nothing left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from support.upping import Up, mainspring, wait_until
from typer.testing import CliRunner

from fdb_datamodel import list_workers
from fdb_schema import ClusterSpace, open_database
from futures_worker import Client
from idempotent_txn import run
from mainspring.cli import app
from mainspring.up import command as upping
from mainspring.up import supervisor as supervising
from mainspring.up.heaps import own_heap
from mainspring.up.plan import ServiceSpec, Stage, UpSettings, services
from mainspring.up.restarts import FIRST, GOOD_LIFE, LONGEST, Restarts
from mainspring.up.supervisor import Phase, Supervisor
from mainspring_dashboard.cli import DEFAULT_PORT
from s3heap_tender import Heap, HeapStore, SysDb


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up"), "--workers", "1", "--slots", "2")
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def test_it_says_what_is_where(cluster: Up) -> None:
    said = cluster.text()
    assert cluster.url in said
    assert cluster.store in said
    assert f"scheduler ({cluster.pid('scheduler')})" in said


def test_a_future_runs_on_it(cluster: Up) -> None:
    with Client(cluster.url) as client:
        assert client.submit(pow, 2, 10).result(timeout=60) == 1024


@pytest.mark.parametrize("service", ["worker", "tender", "scheduler", "janitor"])
def test_a_killed_service_is_started_again(cluster: Up, service: str) -> None:
    before = cluster.state()["services"][service]["restarts"]
    cluster.kill(service)
    assert cluster.state()["services"][service]["restarts"] == before + 1
    assert f"{service:<9}  was killed by SIGKILL; starting it again" in cluster.text()


def test_futures_run_after_all_that(cluster: Up) -> None:
    with Client(cluster.url) as client:
        assert sum(client.gather(client.map(abs, range(-10, 0)), timeout=90)) == 55


def test_status_shows_it(cluster: Up) -> None:
    def look() -> Any:
        done = cluster.command("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # The worker that was killed above is declared dead, by whoever looks, a ttl later.
    database, space = open_database(cluster.url), ClusterSpace("mainspring")
    wait_until(lambda: len(run(database, list_workers, space)) == 1, "one worker")
    found = look()
    assert [worker["slots"] for worker in found["workers"]] == [2]
    assert found["futures"]["realized"] >= 11
    assert set(found["duties"]) == {"workers", "sessions", "garbage", "leases", "ids", "runs", "heap"}
    assert found["heap"]["dead_letters"] == 0
    people = cluster.command("status")
    assert "runs to be put on the heap" in people.stdout, "in words that need no page"
    assert people.returncode == 0
    assert "realized" in people.stdout


def test_a_second_one_over_the_same_state_is_refused(cluster: Up) -> None:
    done = cluster.command("up")
    assert done.returncode == 1
    assert "another `mainspring up` runs with its state in" in done.stderr


def test_two_clusters_of_one_folder_have_a_heap_each(tmp_path: Path) -> None:
    """Both at once, in either order, and the second again: each finds its own."""
    database = open_database(f"embedded:{tmp_path / 'db'}")
    places = {}
    with chdir(tmp_path):
        for cluster in ("mainspring", "demo", "mainspring", "demo", "third"):
            place = own_heap(database, cluster, None)
            assert places.setdefault(cluster, place) == place
            with SysDb(database, cluster) as sysdb:
                Heap(HeapStore(place), sysdb).close()
    heap = f"file:{tmp_path / 'heap'}"
    assert places == {"mainspring": heap, "demo": f"{heap}-demo", "third": f"{heap}-third"}


@pytest.mark.parametrize(
    ("cluster", "store", "says"),
    [("demo", "heap", "heap of another cluster"), ("mainspring", "elsewhere", "holds no heap; that of the cluster")],
)
def test_a_heap_that_no_service_could_open_is_refused_at_once(
    tmp_path: Path, cluster: str, store: str, says: str
) -> None:
    database = open_database(f"embedded:{tmp_path / '.mainspring'}")
    with SysDb(database, "mainspring") as sysdb:
        Heap(HeapStore(f"file:{tmp_path / 'heap'}"), sysdb).close()
    done = mainspring(tmp_path, "up", "--cluster", cluster, "--store", f"file:{store}")
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())
    assert "ready" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    running = Up(tmp_path / "cluster", "--workers", "1", "--slots", "1")
    try:
        running.wait_ready()
        assert len(running.processes()) >= 5
        assert running.stop(number) == 0
        assert running.processes() == []
        assert running.state() == {}
        assert "nothing is left running" in running.text()
    finally:
        running.close()


def test_its_services_end_with_it_even_by_sigkill(tmp_path: Path) -> None:
    running = Up(tmp_path / "cluster", "--workers", "1", "--slots", "1")
    try:
        running.wait_ready()
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not running.processes(), "the end of every service")
    finally:
        running.close()


def test_a_service_that_ends_at_once_is_said_and_waited_for(tmp_path: Path) -> None:
    running = Up(tmp_path / "cluster", "--workers", "0", "--run", "nowhere:nothing")
    try:
        wait_until(lambda: running.text().count("scheduler  ended with exit code 1") >= 2, "two ends of the scheduler")
        assert "nowhere:nothing can't be imported" in running.text()
        assert running.stop() == 0
        assert running.processes() == []
    finally:
        running.close()


@pytest.mark.parametrize("mode", [None, 0o777, 0o770])
def test_a_state_directory_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    """Its lock would be emptied, and its logs written, through links that they put there."""
    state, precious = tmp_path / "state", tmp_path / "precious"
    state.mkdir()
    precious.write_text("kept")
    (state / "lock").symlink_to(precious)
    if mode is not None:
        state.chmod(mode)
        monkeypatch.setattr(os, "getegid", lambda: 65534)  # so the directory's group is another
    elif os.geteuid() == 0:
        os.chown(state, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr("mainspring.up.command._supervise", lambda settings: None)
    where = ["--db", f"embedded:{tmp_path / 'db'}", "--store", f"file:{tmp_path / 'heap'}", "--state", str(state)]
    refused = CliRunner().invoke(app, ["up", "--no-dashboard", *where])
    assert refused.exit_code == 2, refused.output
    assert "others may write to" in refused.output
    assert precious.read_text() == "kept"


def test_a_mistyped_store_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = mainspring(tmp_path, "up", "--store", "bogus:x")
    assert done.returncode == 2, done.stderr
    assert "store URL 'bogus:x' has the unknown scheme 'bogus'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_looking_at_a_mistyped_path_makes_no_database(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "typo"
    done = mainspring(tmp_path, command, "--db", f"embedded:{folder}")
    assert done.returncode == 4
    assert "there is no database in" in done.stderr
    assert not folder.exists()


def test_status_of_a_cluster_that_isn_t_there_names_those_that_are(cluster: Up) -> None:
    done = cluster.command("status", "--cluster", "nonesuch")
    assert done.returncode == 0
    assert "this database has others: mainspring" in done.stdout


def test_the_dashboard_is_one_of_its_services(tmp_path: Path) -> None:
    arguments = ("--dashboard", "--workers", "0", "--schedulers", "0", "--tenders", "0", "--janitors", "0")
    running = Up(tmp_path / "cluster", *arguments, env={"MAINSPRING_DASHBOARD_PORT": "0"})
    try:
        running.wait_ready()
        url = running.state()["services"]["dashboard"]["ready"].split()[-1]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200
        assert running.stop() == 0
        assert running.processes() == []
    finally:
        running.close()


def test_a_second_cluster_s_dashboard_takes_a_free_port(tmp_path: Path) -> None:
    none = ("--workers", "0", "--schedulers", "0", "--tenders", "0", "--janitors", "0")
    with socket.socket() as first:  # as the first cluster's dashboard would
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            first.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            pass  # somebody has it already, which is as good
        else:
            first.listen()
        running = Up(tmp_path / "second", "--dashboard", *none)
        try:
            running.wait_ready()
            url = running.state()["services"]["dashboard"]["ready"].split()[-1]
            assert not url.endswith(f":{DEFAULT_PORT}/")
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert answer.status == 200
        finally:
            running.close()


def test_a_dashboard_that_can_t_start_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        none = ("--workers", "0", "--schedulers", "0", "--tenders", "0")
        running = Up(tmp_path / "cluster", "--dashboard", "--dashboard-port", port, *none)
        try:
            running.wait_ready()
            assert running.state()["services"]["janitor"]["phase"] == "running"
            assert f"can't serve on 127.0.0.1:{port}" in running.text()
            assert "not running; its log says why" in running.text()
        finally:
            running.close()


def test_pauses_double_and_a_good_life_makes_good() -> None:
    restarts = Restarts()
    pauses = [restarts.ended(started=0.0, now=1.0) for _ in range(12)]
    assert pauses[:3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert pauses[-1] == LONGEST
    assert restarts.ended(started=0.0, now=GOOD_LIFE) == FIRST
    assert restarts.total == 13
    assert [restarts.ended(started=0.0, now=1.0) for _ in range(2_000)][-1] == LONGEST  # a day of failures


def sleeper(name: str, code: str = "import time; time.sleep(600)") -> ServiceSpec:
    return ServiceSpec(name, (sys.executable, "-c", code), Stage.workers, grace=5)


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGRTMIN, "SIGRTMIN"), (40, "SIGRTMIN+6")]
)
def test_a_service_that_any_signal_ends_is_started_again(tmp_path: Path, number: int, name: str) -> None:
    said: list[str] = []
    shot = sleeper("shot", f"import os; os.kill(os.getpid(), {int(number)})")
    supervisor = Supervisor([shot], tmp_path, lambda service, text: said.append(f"{service} {text}"))
    supervisor._start_stage(Stage.workers)
    try:
        while not supervisor.services[0].restarts.total:
            supervisor._turn()
    finally:
        supervisor._stop_all()
    assert any(f"shot was killed by {name}; starting it again" in one for one in said), said


def test_what_can_t_be_started_or_written_now_ends_no_cluster(tmp_path: Path) -> None:
    said: list[str] = []
    good = sleeper("good")
    missing = ServiceSpec("missing", (str(tmp_path / "nothing"),), Stage.workers)
    state = tmp_path / "state"
    supervisor = Supervisor([good, missing], state, lambda name, text: said.append(f"{name} {text}"))
    supervisor._start_stage(Stage.workers)
    try:
        while supervisor.services[1].restarts.total < 2:
            supervisor._turn()
        assert (state / "up.json").stat().st_mode & 0o077 == 0
        shutil.rmtree(state)
        state.write_text("in the way")
        supervisor._publish()
        assert supervisor.services[0].phase is Phase.running
    finally:
        supervisor._stop_all()
    assert "missing can't be started ([Errno 2]" in said[0]
    assert "can't be written" in said[-1]


def test_a_pipe_in_the_place_of_a_log_holds_nobody_up(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor(
        [sleeper("piped"), sleeper("good")], tmp_path, lambda name, text: said.append(f"{name} {text}")
    )
    piped, good = supervisor.services
    piped.log.parent.mkdir()
    os.mkfifo(piped.log)
    supervisor._start_stage(Stage.workers)
    try:
        assert (piped.phase, good.phase) == (Phase.waiting, Phase.running)
        assert piped.tail() == ""
        piped.log.unlink()
        while piped.phase is not Phase.running:
            supervisor._turn()
    finally:
        supervisor._stop_all()
    assert "piped can't be started ([Errno 6]" in said[0]


def test_the_log_of_a_service_that_lives_long_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "LOG_BYTES", 1_000)
    monkeypatch.setattr(supervising, "LOG_SECONDS", 0.1)
    chatty = "import sys\nwhile True:\n  sys.stderr.write('x' * 99 + '\\n'); sys.stderr.flush(); __import__('time').sleep(0.01)"
    supervisor = Supervisor([sleeper("chatty", chatty)], tmp_path, lambda name, text: None)
    supervisor._start_stage(Stage.workers)
    (service,) = supervisor.services
    try:
        first = service.pid
        for _ in range(3):
            service.log.with_suffix(".log.1").unlink(missing_ok=True)
            wait_until(lambda: supervisor._turn() or service.log.with_suffix(".log.1").exists(), "the log begun anew")
        assert service.pid == first
        wait_until(lambda: service.log.stat().st_size, "more lines")
        assert service.log.read_bytes()[:1] == b"x"  # no hole at its beginning
    finally:
        supervisor._stop_all()


def test_a_terminal_that_goes_away_ends_it_cleanly(tmp_path: Path) -> None:
    """Its hang-up comes together with the end of whoever reads what is said."""
    reading, writing = os.pipe()
    arguments = ("--no-dashboard", "--workers", "0", "--schedulers", "0", "--tenders", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "up", *arguments], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    try:
        wait_until(lambda: b"ready" in os.read(reading, 10_000), "ready")
        os.close(reading)
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=90)
        assert (process.returncode, errors) == (0, b"")
    finally:
        process.kill()
        process.wait()


def test_a_service_s_own_table_goes_before_what_up_tells_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_LOG_LEVEL", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    file = tmp_path / "mainspring.toml"
    file.write_text('log_level = "error"\n[worker]\nlog_level = "debug"\ngrace = 70\n[up]\ngrace = 3\n')
    seen: list[UpSettings] = []
    monkeypatch.setattr(upping, "_supervise", seen.append)
    monkeypatch.setattr(upping, "open_database", lambda url: None)
    monkeypatch.setattr(upping, "waiting_elsewhere", lambda *_: ())
    monkeypatch.chdir(tmp_path)
    for given in ((), ("--grace", "9", "--log-level", "info")):
        CliRunner().invoke(app, ["up", "--config", str(file), "--no-dashboard", *given], catch_exceptions=False)
    # The working directory isn't added: there it would come first, whoever may write to it. Those that import from it see to it.
    assert os.environ["PYTHONPATH"] == "/mine"
    (worker, other), (commanded, _) = (
        [next(spec for spec in services(settings) if spec.name.startswith(kind)) for kind in ("worker", "scheduler")]
        for settings in seen
    )
    assert "MAINSPRING_LOG_LEVEL" not in worker.environment
    assert "--grace" not in worker.command
    assert worker.grace == 75
    assert other.environment["MAINSPRING_LOG_LEVEL"] == "error"
    assert other.grace == 8
    assert commanded.environment["MAINSPRING_LOG_LEVEL"] == "info"
    assert (commanded.command[commanded.command.index("--grace") + 1], commanded.grace) == ("9", 14)


def test_every_service_is_planned_in_the_order_of_need(tmp_path: Path) -> None:
    settings = UpSettings("embedded:/d", "c", "s3://heap/c", tmp_path, workers=2, s3_port=1234, dashboard=True)
    planned = services(settings)
    names = [spec.name for spec in planned]
    assert names == ["s3", "worker-1", "worker-2", "tender", "janitor", "scheduler", "dashboard"]
    assert [spec.stage for spec in planned] == sorted(spec.stage for spec in planned)
    assert planned[0].stage is Stage.store
    assert all(spec.environment["MAINSPRING_DB"] == "embedded:/d" for spec in planned[1:])


def test_several_workers_share_the_gpus_that_are_visible(tmp_path: Path) -> None:
    for workers, shares in ((1, [None]), (2, ["4,7", "5"]), (4, ["4", "5", "7", ""])):
        planned = services(UpSettings("embedded:/d", "c", "file:/heap", tmp_path, workers=workers, gpus="4,5,7"))
        found = [spec.environment.get("CUDA_VISIBLE_DEVICES") for spec in planned if spec.name.startswith("worker")]
        assert found == shares
    planned = services(UpSettings("embedded:/d", "c", "file:/heap", tmp_path, workers=2))
    assert all("CUDA_VISIBLE_DEVICES" not in spec.environment for spec in planned)


def test_the_dashboards_token_is_inherited_by_the_dashboard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DASHBOARD_TOKEN", "secret")
    given = {
        name: supervising._inherited(ServiceSpec(name, (), Stage.store)).get("MAINSPRING_DASHBOARD_TOKEN")
        for name in ("worker-1", "tender", "dashboard")
    }
    assert given == {"worker-1": None, "tender": None, "dashboard": "secret"}
