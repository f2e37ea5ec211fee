"""joblib and scikit-learn on a cluster, workers killed midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from futures_worker import Client, LargeArgumentWarning, LocalCluster, register_joblib

joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")
register_joblib()

from joblib import Parallel, delayed  # noqa: E402


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    cluster = LocalCluster(workers=2, slots=1)
    try:
        cluster.client.wait_for_workers(2, timeout=60)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def client(local: LocalCluster) -> Iterator[Client]:
    """Of two workers, whatever a test before has killed; `Parallel` means them."""
    local.scale(2)
    with joblib.parallel_config("mainspring", client=local.client):
        yield local.client


def square(value: int) -> int:
    return value * value


def sum_and_pid(values: Any, more: dict[str, Any]) -> tuple[float, int]:
    return float(values.sum() + more["same"][0].sum()), os.getpid()


def fail_at(value: int, bad: int) -> int:
    if value == bad:
        raise KeyError(f"number {value}")
    return value


def squares_inside(count: int) -> tuple[int, int]:
    """Of tasks of a task, and of what runs in it as it names no n_jobs."""
    outside = Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4))
    assert set(Parallel()(delayed(os.getpid)() for _ in range(3))) == {os.getpid()}
    assert os.getpid() not in outside
    return sum(Parallel(n_jobs=2)(delayed(square)(n) for n in range(count))), os.getpid()


def begin_and_wait(path: str) -> None:
    with open(path, "wb") as pipe:
        pipe.write(b"x")
    signal.pause()


def test_importing_the_library_imports_no_other() -> None:
    check = "import futures_worker, sys; assert not {'joblib', 'dask', 'numpy', 'futures_worker.adapters'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.usefixtures("client")
def test_results_in_order_and_as_generators() -> None:
    expected = [square(n) for n in range(300)]
    assert Parallel()(delayed(square)(n) for n in range(300)) == expected
    assert Parallel(n_jobs=3, batch_size=7)(delayed(square)(n) for n in range(300)) == expected
    in_order = Parallel(return_as="generator")(delayed(square)(n) for n in range(30))
    assert next(in_order) == 0
    assert list(in_order) == expected[1:30]
    assert sorted(Parallel(return_as="generator_unordered")(delayed(square)(n) for n in range(30))) == expected[:30]


def test_two_generators_at_a_time_and_one_given_up(client: Client) -> None:
    one = Parallel(return_as="generator")(
        delayed(sum_and_pid)(np.ones(200_000), {"same": [np.ones(1)]}) for _ in range(20)
    )
    other = Parallel(return_as="generator")(delayed(square)(n) for n in range(20))
    assert next(one)[0] == 200_001
    assert list(other) == [square(n) for n in range(20)]
    assert [result for result, _ in one] == [200_001.0] * 19
    assert not client.futures()
    given_up = Parallel(return_as="generator")(delayed(time.sleep)(600) for _ in range(4))
    with pytest.warns(UserWarning, match="have been cancelled"):
        given_up.close()
    assert not client.futures(["claimed", "unclaimed"])


def test_what_a_call_raises_is_raised_and_ends_the_others(client: Client) -> None:
    with pytest.raises(KeyError, match="number 7") as caught:
        Parallel(batch_size=1)(delayed(fail_at)(n, 7) for n in range(50))
    assert "fail_at" in str(caught.value.__cause__)
    assert not client.futures()


def test_large_arguments_are_stored_once_and_nothing_is_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[Any] = []
    put = Client.put

    def counted(self: Client, obj: Any, **options: Any) -> Any:
        puts.append(obj)
        return put(self, obj, **options)

    monkeypatch.setattr(Client, "put", counted)
    values = np.ones(200_000)
    results = Parallel(batch_size=1)(delayed(sum_and_pid)(values, {"same": [values]}) for _ in range(12))
    assert [result for result, _ in results] == [400_000.0] * 12
    assert os.getpid() not in {pid for _, pid in results}
    assert len(puts) == 1
    with pytest.warns(LargeArgumentWarning, match="argument number 1 of sum"):
        Parallel(max_nbytes=None)(delayed(np.sum)(values) for _ in range(2))
    assert len(puts) == 1
    assert not client.futures()


@pytest.mark.usefixtures("client")
def test_a_task_may_use_parallel_on_two_slots() -> None:
    results = Parallel()(delayed(squares_inside)(n) for n in range(6))
    assert [total for total, _ in results] == [sum(square(k) for k in range(n)) for n in range(6)]
    assert os.getpid() not in {pid for _, pid in results}


def test_an_interrupt_ends_what_runs(client: Client, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def interrupt() -> None:
        with open(begun, "rb") as pipe:
            pipe.read(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Parallel()(delayed(begin_and_wait)(str(begun)) for _ in range(1))
    thread.join()
    assert not client.futures()
    assert Parallel()(delayed(square)(n) for n in range(3)) == [0, 1, 4]


def test_a_time_limit_of_joblib(client: Client) -> None:
    from multiprocessing import TimeoutError

    with pytest.raises(TimeoutError):
        Parallel(timeout=0.05)(delayed(time.sleep)(600) for _ in range(2))
    assert not client.futures()


def test_what_was_put_is_put_again_if_it_is_lost(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    values, put = np.ones(200_000), Client.put
    puts: list[Any] = []

    def lost_at_first(self: Client, obj: Any, **options: Any) -> Any:
        puts.append(put(self, obj, **options))
        if len(puts) == 1:
            self.delete(puts[0])  # before any task has it: a worker that claimed one may have mapped it already
        return puts[-1]

    monkeypatch.setattr(Client, "put", lost_at_first)
    results = Parallel(batch_size=1)(delayed(sum_and_pid)(values, {"same": [values]}) for _ in range(6))
    assert [result for result, _ in results] == [400_000.0] * 6
    assert len(puts) == 2
    assert not client.futures()


def test_scikit_learn_finds_the_same_with_a_worker_killed_midway(local: LocalCluster, client: Client) -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    values, classes = make_classification(n_samples=4000, n_features=40, random_state=0)
    assert values.nbytes > 1_000_000
    grid = {"C": [0.01, 0.1, 1.0]}

    def fitted(n_jobs: int) -> tuple[Any, Any]:
        search = GridSearchCV(LogisticRegression(), grid, cv=3, n_jobs=n_jobs).fit(values, classes)
        forest = RandomForestClassifier(n_estimators=12, random_state=0, n_jobs=n_jobs).fit(values, classes)
        return search.cv_results_["mean_test_score"], forest.predict_proba(values)

    with joblib.parallel_config("sequential"):
        expected = fitted(1)
    stop = threading.Event()

    def kill() -> None:
        while not stop.is_set():
            if client.futures("claimed"):
                local.workers[0].kill()
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        scores, classified = fitted(-1)
    finally:
        stop.set()
        thread.join()
    assert len(local.workers) == 1
    np.testing.assert_allclose(scores, expected[0])
    np.testing.assert_array_equal(classified, expected[1])


def test_wrong_parameters_are_told_at_once(local: LocalCluster) -> None:
    with pytest.raises(TypeError, match=r"max_retry.*did you mean 'max_retries'"):
        joblib.parallel_config("mainspring", client=local.client, max_retry=1)
    with pytest.raises(TypeError, match=r"pass a LocalCluster's as cluster\.client"):
        joblib.parallel_config("mainspring", client=local)
    with pytest.raises(TypeError, match="not both"):
        joblib.parallel_config("mainspring", client=local.client, url="memory:")
    with joblib.parallel_config("mainspring", url=local.url, cluster=local.cluster):
        assert Parallel(n_jobs=2)(delayed(square)(n) for n in range(3)) == [0, 1, 4]
