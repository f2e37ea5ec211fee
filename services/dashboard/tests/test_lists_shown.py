"""Lists in a real browser: sorted by their columns, page by page; actors, datasets, sessions; a heap that lags."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from browsing import PATIENCE_MS, Page, Served, fill, people, picture, serve
from dashboard_lab import Lab

import fdb_datamodel as dm
from idempotent_txn import run
from lease_locks import LeaseManager
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Tender

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")


def _first(shown: Any, text: str) -> None:
    sync_api.expect(shown.locator("tbody tr").first).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_column_s_head_sorts_all_futures_and_says_of_how_many(page: Page, served: Served) -> None:
    for at in range(230):
        served.lab.submit(name=f"part {at:03}")
    shown = page.go("/futures")
    _first(shown, "part 229")
    shown.locator("th a", has_text="Name").click()
    shown.wait_for_url("**/futures?sort=name")
    _first(shown, "part 000")
    assert shown.locator("th[aria-sort=ascending]").inner_text().startswith("Name")
    sync_api.expect(shown.locator("#looked")).to_contain_text("Sorted among all 230 futures.", timeout=PATIENCE_MS)
    shown.locator("th a", has_text="Name").click()
    _first(shown, "part 229")
    shown.locator("a[rel=next]").click()
    _first(shown, "part 129")
    sync_api.expect(shown.locator(".pages")).to_contain_text("101 to 200 of 230", timeout=PATIENCE_MS)
    shown.locator("a[rel=next]").click()
    _first(shown, "part 029")
    sync_api.expect(shown.locator("tbody tr")).to_have_count(30, timeout=PATIENCE_MS)
    shown.locator("th a", has_text="Submitted").click()
    _first(shown, "part 229")
    shown.locator("th a", has_text="Submitted").click()
    shown.wait_for_url("**/futures?order=oldest")
    _first(shown, "part 000")


def test_actors_datasets_and_sessions_have_pages(page: Page, served: Served) -> None:
    lab, session = served.lab, bytes(range(16))
    shown = page.go("/")
    for name in ("Actors", "Datasets", "Sessions"):
        shown.locator("nav a", has_text=name).click()
        shown.locator("h1", has_text=name).wait_for()
    people(lab, session)
    with LeaseManager(lab.db, "demo") as holder, LeaseManager(lab.db, "demo") as other:
        lease = holder.acquire("nightly/report")
        waits = threading.Thread(target=lambda: other.acquire("nightly/report", timeout=120.0).release())
        waits.start()
        page.go("/actors")
        up = shown.locator("tbody tr", has_text="the tally")
        sync_api.expect(up).to_contain_text("127.0.0.1:7123", timeout=PATIENCE_MS)
        sync_api.expect(shown.locator("tbody tr", has_text="Cache")).to_contain_text("cancelled", timeout=PATIENCE_MS)
        picture(shown, "actors")
        page.go("/datasets")
        row = shown.locator("tbody tr", has_text="tokens of")
        sync_api.expect(row).to_contain_text("3 of 8", timeout=PATIENCE_MS)
        picture(shown, "datasets")
        row.locator("a").first.click()
        sync_api.expect(shown.locator("tbody tr")).to_have_count(8, timeout=PATIENCE_MS)
        page.go("/sessions")
        _first(shown, "nightly/report")
        sync_api.expect(shown.locator("tbody tr").first).to_contain_text("held by", timeout=PATIENCE_MS)
        picture(shown, "sessions")
        asked = shown.locator("tbody tr", has_text="batch-host:77").locator("a", has_text="5 futures")
        asked.click()
        shown.locator(".chip", has_text="session 00010203").wait_for()
        lease.release()
        waits.join()


def test_the_heap_says_first_what_lags_and_since_when(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lab, store = Lab(f"embedded:{tmp_path}/db"), "file:heap"
    with (
        serve(lab, lab.url, "--store", store) as served,
        SysDb(lab.db, "demo") as sysdb,
        HeapStore(store) as opened,
        Heap(opened, sysdb) as heap,
    ):
        sysdb.create_task("orders", "build-index", cadence=1.0)
        tender, started = Tender(heap, sysdb), threading.Event()
        scheduler = Scheduler(heap, sysdb, lambda task, gen, epoch: started.set())
        looked = Page(browser, served)
        shown = looked.go("/heap")
        sync_api.expect(shown.locator("#lagging")).to_have_text("Nothing lags.", timeout=PATIENCE_MS)
        # Nobody sweeps: the writes aren't seen.
        run(lab.db, lambda tr: sysdb.record_write(tr, "orders", records=3))
        lag = shown.locator("#lagging li")
        unseen = lag.filter(has_text="writes to 1 partition are not seen")
        sync_api.expect(unseen).to_contain_text("mainspring tender", timeout=PATIENCE_MS)
        first = shown.locator("main h1 ~ *").first.locator("> *").first
        assert first.get_attribute("id") == "lagging", "it is said first"
        # A tender sweeps, and no scheduler starts what is due.
        tender.turn()
        sync_api.expect(unseen).to_have_count(0, timeout=PATIENCE_MS)
        sync_api.expect(lag).to_contain_text("what is due does not start: build-index", timeout=PATIENCE_MS)
        sync_api.expect(lag).to_contain_text("since ", timeout=PATIENCE_MS)
        sync_api.expect(lag).to_contain_text("mainspring scheduler", timeout=PATIENCE_MS)
        sync_api.expect(lag.locator(".nowrap")).to_contain_text(" UTC, ", timeout=PATIENCE_MS)
        picture(shown, "heap")
        lag.locator("a").click()
        shown.locator("h1", has_text="build-index").wait_for()
        looked.go("/heap")
        # The scheduler begins: the lag is gone.
        scheduler.turn()
        scheduler.drain(60.0)
        assert started.is_set()
        sync_api.expect(shown.locator("#lagging")).to_have_text("Nothing lags.", timeout=PATIENCE_MS)
        looked.close()


def test_the_cause_of_a_stuck_task_is_seen_at_once_and_a_traceback_in_two_clicks(page: Page, served: Served) -> None:
    fill(served.lab)
    failed = served.lab.submit(name="load orders")
    traceback = 'Traceback (most recent call last):\n  File "shop.py", line 7, in load\nFileNotFoundError: orders.csv'
    failure = dm.Failure("error", "FileNotFoundError: orders.csv", traceback=traceback)
    served.lab(dm.fail_future, served.lab(dm.claim_future, failed, served.lab.worker), failure, True)
    shown = page.go("/")
    # One look at the first page, nothing clicked: which task is stuck, and why.
    stuck = shown.locator(".attention li.unclaimed", has_text="train")
    sync_api.expect(stuck).to_contain_text("unschedulable", timeout=PATIENCE_MS)
    sync_api.expect(stuck).to_contain_text("gpu=8", timeout=PATIENCE_MS)
    box = stuck.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 860, "without scrolling"
    # From anywhere, two clicks to a traceback.
    page.go("/workers")
    shown.locator("nav a", has_text="Overview").click()
    shown.locator(".attention li.failed a", has_text="load orders").click()
    shown.locator("pre", has_text='File "shop.py", line 7, in load').wait_for()
    page.go("/")
    shown.locator(".tile.failed").click()
    shown.locator("tbody tr", has_text="load orders").locator("a").first.click()
    shown.locator("pre", has_text='File "shop.py", line 7, in load').wait_for()
    assert shown.url.endswith(str(UUID(bytes=failed)))
