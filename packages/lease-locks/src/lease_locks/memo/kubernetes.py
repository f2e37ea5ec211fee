"""A Shell that runs remotes as Kubernetes jobs: the example of how to write a Shell that can be adopted.

It speaks to the API server's REST interface through one small function, so that any client, or a recording, will do:

    api(method, path, body) -> (HTTP status, decoded JSON)

`api_in_cluster()` makes one from the service account of the pod it runs in.
"""

from __future__ import annotations

import copy
import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from lease_locks.errors import LeaseError

log = logging.getLogger("lease_locks")

Api = Callable[[str, str, "dict[str, Any] | None"], "tuple[int, dict[str, Any]]"]
_PAUSES: Final = (0.2, 1.0)
_TOO_MANY_REQUESTS: Final = 429
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class JobError(LeaseError):
    """The API server refused a job; the message has its reason."""


class KubernetesJobShell:
    """Run each remote as a job made from `template`, whose first container gets the remote's command.

    Args:
        api: see the module.
        template: a Job manifest with an image that has this package and your code, and the database's URL within reach.
        namespace: where the jobs are made.
        command: what runs a remote in the image.
        look_seconds: how often a job's status is read.
    """

    def __init__(
        self,
        api: Api,
        template: dict[str, Any],
        *,
        namespace: str = "default",
        command: Sequence[str] = ("python", "-m", "lease_locks.memo"),
        look_seconds: float = 2.0,
    ) -> None:
        self.api = api
        self.template = template
        self.namespace = namespace
        self.command = list(command)
        self.look_seconds = look_seconds

    def __call__(self, args: Sequence[str]) -> Future[None]:
        # The writer id names the job: should the answer be lost, asking again finds the same job.
        writer = next(arg.partition("=")[2] for arg in args if arg.startswith("--writer-id="))
        name = f"memo-{writer}"
        manifest = copy.deepcopy(self.template)
        manifest.setdefault("apiVersion", "batch/v1")
        manifest.setdefault("kind", "Job")
        manifest.setdefault("metadata", {})["name"] = name
        spec = manifest.setdefault("spec", {})
        spec.setdefault("backoffLimit", 0)  # a second try would be another attempt, and needs the lock of its own
        pod = spec.setdefault("template", {}).setdefault("spec", {})
        pod.setdefault("restartPolicy", "Never")
        pod["containers"][0]["command"] = [*self.command, *args]
        pod["containers"][0].pop("args", None)  # they would come after the remote's own
        status, answer = self._ask("POST", self._path(), manifest)
        if status not in (200, 201, 202, 409):  # 409: it is there
            raise JobError(f"job {name} was refused with {status}: {answer.get('message', answer)}")
        future = self._follow(name)
        future.handle = name  # type: ignore[attr-defined]
        return future

    def attach(self, handle: str) -> Future[None] | None:
        """Follow the job `handle`, pending or running; None where it is over or gone."""
        return None if self._over(handle) else self._follow(handle)

    def cancel(self, handle: str) -> bool:
        """Delete the job with its pods; False where there is none."""
        status, _ = self._ask("DELETE", f"{self._path()}/{handle}?propagationPolicy=Background")
        return status in (200, 202)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Again where no answer came, or the server is busy: what was asked for may have been done all the same."""
        for pause in _PAUSES:
            try:
                status, answer = self.api(method, path, body)
                if status < 500 and status != _TOO_MANY_REQUESTS:
                    return status, answer
                why: object = f"{status}: {answer.get('message', answer)}"
            except OSError as error:
                why = error
            log.warning("the API server did not answer, asking again: %s", why)
            time.sleep(pause)
        return self.api(method, path, body)

    def _path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def _over(self, name: str) -> bool:
        status, job = self._ask("GET", f"{self._path()}/{name}")
        if status == 404:
            return True
        if status != 200:
            raise JobError(f"the status of job {name} was refused with {status}: {job.get('message', job)}")
        conditions = job.get("status", {}).get("conditions") or []
        return any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)

    def _follow(self, name: str) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            pause = threading.Event()
            while True:
                try:
                    if self._over(name):
                        future.set_result(None)
                        return
                except Exception as error:  # the API server restarts: the job goes on
                    log.warning("the status of job %s can't be read, trying again: %s", name, error)
                pause.wait(self.look_seconds)

        threading.Thread(target=work, name=f"job-{name}", daemon=True).start()
        return future


def api_in_cluster(host: str = "https://kubernetes.default.svc", timeout: float = 30.0) -> Api:
    """An `api` with the service account of this pod."""
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))

    def api(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        # Read each time: such credentials are replaced while the pod runs.
        bearer = (_ACCOUNT / "token").read_text(encoding="ascii").strip()
        request = urllib.request.Request(
            host + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, _refusal(error.read())

    return api


def _refusal(body: bytes) -> dict[str, Any]:
    """What the API server says, or whatever stands before it."""
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": body[:200].decode(errors="replace")}
