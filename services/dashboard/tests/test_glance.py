"""What somebody sees who looks for the first time, or when something is not there: in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import PATIENCE_MS, Page, Served

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
