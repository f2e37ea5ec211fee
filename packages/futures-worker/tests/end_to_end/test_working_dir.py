"""`Client(working_dir=…, env=…)`: tasks run in a copy of the folder, with the variables, and nobody else's tasks do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import open_database
from futures_worker import TaskUnpickleError, current_client

WAIT = 60.0
Cluster = Callable[..., Any]


def seen() -> tuple[str, str, str | None, int]:
    """Where it runs, what it finds there, the variable, and by whom."""
    import helper_of_test as helper  # type: ignore[import-not-found]

    return os.getcwd(), f"{helper.VALUE} {Path('data.txt').read_text()}", os.environ.get("LEVEL"), os.getpid()


def plain() -> tuple[str, str | None, bool, int]:
    import importlib.util

    found = importlib.util.find_spec("helper_of_test") is not None
    return os.getcwd(), os.environ.get("LEVEL"), found, os.getpid()


def nested() -> list[Any]:
    client = current_client()
    return [client.submit(seen).result(WAIT)[1:3], client.options(env={"LEVEL": "9"}).submit(seen).result(WAIT)[1:3]]


class Reader:
    def read(self) -> tuple[str, str, str | None, int]:
        return seen()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "helper_of_test.py").write_text("VALUE = 1\n")
    (folder / "data.txt").write_text("one")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Where the workers unpack."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def unpacked(places: Path) -> list[Path]:
    root = places / f"mainspring-folders-{os.geteuid()}"
    return sorted(one for one in root.iterdir() if not one.name.startswith("."))


def test_tasks_run_in_the_folder_as_it_is_now_and_others_dont(cluster: Cluster, project: Path, places: Path) -> None:
    demo = cluster(2, 2, env={"TMPDIR": str(places)})
    client, other = demo.client(working_dir=project, env={"LEVEL": "3"}), demo.client(env={"LEVEL": "4"})
    where, found, level, first = client.submit(seen).result(WAIT)
    assert (found, level) == ("1 one", "3")
    assert Path(where).parent in unpacked(places)
    assert Path(where).stat().st_mode & 0o77 == 0

    here, level, known, mine = demo.client().submit(plain).result(WAIT)
    assert here != where and level is None and not known and mine != first
    assert other.submit(plain).result(WAIT)[1:3] == ("4", False)

    actor = client.actor(Reader)
    assert actor.read().result(WAIT)[1:3] == ("1 one", "3")
    assert client.submit(nested).result(WAIT) == [("1 one", "3"), ("1 one", "9")]
    everywhere = client.gather(client.map(lambda _: seen(), range(40)), timeout=WAIT)
    assert {(one[0], one[1], one[2]) for one in everywhere} == {(where, "1 one", "3")}, "unpacked once for both workers"

    (project / "helper_of_test.py").write_text("VALUE = 2\n")
    (project / "data.txt").write_text("two")
    client._context.setting.folder._look_at = 0.0  # as a second later
    assert client.submit(seen).result(WAIT)[1] == "2 two"
    assert actor.read().result(WAIT)[1] == "1 one", "an actor keeps the code that it began with"
    assert len(unpacked(places)) == 2
    demo.check()


def test_many_clients_of_one_worker_each_get_what_they_sent(cluster: Cluster, tmp_path: Path, places: Path) -> None:
    """More folders than slots and than are kept: each task is run in its own, and none waits for good."""
    demo = cluster(1, 2, env={"TMPDIR": str(places)})
    clients = []
    for number in range(10):
        folder = tmp_path / f"project-{number}"
        folder.mkdir()
        (folder / "helper_of_test.py").write_text(f"VALUE = {number}\n")
        (folder / "data.txt").write_text(str(number))
        clients.append(demo.client(working_dir=folder, env={"LEVEL": str(number)}))
    futures = [[client.submit(seen) for client in clients] for _ in range(2)]
    for several in futures:
        for number, future in enumerate(several):
            assert future.result(WAIT)[1:3] == (f"{number} {number}", str(number))
    demo.workers[0].stop()
    assert len(unpacked(places)) <= 8
    demo.check()


def test_a_damaged_folder_harms_only_the_futures_that_run_in_it(cluster: Cluster, project: Path, places: Path) -> None:
    demo = cluster(1, 1, env={"TMPDIR": str(places)})
    client = demo.client(working_dir=project)
    client.submit(plain).result(WAIT)
    client.flush()
    digest = client._context.setting.folder.now().digest
    db = open_database(demo.url)
    chunk = client._context.space.blobs[digest].pack(("chunk", 0))
    db[chunk] = bytes(db[chunk])[:-1] + b"!"
    demo.workers[0].stop()
    for one in unpacked(places):
        (one / "boot").write_text("another")  # as after a crash of the host: it isn't believed to be whole
    demo.start("--slots", "1", env={"TMPDIR": str(places)})
    with pytest.raises(TaskUnpickleError, match=r"the folder that .* runs in can't be unpacked: .* is damaged"):
        client.submit(seen).result(WAIT)
    assert demo.client().submit(plain).result(WAIT)[2] is False
    demo.check()


def test_a_worker_killed_while_it_unpacks_and_a_folder_removed_under_it(
    cluster: Cluster, project: Path, places: Path
) -> None:
    demo = cluster(2, 1, env={"TMPDIR": str(places)})
    client = demo.client(working_dir=project)
    where = Path(client.submit(seen).result(WAIT)[0])
    half = where.parent.parent / ".new-0123456789abcdef"
    (half / "files").mkdir(parents=True)
    demo.workers[0].kill()
    os.rename(where.parent, where.parent.with_name("elsewhere"))  # somebody's clean-up
    assert client.submit(seen).result(WAIT)[0] == str(where)
    assert not half.exists(), "what was left half unpacked"
    pid = client.submit(os.getpid).result(WAIT)
    os.kill(pid, signal.SIGKILL)
    assert client.submit(seen).result(WAIT)[1] == "1 one"
    demo.check()


def test_what_cant_travel_is_refused_when_the_client_is_made(
    shared_cluster: Cluster, project: Path, tmp_path: Path
) -> None:
    demo = shared_cluster(0, 1)
    for options, error, text in (
        ({"working_dir": 3}, TypeError, "working_dir is the path of a folder, found 3"),
        ({"working_dir": tmp_path / "nothing"}, ValueError, "nothing', which is not there"),
        ({"working_dir": project / "data.txt"}, ValueError, "data.txt', which is none"),
        ({"env": ["A"]}, TypeError, "env is a mapping of names to texts"),
        ({"env": {"A": 1}}, TypeError, r"env\['A'\] is a text, found 1 of type int: give '1'"),
        ({"env": {"A=B": "1"}}, ValueError, "names of variables, without '='"),
        ({"env": {"A": "\0"}}, ValueError, "has a NUL"),
        ({"env": {"A": "1" * 70_000}}, ValueError, "env has 70,001 bytes"),
    ):
        with pytest.raises(error, match=text):
            demo.client(**options)
    (project / "out").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"the link .*out leads out of working_dir, to .*: copy it into the folder"):
        demo.client(working_dir=project)
