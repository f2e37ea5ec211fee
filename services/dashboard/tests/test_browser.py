"""The page in a real browser: what a person sees, live, on a screen and on a phone, light and dark.

The browser is `MAINSPRING_BROWSER`, or Chromium or Chrome on the PATH. With `MAINSPRING_SCREENSHOTS=DIR` the pictures of
the documentation are written there.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from browsing import PATIENCE_MS, Page, Served, fill, people, picture, serve
from dashboard_lab import Lab

import fdb_datamodel as dm
from lease_locks import LeaseManager
from mainspring_dashboard import reading
from s3heap_tender import SysDb

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")


def _tile(page: Any, state: str, count: int) -> None:
    sync_api.expect(page.locator(f".tile.{state} b")).to_have_text(str(count), timeout=PATIENCE_MS)


def test_the_overview_follows_the_cluster_live(page: Page, served: Served) -> None:
    shown = page.go("/")
    _tile(shown, "unclaimed", 0)
    ids = fill(served.lab)
    _tile(shown, "waiting", 2)
    _tile(shown, "unclaimed", 2)
    _tile(shown, "realized", 2)
    _tile(shown, "failed", 1)
    served.lab.realize(ids["part"])
    _tile(shown, "realized", 3)
    sync_api.expect(shown.locator(".u-over")).to_have_count(4, timeout=PATIENCE_MS)  # the plots were drawn
    shown.locator("#live.on").wait_for()
    legend = shown.locator(".u-legend").first
    sync_api.expect(legend).to_contain_text(
        re.compile(r"UTC:?\s*\d\d:\d\d:\d\d")
    )  # without a pointer there: the newest
    sync_api.expect(legend).to_contain_text(re.compile(r"waiting:?\s*1"), timeout=PATIENCE_MS)
    shown.locator(".attention").wait_for()
    assert "its result is stored" in str(shown.locator(".tile.realized").get_attribute("title")), "words are explained"
    shown.locator(".tile.failed").click()
    shown.wait_for_url("**/futures?state=failed")
    sync_api.expect(shown.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)


def test_the_overview_says_first_what_needs_attention(page: Page, served: Served) -> None:
    shown = page.go("/")
    shown.locator("#live.on").wait_for()
    assert shown.locator(".attention a[href^='/futures/']").count() == 0, "nothing is said where nothing is wrong"
    ids = fill(served.lab)
    again = served.lab.submit(name="load <b>bold</b>")
    served.lab.fail(again, "no such file: customers.csv")
    served.lab.submit(name="publish", dependencies=(again,), args=b"x")
    shown.locator(".attention").wait_for()  # without a reload
    failed, stuck = (shown.locator(f".attention li.{tone}:not([data-check])") for tone in ("failed", "unclaimed"))
    # and what doctor finds: the worker of this cluster is none
    silent = shown.locator(".attention li.failed[data-check=workers]")
    sync_api.expect(silent).to_contain_text("127.0.0.1:7000", timeout=PATIENCE_MS)
    sync_api.expect(silent).to_contain_text("gave no sign of life")
    sync_api.expect(failed).to_have_count(1, timeout=PATIENCE_MS)
    sync_api.expect(failed.locator("b").first).to_have_text("2", timeout=PATIENCE_MS)
    sync_api.expect(failed).to_contain_text("load <b>bold</b>")
    sync_api.expect(failed).to_contain_text("no such file: customers.csv")
    sync_api.expect(stuck).to_contain_text("train: unschedulable")
    sync_api.expect(stuck).to_contain_text("gpu=8")
    sync_api.expect(shown.locator(".attention p")).to_have_text("1 more failed because one of their arguments did")
    stuck.locator("a").click()
    shown.wait_for_url(f"**/futures/{UUID(bytes=ids['big'])}")
    sync_api.expect(shown.locator("p.reason")).to_contain_text("unschedulable", timeout=PATIENCE_MS)


def test_each_function_has_a_bar_of_its_progress(page: Page, served: Served) -> None:
    fill(served.lab)
    for at in range(12):
        one = served.lab.submit(name="resize")
        if at < 7:
            served.lab.realize(one)
        elif at < 9:
            served.lab.fail(one, "no")
    shown = page.go("/functions")
    row = shown.locator("tbody tr", has_text="resize")
    sync_api.expect(row).to_contain_text("9 of 12", timeout=PATIENCE_MS)
    assert row.locator(".phases").get_attribute("aria-label") == "7 realized, 2 failed, 3 unclaimed"
    sync_api.expect(row.locator(".phases i")).to_have_count(3)
    widths = [box["width"] for box in (row.locator(".phases i").nth(at).bounding_box() for at in range(3)) if box]
    assert widths[0] > widths[2] > widths[1] > 0
    row.locator("a").click()
    shown.wait_for_url("**/futures?q=resize")


def test_other_peoples_text_is_text(page: Page, served: Served) -> None:
    fill(served.lab)
    shown = page.go("/futures?q=bold")
    sync_api.expect(shown.locator("tbody td").nth(1)).to_contain_text("load <b>bold</b>", timeout=PATIENCE_MS)
    assert shown.locator("tbody b").count() == 0


def test_a_future_s_page_says_why_and_draws_its_lineage(page: Page, served: Served) -> None:
    ids = fill(served.lab)
    shown = page.go("/futures")
    shown.locator("tbody tr", has_text="sum up").wait_for()
    picture(shown, "futures")
    shown.locator("tbody tr", has_text="sum up").locator("a").first.click()
    shown.wait_for_url(f"**/futures/{UUID(bytes=ids['total'])}")
    sync_api.expect(shown.locator("p.reason")).to_contain_text("waiting on 1 future", timeout=PATIENCE_MS)
    shown.locator("svg.lineage").wait_for()
    sync_api.expect(shown.locator("svg.lineage .node")).to_have_count(5, timeout=PATIENCE_MS)
    sync_api.expect(shown.locator("svg.lineage path")).to_have_count(4, timeout=PATIENCE_MS)
    picture(shown, "future")
    served.lab.realize(ids["part"])
    served.lab(dm.write_output, ids["total"], dm.TaskOutput(1, b"3 parts, 81 words\n", 19))
    served.lab.realize(ids["total"])
    shown.locator("h2 .badge.realized").wait_for()  # without a reload
    shown.locator("pre.output", has_text="3 parts, 81 words").wait_for()
    shown.locator("svg.lineage a", has_text="write the report").click()
    shown.wait_for_url(f"**/futures/{UUID(bytes=ids['report'])}")
    shown.go_back()
    shown.wait_for_url(f"**/futures/{UUID(bytes=ids['total'])}")


def test_a_program_s_page_has_what_it_asked_for_and_waits_for(page: Page, served: Served) -> None:
    lab = served.lab
    child = lab.submit(name="resize")
    order = lab.submit(name="order", durable=True)
    claim = lab(dm.claim_future, order, lab.worker)
    attempt = dm.programs.ProgramClaim(order, claim.token)
    lab(dm.programs.record_request, attempt, 0, dm.programs.Request("step", "charge <b>", b"never unpickled"))
    lab(dm.programs.record_request, attempt, 1, dm.programs.Request("submit", "resize", ids=(child,)))
    lab(dm.programs.publish, attempt, 2, "stage", b"neither this")
    shown = page.go(f"/futures/{UUID(bytes=order)}")
    rows = shown.locator(".program tbody tr")
    sync_api.expect(rows).to_have_count(3, timeout=PATIENCE_MS)
    sync_api.expect(rows.nth(0)).to_contain_text("publish stage")
    sync_api.expect(rows.nth(2)).to_contain_text("step charge <b>")
    sync_api.expect(shown.locator(".program dl")).to_contain_text("published stage")
    away = dm.Away("event", "paid")
    lab(dm.finish_turn, lab.worker, [dm.Outcome.left(claim, away)], dm.Capacity(), 0)
    sync_api.expect(shown.locator("p.reason")).to_contain_text("the event 'paid'", timeout=PATIENCE_MS)
    picture(shown, "program")
    rows.nth(1).locator("a").click()
    shown.wait_for_url(f"**/futures/{UUID(bytes=child)}")
    shown.locator("h1", has_text="resize").wait_for()
    sync_api.expect(shown.locator(".program")).to_have_count(0)


def test_a_search_goes_through_all_futures_and_the_newest_come_first(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SCANNED_FUTURES", 10)
    monkeypatch.setattr(reading, "_SCAN_PAGE", 5)
    oldest = served.lab.submit(name="the needle")
    for at in range(45):
        served.lab.submit(name=f"hay {at}")
    shown = page.go("/futures?q=needle")
    sync_api.expect(shown.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    assert shown.locator("tbody a").first.get_attribute("href") == f"/futures/{UUID(bytes=oldest)}"
    shown = page.go("/futures?q=no such name")
    sync_api.expect(shown.locator(".empty")).to_have_text("No future matches “no such name”.", timeout=PATIENCE_MS)
    shown = page.go("/futures")
    sync_api.expect(shown.locator("tbody tr").first).to_contain_text("hay 44", timeout=PATIENCE_MS)
    shown.locator(".chip", has_text="oldest first").click()
    sync_api.expect(shown.locator("tbody tr").first).to_contain_text("the needle", timeout=PATIENCE_MS)


def test_search_finds_by_text_and_by_id(page: Page, served: Served) -> None:
    ids = fill(served.lab)
    shown = page.go("/")
    shown.get_by_label("Find a future").fill("orders.csv")
    shown.keyboard.press("Enter")
    shown.wait_for_url("**/futures?q=orders.csv")
    sync_api.expect(shown.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    shown.get_by_label("Find a future").fill(str(UUID(bytes=ids["failed"])))
    shown.keyboard.press("Enter")
    shown.locator("h1", has_text="load <b>bold</b>").wait_for()
    sync_api.expect(shown.locator("main")).to_contain_text("no such file: orders.csv", timeout=PATIENCE_MS)
    page.go(f"/futures/{uuid4()}")
    shown.locator("h1", has_text="Not found").wait_for()


def test_workers_leases_heap_and_ids(page: Page, served: Served) -> None:
    shown = page.go("/workers")
    shown.locator(".workers .panel", has_text="127.0.0.1:7000").wait_for()
    sync_api.expect(shown.locator(".meter", has_text="slots")).to_contain_text("0 / 2", timeout=PATIENCE_MS)
    page.go("/heap")
    shown.locator(".empty", has_text="no heap").wait_for()
    with LeaseManager(served.lab.db, "demo") as locks:
        lease = locks.acquire("nightly/report <1>")
        page.go("/leases")
        shown.locator("tbody a", has_text="nightly/report <1>").click()
        shown.locator("h2", has_text="Held").wait_for()
        picture(shown, "lease")
        lease.release()
        shown.locator("h2", has_text="Nobody holds it").wait_for()
    page.go("/ids")
    shown.locator("td", has_text="native").wait_for()


def test_what_the_pointer_rests_on_in_the_timeline_stays_where_it_is(page: Page, served: Served) -> None:
    now, worker = time.time(), "127.0.0.1:7000"
    early = [str(uuid4()), "early", worker, now - 20, None, "claimed"]
    late = [str(uuid4()), "late", worker, now - 10, None, "claimed"]
    told = {"workers": [{"address": worker, "slots": 2}], "ended": [], "running": [early, late], "next": 0}
    page.page.route("**/api/timeline*", lambda route: route.fulfill(json={"now": time.time(), **told}))
    shown = page.go("/timeline?seconds=30")
    canvas, tip = shown.locator("canvas.stream"), shown.locator(".tip")
    sync_api.expect(canvas).to_have_attribute("aria-label", re.compile("2 tasks on 1"), timeout=PATIENCE_MS)
    box = canvas.bounding_box()
    right, first = box["x"] + box["width"] - 3, box["y"] + 18 + 7
    lane = first + 15
    shown.mouse.move(right, lane)
    sync_api.expect(tip).to_contain_text("late", timeout=PATIENCE_MS)
    # It is learned that the other had ended before this one began: there was room in the first lane.
    told.update(ended=[[*early[:4], now - 15, "realized"]], running=[late], next=1)
    sync_api.expect(shown.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    shown.mouse.move(right - 1, lane)
    sync_api.expect(tip).to_contain_text("late", timeout=PATIENCE_MS)
    sync_api.expect(tip).to_be_visible()
    while not (tip.is_visible() and "late" in tip.inner_text() and lane == first):  # until it is drawn anew
        shown.locator("h1").hover()
        sync_api.expect(tip).to_be_hidden(timeout=PATIENCE_MS)
        lane = first
        shown.mouse.move(right, lane)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Any, served: Served, scheme: str) -> None:
    fill(served.lab)
    people(served.lab, bytes(range(16)))
    opened = Page(
        browser, served, viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True, is_mobile=True
    )
    shown = opened.go("/")
    _tile(shown, "failed", 2)
    for path in (
        "/",
        "/futures",
        "/functions",
        "/actors",
        "/datasets",
        "/sessions",
        "/workers",
        "/leases",
        "/heap",
        "/ids",
    ):
        opened.go(path)
        shown.locator("main *").first.wait_for()
        if (path, scheme) in (("/", "light"), ("/futures", "dark")):
            _tile(shown, "failed", 2) if path == "/" else shown.locator("tbody tr").first.wait_for()
            picture(shown, f"phone-{scheme}")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()


def test_light_and_dark_differ_and_the_choice_is_kept(browser: Any, served: Served) -> None:
    fill(served.lab)
    opened = Page(browser, served, color_scheme="light")
    shown = opened.go("/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = shown.evaluate(background)
    shown.get_by_label("Switch between light and dark").click()
    dark = shown.evaluate(background)
    assert light != dark
    _tile(shown, "failed", 1)
    shown.locator(".attention li").first.wait_for()
    picture(shown, "dark")
    opened.go("/workers")
    assert shown.evaluate(background) == dark
    opened.close()


def test_the_page_says_when_its_server_is_gone(browser: Any, served: Served) -> None:
    opened = Page(browser, served)
    shown = opened.go("/workers")
    shown.locator("#live.on").wait_for()
    served.process.terminate()
    shown.locator("#problem:visible", has_text="doesn't answer").wait_for()
    opened.context.close()


def test_a_stream_that_was_refused_is_asked_for_again(browser: Any, served: Served) -> None:
    opened = Page(browser, served)
    refused: list[str] = []

    def answer(route: Any) -> None:
        if refused:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.fulfill(status=502, body="bad gateway")

    opened.page.route("**/api/stream", answer)
    shown = opened.go("/workers")
    shown.locator("#live.on").wait_for()
    assert len(refused) == 1
    opened.close()


def test_futures_and_leases_are_acted_on_after_a_question(browser: Any, tmp_path: Path) -> None:
    token = "a-token-of-twenty-four-c"
    lab = Lab(f"embedded:{tmp_path}/db")
    with serve(lab, lab.url, "--token", token, "--actions") as served:
        opened = Page(browser, served)
        waits = lab.submit(name="waits")
        shown = opened.go(f"/futures/{UUID(bytes=waits)}?token={token}")
        shown.get_by_role("button", name="Cancel").click()
        assert lab(dm.get_future_state, waits).value == "unclaimed"
        shown.get_by_role("button", name="Really cancel?").click()
        shown.locator("h2 .badge.failed").wait_for()
        assert lab(dm.get_future_state, waits).value == "failed"
        shown.get_by_role("button", name="Retry").click()
        shown.get_by_role("button", name="Really retry?").click()
        shown.locator("h2 .badge.unclaimed").wait_for()
        with LeaseManager(lab.db, "demo") as locks:
            locks.acquire("nightly/report")
            opened.go("/leases/nightly%2Freport")
            shown.get_by_role("button", name="Release").click()
            shown.get_by_role("button", name="Really release?").click()
            shown.locator("h2", has_text="Nobody holds it").wait_for()
        with SysDb(lab.db, "demo") as sysdb:
            task = sysdb.create_task(uuid4(), "reindex", cadence=60.0)
            opened.go("/heap")
            shown.locator("tbody a", has_text="reindex").first.click()
            shown.wait_for_url(f"**/heap/{task.id}")
            shown.get_by_role("button", name="Pause").click()
            shown.get_by_role("button", name="Really pause?").click()
            shown.locator("h2", has_text="Paused").wait_for()
            picture(shown, "task")
        opened.close()
