"""The Kubernetes Shell against a recorded API: requests as the API server takes them, answers as it gives them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from dead_orchestrators import leave_pending

from lease_locks import LeaseManager, MemoizingPicklingRunner, run_remote
from lease_locks.memo.kubernetes import JobError, KubernetesJobShell, _refusal

JOBS = "/apis/batch/v1/namespaces/science/jobs"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "demo"}},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "registry.example/demo:1"}]}}},
}


class Recorded:
    """A recorded API server: a job is pending until `starts` is set, then runs its command and is complete."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.starts = threading.Event()
        self.refuse = 0
        self.mute = 0  # so many answers are lost on their way
        self.busy: list[int | None] = []  # answers to the next requests; None: none at all

    def __call__(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        self.requests.append((method, path))
        if self.busy:
            status = self.busy.pop(0)
            if status is None:
                raise TimeoutError("no answer")
            return status, {"message": "busy"}
        if self.refuse:
            return self.refuse, {"kind": "Status", "status": "Failure", "message": "no quota", "code": self.refuse}
        if method == "POST":
            assert path == JOBS
            assert body is not None
            name = body["metadata"]["name"]
            if name in self.jobs:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "code": 409}
            self.jobs[name] = {**body, "status": {}}
            command = body["spec"]["template"]["spec"]["containers"][0]["command"]
            threading.Thread(target=self._run, args=(name, command), daemon=True).start()
            if self.mute:
                self.mute -= 1
                raise ConnectionResetError("the answer was lost")
            return 201, self.jobs[name]
        name = path.removeprefix(JOBS + "/").partition("?")[0]
        if name not in self.jobs:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"kind": "Status", "status": "Success"}
        return 200, self.jobs[name]

    def _run(self, name: str, command: list[str]) -> None:
        self.starts.wait(60)
        if name in self.jobs:
            assert command[:3] == ["python", "-m", "lease_locks.memo"]
            code = run_remote(command[3:])
            kind = "Complete" if code == 0 else "Failed"
            self.jobs[name]["status"] = {"conditions": [{"type": kind, "status": "True"}]}


def shell_of(api: Recorded) -> KubernetesJobShell:
    return KubernetesJobShell(api, TEMPLATE, namespace="science", look_seconds=0.02)


def test_an_invocation_runs_as_a_job(tmp_path: Path) -> None:
    api = Recorded()
    api.starts.set()
    with LeaseManager("memory:") as locks:
        runner = MemoizingPicklingRunner(locks, shell=shell_of(api), pipeline_id="demo")
        assert runner.call(functions.square, 6, str(tmp_path)) == 36
        with pytest.raises(functions.Refusal):
            runner.call(functions.fails, str(tmp_path))
    first = next(iter(api.jobs.values()))
    assert first["kind"] == "Job"
    assert first["metadata"]["labels"] == {"app": "demo"}
    assert first["spec"]["backoffLimit"] == 0
    assert first["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert first["metadata"]["name"].startswith("memo-")
    assert len(first["metadata"]["name"]) <= 63
    assert api.requests[0] == ("POST", JOBS)
    assert "command" not in TEMPLATE["spec"]["template"]["spec"]["containers"][0], "the template is left as it was"


def test_a_pending_job_is_found_again_followed_and_cancelled() -> None:
    api = Recorded()
    shell = shell_of(api)
    args = ["memo:p/f/00", "--writer-id=" + "0" * 28]
    future = shell(args)
    handle = future.handle  # type: ignore[attr-defined]
    again = shell(args)
    assert len(api.jobs) == 1, "asked twice, it is one job"
    followed = shell.attach(handle)
    assert followed is not None
    assert not followed.done()
    assert shell.cancel(handle)
    for each in (future, again, followed):
        assert each.result(60) is None
    assert shell.attach(handle) is None
    assert not shell.cancel(handle)


def test_a_refused_job_says_why_and_frees_the_lock(tmp_path: Path) -> None:
    api = Recorded()
    api.refuse = 403
    with LeaseManager("memory:") as locks:
        runner = MemoizingPicklingRunner(locks, shell=shell_of(api), pipeline_id="demo")
        with pytest.raises(JobError, match="403: no quota"):
            runner.call(functions.square, 6, str(tmp_path))
        assert locks.list() == []


def test_a_lost_answer_is_asked_for_again_and_finds_the_job(tmp_path: Path) -> None:
    api = Recorded()
    api.mute = 1
    api.starts.set()
    with LeaseManager("memory:") as locks:
        runner = MemoizingPicklingRunner(locks, shell=shell_of(api), pipeline_id="demo")
        assert runner.call(functions.square, 6, str(tmp_path)) == 36
    assert [method for method, _ in api.requests][:2] == ["POST", "POST"]
    assert len(api.jobs) == 1


@pytest.mark.parametrize("answers", [[503], [429, None]], ids=["503", "429 and none"])
def test_a_pending_job_is_found_again_though_the_server_is_busy(
    answers: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lock would be freed, and the job, which waits for its node perhaps, refused at its start."""
    monkeypatch.setattr("lease_locks.memo.kubernetes._PAUSES", (0.0, 0.0))
    api = Recorded()
    shell = shell_of(api)
    job = {"metadata": {"name": "memo-1"}}
    api.jobs["memo-1"] = job
    api.busy = list(answers)
    followed = shell.attach("memo-1")
    assert followed is not None
    del api.jobs["memo-1"]
    assert followed.result(60) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"<html>Bad Gateway", "<html>Bad Gateway"), (b"", None), (b"[]", "[]"), (b'{"message": "no"}', "no")],
)
def test_what_stands_before_the_server_may_answer_in_any_form(body: bytes, said: str | None) -> None:
    assert _refusal(body).get("message") == said


def test_the_pending_job_of_a_dead_orchestrator_is_adopted(tmp_path: Path) -> None:
    api = Recorded()
    with LeaseManager("memory:") as locks:
        leave_pending(locks, shell_of(api), functions.square, 7, str(tmp_path))
        runner = MemoizingPicklingRunner(locks, shell=shell_of(api), pipeline_id="demo")
        future = runner.submit(functions.square, 7, str(tmp_path))
        until = time.monotonic() + 60
        while [method for method, _ in api.requests].count("GET") < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        api.starts.set()
        assert future.result(60) == 49
    assert len(api.jobs) == 1, "no second job was made"
    assert len(list(tmp_path.iterdir())) == 1
