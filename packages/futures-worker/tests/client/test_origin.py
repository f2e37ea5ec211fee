"""A handle knows where it belongs: wherever it is unpickled it finds its own cluster, and looking for it creates nothing."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import open_database
from futures_worker import Client, MainspringError, WrongClusterError, current_client

WAIT = 60.0


def square(n: int) -> int:
    return n * n


class Counter:
    def incr(self) -> int:
        return 1


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, which must stay empty."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MAINSPRING_DB", raising=False)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def first(any_url: str, thread_worker: Callable[..., Any]) -> Iterator[Client]:
    """A client that is in no `with` block."""
    client = Client(any_url, "first")
    thread_worker(open_database(any_url), "first")
    yield client
    client.close()


@pytest.fixture
def second(any_url: str, first: Client) -> Iterator[Client]:
    """A client of another cluster, in a `with` block."""
    with Client(any_url, "second") as client:
        yield client


@pytest.mark.parametrize("copied", [lambda f: pickle.loads(pickle.dumps(f)), copy.copy, copy.deepcopy])
def test_a_copied_future_stays_with_its_client_without_a_with_block(
    first: Client, elsewhere: Path, copied: Callable[[Any], Any]
) -> None:
    assert copied(first.submit(square, 3)).result(WAIT) == 9


def test_a_copied_future_ignores_the_client_of_the_with_block(first: Client, second: Client, elsewhere: Path) -> None:
    again = pickle.loads(pickle.dumps(first.submit(square, 4)))
    assert current_client() is second
    assert again.result(WAIT) == 16
    assert pickle.loads(pickle.dumps(again)).result(WAIT) == 16


def test_a_future_that_a_task_returned_is_of_the_tasks_cluster(first: Client, second: Client, elsewhere: Path) -> None:
    inner = first.submit(square, 5)
    assert first.put({"inner": inner}).result(WAIT)["inner"].result(WAIT) == 25


def test_handles_of_actors_and_datasets_stay_with_their_cluster(first: Client, second: Client, elsewhere: Path) -> None:
    actor = pickle.loads(pickle.dumps(first.actor(Counter)))
    assert actor.incr()._record.link.session.space.cluster == "first"
    parts = pickle.loads(pickle.dumps(first.dataset([[1, 2], [3]])))
    assert parts.map(square).collect(WAIT) == [1, 4, 9]


def test_a_handle_whose_client_was_closed_opens_its_database_again(
    database_dir: Path, elsewhere: Path, thread_worker: Callable[..., Any]
) -> None:
    with Client(f"embedded:{database_dir}", "first") as client:
        thread_worker(open_database(f"embedded:{database_dir}"), "first")
        data = pickle.dumps(client.submit(square, 6))
    assert pickle.loads(data).result(WAIT) == 36


def test_a_handle_whose_database_is_gone_says_so_and_makes_none(database_dir: Path, elsewhere: Path) -> None:
    with Client(f"embedded:{database_dir}", "first") as client:
        data = pickle.dumps(client.submit(square, 6))
    kept = database_dir.with_name("kept")
    database_dir.rename(kept)
    with pytest.raises(WrongClusterError, match=f"cluster 'first' of embedded:{database_dir}.*there is no database"):
        pickle.loads(data).state()
    assert not database_dir.exists()
    shutil.rmtree(kept)


def test_another_database_at_the_same_path_is_not_taken_for_it(database_dir: Path, elsewhere: Path) -> None:
    url = f"embedded:{database_dir}"
    make = "import pickle, sys; from futures_worker import Client\n"
    make += f"with Client({url!r}, 'first') as client: sys.stdout.buffer.write(pickle.dumps(client.submit(abs, -1)))"
    data = subprocess.run([sys.executable, "-c", make], check=True, capture_output=True).stdout
    shutil.rmtree(database_dir)
    Client(url, "other").close()
    with pytest.raises(WrongClusterError, match="a database without that cluster"):
        pickle.loads(data).state()
    with Client(url, "first"), pytest.raises(WrongClusterError, match="another cluster of that name"):
        pickle.loads(data).state()


def test_a_handle_of_a_database_in_memory_says_where_it_can_be_used(elsewhere: Path) -> None:
    with Client("memory:", "first") as client:
        data = pickle.dumps(client.put(1))
    with pytest.raises(WrongClusterError, match="only the process that opened it"):
        pickle.loads(data).result()


def test_a_future_of_another_cluster_is_refused_as_an_argument(first: Client, second: Client) -> None:
    foreign = first.submit(square, 2)
    with pytest.raises(WrongClusterError, match=r"cluster 'first' of .*cluster 'second' of .*\.result\(\)"):
        second.submit(square, foreign)


def test_a_future_of_another_cluster_inside_a_put_is_read_from_its_own(first: Client, second: Client) -> None:
    assert second.put([first.submit(square, 7)]).result(WAIT)[0].result(WAIT) == 49


def test_the_client_of_a_with_block_is_that_of_its_thread(any_url: str) -> None:
    entered, left = threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        with Client(any_url, "second"):
            entered.set()
            left.wait(WAIT)
            seen.append(current_client().cluster)

    with Client(any_url, "first") as client:
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(WAIT)
        assert current_client() is client

        def neither() -> None:
            try:
                seen.append(current_client())
            except MainspringError as error:
                seen.append(str(error))

        confused = threading.Thread(target=neither)
        confused.start()
        confused.join(WAIT)
        assert "'first'" in seen[0]
        assert "'second'" in seen[0]
        left.set()
        thread.join(WAIT)
        assert seen[1] == "second"


def test_a_thread_without_a_with_block_uses_that_of_its_process(any_url: str) -> None:
    seen: list[Any] = []
    with Client(any_url, "first") as client:
        thread = threading.Thread(target=lambda: seen.append(current_client()))
        thread.start()
        thread.join(WAIT)
        assert seen == [client]


@pytest.mark.embedded_only("a path is an embedded database's")
def test_a_relative_url_means_the_directory_where_the_client_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Client("embedded:./db", "demo") as client:
        other = tmp_path / "other"
        other.mkdir()
        monkeypatch.chdir(other)
        again = pickle.loads(pickle.dumps(client))
        assert again._context.url == f"embedded:{tmp_path / 'db'}"
        assert again.submit(square, 1).id
        again.close()
        assert list(other.iterdir()) == []


FORK = """
import os
from futures_worker import Client
client = Client("embedded:./db", "demo")
client.flush()
os.mkdir("other")
os.chdir("other")
read, write = os.pipe()
if not os.fork():
    os.write(write, str(client.submit(abs, -1).id).encode())
    os._exit(0)
os.wait()
print(client.get_future(os.read(read, 100).decode()).state().state.value, os.listdir("."))
"""


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_forked_child_in_another_directory_uses_the_same_database(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MAINSPRING_DB"}
    ran = subprocess.run(
        [sys.executable, "-c", FORK], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT
    )
    assert ran.stdout == "unclaimed []\n", ran.stderr
