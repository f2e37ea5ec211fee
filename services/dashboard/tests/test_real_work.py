"""The page over a cluster that works: workers, failing tasks, an actor, leases."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE_MS, Page, Served, picture, serve
from support.clusters import LocalCluster

from lease_locks import LeaseManager

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")


def resize(number: int, seconds: float) -> int:
    time.sleep(seconds)
    print(f"resized {number}")
    return number


def load(path: str) -> str:
    time.sleep(0.1)
    raise FileNotFoundError(f"no such file: {path}")


def train(seconds: float) -> int:
    """Busy, and fond of memory."""
    data = bytearray(96 << 20)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data[::4096] = bytes(len(data[::4096]))
    return len(data)


def total(numbers: list[int]) -> int:
    return sum(numbers)


class Tally:
    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


class Works:
    """Two workers, and a client that gives them something to do."""

    def __init__(self, folder: Path) -> None:
        self.cluster = LocalCluster(f"embedded:{folder}/db", "demo", folder)
        for _ in range(2):
            self.cluster.start("--slots", "4", "--cpus", "4")
        self.client = self.cluster.client()
        self.rng = random.Random(7)

    @contextmanager
    def training(self) -> Iterator[None]:
        """A long task, that no other test of this module finds."""
        one = self.client.submit(train, 60.0)
        try:
            yield
        finally:
            one.cancel()

    def round(self, most: float = 0.4) -> list[Any]:
        """A few futures of each sort."""
        parts = [self.client.submit(resize, at, self.rng.uniform(0.02, most)) for at in range(12)]
        return [*parts, self.client.submit(total, parts[:4]), self.client.submit(load, "orders.csv")]


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    works = Works(tmp_path_factory.mktemp("works"))
    try:
        yield works
    finally:
        works.cluster.close()


@pytest.fixture(scope="module")
def watched(works: Works) -> Iterator[Served]:
    with serve(None, works.cluster.url) as found:
        yield found


@pytest.fixture
def look(browser: Any, watched: Served) -> Iterator[Page]:
    opened = Page(browser, watched)
    yield opened
    opened.close()


def test_the_timeline_shows_what_ran_and_runs(works: Works, look: Page) -> None:
    futures = [one for _ in range(8) for one in works.round(1.5)]
    with works.training():
        _look_at_timeline(look, futures)


def _look_at_timeline(look: Page, futures: list[Any]) -> None:
    shown = look.go("/timeline?seconds=30")
    running = shown.locator("tbody tr", has_text="train")
    running.wait_for()
    sync_api.expect(running).to_contain_text("so far")
    for one in futures:
        one.exception(60)
    legend = shown.locator(".legend")
    for name in ("resize", "total", "failed", "train"):
        sync_api.expect(legend).to_contain_text(name, timeout=PATIENCE_MS)
    canvas = shown.locator("canvas.stream")
    sync_api.expect(canvas).to_have_attribute("aria-label", re.compile(r"\d+ tasks on 2 workers"), timeout=PATIENCE_MS)
    picture(shown, "timeline")
    # The long task lies at the right end of some lane: what the pointer rests on is told, and a click opens it.
    box = canvas.bounding_box()
    assert box is not None
    for lane in [18 + 7 + 15 * at for at in range(4)] + [104 + 7 + 15 * at for at in range(4)]:
        shown.mouse.move(box["x"] + box["width"] - 3, box["y"] + lane)
        tip = shown.locator(".tip")
        if tip.is_visible() and "train" in tip.inner_text():
            break
    sync_api.expect(shown.locator(".tip")).to_contain_text("train")
    shown.mouse.down()
    shown.mouse.up()
    shown.wait_for_url("**/futures/*")
    shown.locator("h1", has_text="train").wait_for()


def test_a_worker_s_page_has_what_it_really_uses(works: Works, look: Page) -> None:
    with works.training():
        _look_at_worker(works, look)


def _look_at_worker(works: Works, look: Page) -> None:
    shown = look.go("/workers")
    sync_api.expect(shown.locator(".workers .panel")).to_have_count(2, timeout=PATIENCE_MS)
    signs = shown.locator("p", has_text="last sign of life").first
    sync_api.expect(signs).to_contain_text(re.compile(r"life [\d.]+ m?s ago"), timeout=PATIENCE_MS)
    picture(shown, "workers")
    look.go("/timeline")
    shown.locator("tbody tr", has_text="train").locator("a[href^='/workers/']").click()
    shown.wait_for_url("**/workers/*")
    shown.locator("section", has=shown.locator("h2", has_text="Running now")).locator("tr", has_text="train").wait_for()
    used = shown.locator("p", has_text="Really used")
    sync_api.expect(used).to_contain_text(
        re.compile(r"(0\.[3-9]|[1-9]\.\d) processors, [1-9]\d\d MiB"), timeout=PATIENCE_MS
    )
    sync_api.expect(shown.locator(".u-over")).to_have_count(3, timeout=PATIENCE_MS)
    for one in works.round():
        one.exception(60)
    picture(shown, "worker")


def test_the_overview_of_a_cluster_at_work(works: Works, look: Page) -> None:
    tally = works.client.actor(Tally)
    assert tally.add(3).result(60) == 3
    with LeaseManager(works.cluster.url, "demo") as locks, locks.acquire("nightly/report"):
        shown = look.go("/")
        for one in works.round():
            one.exception(60)
        failed = shown.locator(".attention li.failed", has_text="FileNotFoundError in")
        sync_api.expect(failed).to_contain_text("no such file: orders.csv", timeout=PATIENCE_MS)
        sync_api.expect(shown.locator(".attention [data-check=janitor]")).to_contain_text(
            "no janitor runs", timeout=PATIENCE_MS
        )
        assert shown.locator(".attention [data-check=workers]").count() == 0
        sync_api.expect(shown.locator(".tile.claimed span")).to_have_text("claimed (1 actor)", timeout=PATIENCE_MS)
        picture(shown, "overview")
        row = look.go("/functions").locator("tbody tr", has_text="resize")
        sync_api.expect(row.locator("td").nth(7)).to_contain_text("ms", timeout=PATIENCE_MS)
        call = shown.locator("tbody tr", has_text="Tally.add").locator("td").nth(7)
        sync_api.expect(call).to_have_text("–", timeout=PATIENCE_MS)
        assert "isn't recorded" in str(call.locator("span").get_attribute("title"))
        picture(shown, "functions")
