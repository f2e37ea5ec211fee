"""`LocalCluster`: workers and a client in one line, which end with the block or the process, whatever ends that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from futures_worker import LocalCluster, MainspringError, WorkerStartError


def wait_gone(pid: int, seconds: float = 60.0) -> None:
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        try:
            assert select.select([watched], [], [], seconds)[0], f"process {pid} lives"
        finally:
            os.close(watched)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    cluster = LocalCluster(workers=1, slots=2, cpus=3, ram="1GiB", gpus=2, max_retries=0)
    try:
        yield cluster
    finally:
        cluster.close()


def test_one_line_is_a_cluster_and_its_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_script.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_script  # type: ignore[import-not-found]

    cluster = LocalCluster(workers=2, slots=1)
    with cluster as client:
        assert client.submit(beside_the_script.double, 21).result(timeout=60) == 42
        pids, folder = [worker.pid for worker in cluster.workers], cluster.logs.parent
        assert len(set(pids)) == 2
        assert cluster.url == client.origin.url
    assert cluster.closed
    assert client.closed
    assert not folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    cluster.close()
    with pytest.raises(MainspringError, match="is closed: make a new one"):
        cluster.client


def test_no_two_workers_have_a_gpu_in_common(local: LocalCluster) -> None:
    def both(folder: str) -> str:
        import time

        given = os.environ["CUDA_VISIBLE_DEVICES"]
        Path(folder, given).touch()
        while len(list(Path(folder).iterdir())) < 2:
            time.sleep(0.01)
        return given

    local.scale(2)
    with tempfile.TemporaryDirectory() as folder:
        found = local.client.map(both, [folder] * 2, resources={"gpu": 2})
        assert sorted(local.client.gather(found, timeout=60)) == ["0,1", "2,3"]
    local.scale(1)


def test_options_are_the_clients(local: LocalCluster) -> None:
    assert local.client.submit(divmod, 1, 0).exception(timeout=60).args == ("integer division or modulo by zero",)  # type: ignore[union-attr]
    (worker,) = local.workers
    assert worker.alive
    assert worker.slots == 2
    assert worker.address.startswith("127.0.0.1:")
    (row,) = local.client.workers()
    assert (row.cpu, row.ram, row.gpu) == (3, 1 << 30, 2)
    assert worker.log == local.logs / "worker-1.log"


def test_it_scales_both_ways_and_replaces_the_dead(local: LocalCluster) -> None:
    (first,) = local.workers
    second = local.scale(2)[1]
    assert local.workers == [first, second]
    first.kill()
    assert local.workers == [second]
    assert "1 worker, 2 slots each, 1 more dead" in repr(local)
    third = local.scale(2)[1]
    assert local.workers == [second, third]
    assert local.scale(1) == local.workers == [second]
    wait_gone(third.pid)
    assert local.client.submit(pow, 2, 5).result(timeout=60) == 32


def test_notebooks_are_shown_escaped_text(local: LocalCluster) -> None:
    future = local.client.submit(pow, 2, 3, name="<b>bold</b>")
    future.result(timeout=60)
    shown = future._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert "realized" in shown
    failed = local.client.submit(int, "<i>", max_retries=0)
    failed.exception(timeout=60)
    assert "ValueError: invalid literal" in failed._repr_html_()
    assert "<i>" not in failed._repr_html_()
    assert local.client.cluster in local.client._repr_html_()
    assert str(local.workers[0].pid) in local._repr_html_()


def test_an_asynchronous_block_on_a_folder_that_stays(tmp_path: Path) -> None:
    async def main() -> int:
        async with LocalCluster(workers=1, db=tmp_path / "db", cluster="mine", logs=tmp_path / "logs") as client:
            assert client.cluster == "mine"
            return await client.submit(pow, 3, 2)

    assert asyncio.run(main()) == 9
    assert (tmp_path / "db").is_dir()
    assert (tmp_path / "logs" / "worker-1.log").exists()


def test_a_worker_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with (
        pytest.raises(WorkerStartError, match=r"ended with exit code 3 before it served(?s:.*)no such luck"),
        LocalCluster(workers=1),
    ):
        pass


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"workers": -1}, ValueError, "workers is 0 or more, found -1"),
        ({"workers": 1.5}, TypeError, r"workers is a whole number, found 1\.5"),
        ({"slots": 0}, ValueError, "slots is 1 or more, found 0"),
        ({"ram": "much"}, ValueError, "much"),
        ({"gpus": -1}, ValueError, "gpu"),
        ({"db": "memory:"}, ValueError, "lives in one process"),
        ({"max_retry": 1}, TypeError, "max_retr"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        LocalCluster(**wrong)  # type: ignore[arg-type]


SCRIPT = """
import sys
from futures_worker import LocalCluster

cluster = LocalCluster(workers=1)
print(*[worker.pid for worker in cluster.workers], cluster.logs.parent, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False], ids=["SIGKILL", "end"])
def test_workers_end_with_their_process_whatever_ends_it(killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        assert script.stdin is not None
        worker, folder = script.stdout.readline().decode().split()
        if killed:
            script.send_signal(signal.SIGKILL)
        script.stdin.close()
        wait_gone(int(worker))
    assert not Path(folder).exists()


FORKS = """
import os, sys
from futures_worker import LocalCluster

with LocalCluster(workers=1) as client:
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    print(client.submit(pow, 2, 5).result(timeout=60))
"""


def test_a_fork_that_ends_takes_nothing_along() -> None:
    said = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)
    assert said.stdout == "32\n", said.stderr


def test_without_workers_a_wait_says_so() -> None:
    with (
        LocalCluster(workers=0) as client,
        pytest.raises(TimeoutError, match="no live worker"),
    ):
        client.submit(pow, 2, 2).result(timeout=0.1)
