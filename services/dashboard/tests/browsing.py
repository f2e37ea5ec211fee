"""Opens the dashboard in a real browser, and remembers what went wrong there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fdb_datamodel as dm
from fdb_datamodel import FutureSpec, Requirements, actors

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 60_000


def _browser_path() -> str | None:
    return os.environ.get("MAINSPRING_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium; the test is skipped where there is none, but fails where CI says that there must be."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    path = _browser_path()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no browser: continuous integration must have Chromium, see noxfile.py")
        pytest.skip("no browser found: install Chromium, or name one by MAINSPRING_BROWSER")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


class Served:
    """A dashboard process over an embedded database that the test writes to."""

    def __init__(self, lab: Any, url: str, process: subprocess.Popen[str]) -> None:
        self.lab = lab
        self.url = url
        self.process = process


@contextmanager
def serve(lab: Any, url: str, *options: str) -> Iterator[Served]:
    """A dashboard over the cluster `demo` of a database. `lab` writes to it."""
    command = [sys.executable, "-m", "mainspring_dashboard", "--db", url, "--cluster", "demo", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("dashboard ready at http://127.0.0.1:")
        yield Served(lab, ready.split()[-1].rstrip("/"), process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class Page:
    """A browser page that fails the test for any script error, and for any request to another host."""

    def __init__(self, browser: Any, served: Served, **context: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | context))
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.base = served.url
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self._console(message))
        self.page.on("request", lambda request: self._requested(request.url))

    def _console(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _requested(self, url: str) -> None:
        if not url.startswith((self.base, "data:")):
            self.elsewhere.append(url)

    def go(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.errors == []
        assert self.elsewhere == []


def picture(page: Any, name: str) -> None:
    """A picture of the documentation, where these are wanted."""
    folder = os.environ.get("MAINSPRING_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png")


def fill(lab: Any) -> dict[str, bytes]:
    """A small cluster with something of everything."""
    parts = [lab.submit(name=f"count words of part {at}") for at in range(3)]
    total = lab.submit(name="sum up", dependencies=tuple(parts), args=b"x")
    report = lab.submit(name="write the report", dependencies=(total,), args=b"x")
    for one in parts[:2]:
        lab.realize(one)
    failed = lab.submit(name="load <b>bold</b>")
    lab.fail(failed, "no such file: orders.csv")
    big = lab.submit(name="train", requirements=Requirements(gpu=8))
    return {"part": parts[2], "total": total, "report": report, "failed": failed, "big": big}


def people(lab: Any, session: bytes) -> None:
    """Actors, datasets, and a client on another host."""
    named = lab(actors.create_actor, FutureSpec(code=b"x", name="actor Tally"), "the tally")
    lab(dm.claim_future, named, lab.worker)
    lab(actors.place_host, lab(actors.begin_host, named, 1), "127.0.0.1", 7123)
    gone = lab(actors.create_actor, FutureSpec(code=b"x", name="actor Cache"), "")
    lab(dm.cancel_future, gone)
    for name, done in (("corpus.load", 8), ("corpus.tokens of", 3)):
        mark = dm.new_future_id()
        parts = [lab.submit(name=name, dataset=mark, session=session) for _ in range(8)]
        for one in parts[:done]:
            lab.realize(one)
    lab(dm.beat_session, session, 3, "batch-host", 77)
