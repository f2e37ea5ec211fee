"""An edited module is never stale on a worker: whatever its processes had loaded before."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from futures_worker import TaskUnpickleError
from futures_worker.worker.child.code_versions import LOOK_SECONDS

WAIT = 60.0
Cluster = Callable[..., Any]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module where client and workers find it, as an editor would, and make this process forget all of them."""
    monkeypatch.syspath_prepend(tmp_path)
    made: set[str] = set()

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        made.add(name)
        for one in made:
            sys.modules.pop(one, None)
        importlib.invalidate_caches()

    yield write
    for one in made:
        sys.modules.pop(one, None)


def test_an_edited_module_runs_as_it_is_now(cluster: Cluster, edit: Callable[[str, str], None], tmp_path: Path) -> None:
    demo = cluster(workers=0)
    demo.start("--slots", "1", env={"PYTHONPATH": str(tmp_path)})
    seen = []
    for version in (1, 2, 3):
        edit("mine_deep", f"VALUE = {version}\n")  # the same size, within the same second
        edit("mine_helper", "import os\nfrom mine_deep import VALUE\nclass Thing:\n    version = VALUE\n")
        edit(
            "mine_job",
            "import mine_helper\ndef run(n): return os_id(), mine_helper.VALUE\nfrom os import getpid as os_id\n",
        )
        job = importlib.import_module("mine_job")
        thing = importlib.import_module("mine_helper").Thing()

        def lazily() -> int:
            from mine_deep import VALUE  # type: ignore[import-not-found]

            return int(VALUE)

        with demo.client() as client:
            several = client.gather(client.map(job.run, range(20), max_retries=0))
            assert {value for _, value in several} == {version}
            assert client.submit(lazily, max_retries=0).result(WAIT) == version
            assert client.submit(getattr, thing, "version", max_retries=0).result(WAIT) == version
            actor = client.actor(importlib.import_module("mine_helper").Thing)
            assert client.submit(lambda: 1).result(WAIT) == 1
            del actor
            seen.append({pid for pid, _ in several})
    assert len(set.union(*seen)) == 3  # a process for each version, and no more
    demo.check()


def test_the_same_code_again_goes_to_the_same_process(
    cluster: Cluster, edit: Callable[[str, str], None], tmp_path: Path
) -> None:
    demo = cluster(workers=0)
    demo.start("--slots", "1", env={"PYTHONPATH": str(tmp_path)})
    edit("mine_job", "import os\ndef run(n): return os.getpid()\n")
    processes = set()
    for _ in range(3):
        sys.modules.pop("mine_job", None)
        job = importlib.import_module("mine_job")
        with demo.client() as client:
            processes |= set(client.gather(client.map(job.run, range(5))))
    assert len(processes) == 1


def test_what_was_submitted_before_an_edit_and_begins_after_it_runs_the_files_as_they_are_then(
    cluster: Cluster, edit: Callable[[str, str], None], tmp_path: Path
) -> None:
    demo = cluster(workers=0)
    demo.start("--slots", "1", env={"PYTHONPATH": str(tmp_path)})
    edit("mine_job", "VALUE = 1\ndef run(n): return VALUE\n")
    job = importlib.import_module("mine_job")
    edited, look = str(tmp_path / "edited"), 2 * LOOK_SECONDS

    def wait_for_the_edit() -> None:
        import os
        import time

        while not os.path.exists(edited):
            time.sleep(0.01)
        time.sleep(look)

    with demo.client() as client:
        assert client.submit(job.run, 0).result(WAIT) == 1
        waits = client.submit(wait_for_the_edit)
        later = client.map(job.run, range(20), max_retries=0)
        client.flush()
        edit("mine_job", "VALUE = 2\ndef run(n): return VALUE\n")
        Path(edited).touch()
        waits.result(WAIT)
        assert set(client.gather(later)) == {2}
        assert client.submit(int).result(WAIT) == 0
    demo.check()


def test_modules_that_are_sent_along_need_not_be_there(
    shared_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = shared_cluster(workers=1, slots=1)
    package = tmp_path / "sent_kit"
    package.mkdir()
    (package / "__init__.py").write_text("from sent_kit.work import job\n")
    (package / "work.py").write_text("from sent_kit.deep import Scale\ndef job(x): return Scale(3).of(x)\n")
    (package / "deep.py").write_text(
        "class Scale:\n    def __init__(self, by): self.by = by\n    def of(self, x): return self.by * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        job = importlib.import_module("sent_kit").job
        with pytest.raises(TaskUnpickleError, match=r"Client\(modules=\['sent_kit'\]\)"):
            demo.client().submit(job, 2, max_retries=0).result(timeout=WAIT)
        client = demo.client(modules=["sent_kit"])
        assert client.submit(job, 2).result(timeout=WAIT) == 6
        for wrong in ("sent_kit", [3]):
            with pytest.raises(TypeError, match="modules are"):
                demo.client(modules=wrong)
        with pytest.raises(ModuleNotFoundError):
            demo.client(modules=["no_such_kit"])
    finally:
        if "sent_kit" in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(sys.modules["sent_kit"])
        for name in [name for name in sys.modules if name.startswith("sent_kit")]:
            del sys.modules[name]
