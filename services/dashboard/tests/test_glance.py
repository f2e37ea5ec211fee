"""What somebody sees who looks for the first time, or when something is not there: in a real browser."""

from __future__ import annotations

import signal
from typing import Any
from uuid import UUID

import pytest
from browsing import PATIENCE_MS, Page, Served

import fdb_datamodel as dm

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")

AWAY = "The dashboard's server doesn't answer; trying again."


def test_a_server_that_is_gone_is_said_in_words_and_what_was_read_before_is_dimmed(page: Page, served: Served) -> None:
    served.lab.submit(name="resize")
    shown = page.go("/")
    sync_api.expect(shown.locator(".tile.unclaimed b")).to_have_text("1", timeout=PATIENCE_MS)
    shown.locator("#live.on").wait_for()
    assert _opacity(shown) == 1
    asked: list[str] = []
    shown.on("requestfailed", lambda request: asked.append(request.url))
    served.process.terminate()
    served.process.wait(30)
    problem = shown.locator("#problem")
    sync_api.expect(problem).to_have_text(AWAY, timeout=PATIENCE_MS)
    while not any("/api/attention" in url for url in asked):  # what the page asks every other second failed too
        shown.wait_for_event("requestfailed")
    sync_api.expect(problem).to_have_text(AWAY, timeout=PATIENCE_MS)
    assert _opacity(shown) < 1, "old numbers don't look live"
    shown.locator("nav a", has_text="Workers").click()
    sync_api.expect(shown.locator("main")).to_contain_text("The dashboard's server doesn't answer", timeout=PATIENCE_MS)
    assert "Failed to fetch" not in shown.locator("body").inner_text()


def _opacity(shown: Any) -> float:
    return float(shown.evaluate("getComputedStyle(document.querySelector('main')).opacity"))


def test_an_empty_cluster_says_how_to_begin_and_that_nothing_is_wrong(page: Page, served: Served) -> None:
    page.page.route("**/api/attention", _nothing_wrong)
    shown = page.go("/")
    sync_api.expect(shown.locator("#fine")).to_have_text("Nothing needs attention.", timeout=PATIENCE_MS)
    how = shown.locator("pre", has_text="client.submit(pow, 2, 100)")
    sync_api.expect(how).to_contain_text(f'Client("{served.lab.url}", cluster="demo")')
    assert not shown.locator(".chart").first.is_visible(), "there is nothing to plot"
    words = shown.locator(".words")
    sync_api.expect(words).to_contain_text("in the pool, until a worker takes it")
    assert words.locator("dd").first.is_visible()
    served.lab.submit(name="resize")
    shown.locator(".chart").first.wait_for()
    sync_api.expect(shown.locator(".u-over")).to_have_count(4, timeout=PATIENCE_MS)
    assert how.count() == 0
    assert not words.locator("dd").first.is_visible(), "who knows the words isn't kept by them"


def test_where_nothing_fails_no_line_of_failures_hides_the_others(page: Page, served: Served) -> None:
    served.lab.realize(served.lab.submit(name="resize"))
    shown = page.go("/")
    plot = shown.locator(".panel", has_text="Ends per second")
    sync_api.expect(plot.locator(".u-legend")).to_contain_text("failed/s")
    while not _drawn(shown, "--realized"):
        pass
    assert not _drawn(shown, "--failed")
    served.lab.fail(served.lab.submit(name="resize"), "no")
    while not _drawn(shown, "--failed"):
        pass


_PIXELS = """(name) => {
  const plot = [...document.querySelectorAll('.panel')].find((one) => one.textContent.includes('Ends per second')).querySelector('canvas');
  const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const { data } = plot.getContext('2d').getImageData(0, 0, plot.width, plot.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 99 && wanted.every((one, i) => Math.abs(data[at + i] - one) < 24)) found += 1;
  return found;
}"""


def _drawn(shown: Any, colour: str) -> int:
    return int(shown.evaluate(_PIXELS, colour))


def _nothing_wrong(route: Any) -> None:
    route.fulfill(
        json={"findings": [], "examined": True, "groups": [], "more": 0, "followers": 0, "looked": 0, "all": True}
    )


def test_retries_are_counted_as_max_retries_counts_them(page: Page, served: Served) -> None:
    once = served.lab.submit(name="resize", max_retries=0)
    served.lab.fail(once, "no")
    lost = served.lab.submit(name="resize", max_retries=3)
    for why in ("worker-lost", "drained"):
        served.lab(dm.relinquish_claim, served.lab(dm.claim_future, lost, served.lab.worker), why)
    served.lab(dm.claim_future, lost, served.lab.worker)
    shown = page.go(f"/futures/{UUID(bytes=once)}")
    sync_api.expect(_fact(shown, "attempts")).to_have_text("1", timeout=PATIENCE_MS)
    sync_api.expect(_fact(shown, "retries")).to_have_text("0 of the 0 that max_retries allows")
    shown = page.go(f"/futures/{UUID(bytes=lost)}")
    sync_api.expect(_fact(shown, "attempts")).to_have_text(
        "3, 2 of them not charged to max_retries", timeout=PATIENCE_MS
    )
    sync_api.expect(_fact(shown, "retries")).to_have_text("0 of the 3 that max_retries allows")


def test_the_newest_first_is_an_order_of_times_also_of_futures_that_a_key_names(page: Page, served: Served) -> None:
    keyed = bytes.fromhex("98cec332000050008000000000000001")
    served.lab.submit(name="by a key", id=keyed)
    for at in range(3):
        served.lab.submit(name=f"part {at}")
    shown = page.go("/futures")
    rows = shown.locator("tbody tr")
    sync_api.expect(rows.first).to_contain_text("part 2", timeout=PATIENCE_MS)
    sync_api.expect(rows.last).to_contain_text("by a key", timeout=PATIENCE_MS)
    served.lab.submit(name="by a later key", id=bytes.fromhex("00cec332000050008000000000000001"))
    sync_api.expect(rows.first).to_contain_text("by a later key", timeout=PATIENCE_MS)


def _fact(shown: Any, name: str) -> Any:
    return shown.locator(f"dt:text-is('{name}') + dd")


def test_a_server_that_is_silent_is_said_too(page: Page, served: Served) -> None:
    shown = page.go("/ids")  # which asks for nothing by itself that could fail
    shown.locator("#live.on").wait_for()
    served.process.send_signal(signal.SIGSTOP)
    try:
        problem = shown.locator("#problem")
        sync_api.expect(problem).to_contain_text("No news from the dashboard's server", timeout=PATIENCE_MS)
        assert _opacity(shown) < 1
    finally:
        served.process.send_signal(signal.SIGCONT)
    sync_api.expect(problem).to_be_hidden(timeout=PATIENCE_MS)
    sync_api.expect(shown.locator("#live")).to_have_class("dot on", timeout=PATIENCE_MS)
    assert _opacity(shown) == 1


def test_a_page_of_which_a_file_did_not_arrive_is_loaded_again(page: Page, served: Served) -> None:
    """As where an interface of the host comes or goes: the browser gives up whatever is under way."""
    lost: list[str] = []

    def lose(route: Any) -> None:
        if route.request.url in lost:
            route.continue_()
        else:
            lost.append(route.request.url)
            route.abort("connectionreset")

    page.page.clock.install()
    for path in ("style.css", "views/heap.js"):
        lost.clear()
        page.page.route(f"**/static/{path}", lose)
        shown = page.go("/ids")
        sync_api.expect(shown.locator("#problem")).to_have_text(
            "A part of this page didn't arrive; trying again.", timeout=PATIENCE_MS
        )
        shown.clock.run_for(2_000)
        sync_api.expect(shown.locator("#problem")).to_be_hidden(timeout=PATIENCE_MS)
        shown.locator("td", has_text="native").wait_for()
        page.page.unroute(f"**/static/{path}")


def test_a_page_of_which_a_file_never_arrives_is_loaded_again_less_and_less(page: Page, served: Served) -> None:
    """As one that is blocked: the rest can be read."""
    looks: list[str] = []  # whether the server is there, after which the page is loaded again
    page.page.on("request", lambda one: looks.append(one.url) if one.resource_type == "fetch" else None)
    page.page.clock.install()
    page.page.route("**/static/style.css", lambda route: route.abort("blockedbyclient"))
    shown = page.go("/ids")
    for pause in (2_000, 4_000):
        sync_api.expect(shown.locator("#problem")).to_have_text(
            "A part of this page didn't arrive; trying again.", timeout=PATIENCE_MS
        )
        shown.locator("td", has_text="native").wait_for()
        shown.clock.run_for(pause - 1_000)
        shown.evaluate("fetch('/api/ids').then(() => 0)")  # by its answer what was asked for before is known
        assert sum("icon.svg" in one for one in looks) == (pause > 2_000)
        with shown.expect_event("load"):
            shown.clock.run_for(1_500)
    page.page.unroute("**/static/style.css")
    with shown.expect_event("load"):
        shown.clock.run_for(8_500)
    sync_api.expect(shown.locator("#problem")).to_be_hidden(timeout=PATIENCE_MS)
    assert shown.evaluate("sessionStorage.length") == 0


def test_what_could_not_be_read_is_asked_for_again_though_the_stream_goes_on(page: Page, served: Served) -> None:
    asked: list[str] = []

    def lose(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.abort("connectionreset")
        elif len(asked) == 2:
            route.fulfill(status=200, body='{"stores": [')  # it broke in the middle
        else:
            route.continue_()

    shown = page.go("/workers")
    shown.locator("#live.on").wait_for()
    page.page.route("**/api/ids", lose)
    shown.locator("nav a", has_text="Ids").click()
    shown.locator("td", has_text="native").wait_for()
    assert len(asked) >= 3


def test_a_request_without_an_answer_is_given_up_and_made_again(page: Page, served: Served) -> None:
    held: list[Any] = []
    page.page.clock.install()
    page.page.route("**/api/overview*", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    shown = page.go("/")  # both that the first page makes
    while len(held) < 2:
        shown.clock.run_for(1_000)
    waiting = shown.locator("main", has_text="Waiting for the dashboard's server")
    while not waiting.is_visible():
        shown.clock.run_for(1_000)
    shown.clock.run_for(30_000)
    sync_api.expect(shown.locator(".tile.unclaimed b")).to_have_text("0", timeout=PATIENCE_MS)


def test_who_reads_slowly_asks_for_one_thing_at_a_time_and_no_more_once_he_left(page: Page, served: Served) -> None:
    held: list[Any] = []
    page.page.clock.install()
    shown = page.go("/heap")
    shown.locator(".empty", has_text="no heap").wait_for()
    page.page.route("**/api/heap", lambda route: held.append(route))
    shown.clock.run_for(9_000)  # four times in which it reads again what it shows
    shown.locator("#live.on").wait_for()
    assert len(held) == 1
    with shown.expect_event("requestfailed", lambda request: request.url.endswith("/api/heap")):
        shown.locator("nav a", has_text="Ids").click()
    shown.locator("td", has_text="native").wait_for()
