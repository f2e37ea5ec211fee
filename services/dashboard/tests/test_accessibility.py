"""axe finds nothing on any page, light and dark, wide and on a phone."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from browsing import PATIENCE_MS, Page, Served, fill, people

import fdb_datamodel as dm
from fdb_datamodel import TaskOutput
from lease_locks import LeaseManager
from s3heap_tender import SysDb

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
axe_core = pytest.importorskip("axe_playwright_python.base", reason="axe isn't installed")

PAGES = (
    "/", "/futures", "/futures?state=failed", "/futures/{total}", "/futures/{failed}", "/functions", "/timeline", "/workers",
    "/workers/127.0.0.1:7000", "/leases", "/leases/nightly%2Freport", "/heap", "/heap/{task}", "/ids", "/futures?sort=ran&descending=1",
    "/actors", "/datasets", "/sessions",
)  # fmt: skip
RUN = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"


# Contrast goes by the scheme, places by the width: two of the four pairs show each of them.
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing(browser: Any, served: Served, scheme: str, width: int) -> None:
    ids = {name: str(UUID(bytes=one)) for name, one in fill(served.lab).items()}
    running = served.lab.submit(name="running")
    served.lab(dm.claim_future, running, served.lab.worker)
    served.lab(dm.write_output, UUID(ids["failed"]), TaskOutput(1, b"a line\n" * 80, 560))
    people(served.lab, bytes(range(16)))
    with SysDb(served.lab.db, "demo") as sysdb:
        ids["task"] = str(sysdb.create_task(uuid4(), "reindex", cadence=60.0).id)
    opened = Page(browser, served, viewport={"width": width, "height": 844}, color_scheme=scheme)
    found = []
    with LeaseManager(served.lab.db, "demo") as locks, locks.acquire("nightly/report", meta={"why": "a test"}):
        for path in PAGES:
            shown = opened.go(path.format(**ids))
            shown.locator("main h1").first.wait_for(state="attached", timeout=PATIENCE_MS)
            shown.locator("#live.on").wait_for()
            if path == "/":
                shown.locator(".attention li").first.wait_for()
                shown.locator(".tile.failed").wait_for()
            if path == "/heap":
                shown.locator("#lagging li").first.wait_for()  # nobody starts the task
            shown.evaluate(axe_core.AXE_SCRIPT)
            for one in shown.evaluate(RUN):
                found += [
                    f"{path}: {one['id']}: {node['html'][:160]} {node['failureSummary']}" for node in one["nodes"]
                ]
    opened.close()
    assert not found, "\n".join(found)
