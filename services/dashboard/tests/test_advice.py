"""What a person needs to go on: what to do about a future, ids that commands take, users' leases first."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from browsing import PATIENCE_MS, Page, Served

import fdb_datamodel as dm
from fdb_datamodel import FutureState, Requirements
from lease_locks import LeaseManager
from mainspring_dashboard import Cluster
from mainspring_dashboard.sampling.functions import Paces

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")


def test_a_future_that_nobody_will_run_comes_with_what_to_do(cluster: Cluster, lab: Any) -> None:
    big, small = lab.submit(requirements=Requirements(gpu=8)), lab.submit()
    found = cluster.future(UUID(bytes=big))
    assert found is not None
    cancel = f"`futures-worker cancel {UUID(bytes=big)} --db {lab.url} --cluster demo`"
    assert found["do"] == f"start a worker that large, or cancel it: {cancel}"
    other = cluster.future(UUID(bytes=small))
    assert other is not None and other["do"] is None


def test_users_leases_come_before_those_of_services(cluster: Cluster, lab: Any) -> None:
    with LeaseManager(lab.db, "demo") as locks:
        for name in ("duty/garbage", "nightly/report", "memo/x", "another"):
            locks.acquire(name)
        found, _ = cluster.leases("", None, 200)
    assert [(one["name"], one["service"]) for one in found] == [
        ("another", False), ("nightly/report", False), ("duty/garbage", True), ("memo/x", True),
    ]  # fmt: skip


def test_a_function_that_only_fails_has_a_median_too(lab: Any) -> None:
    lab.fail(lab.submit(name="load"), "no")
    ((one,), _) = lab(dm.census_page)
    assert one.started_us, "it ran"
    paces = Paces()
    paces.note([one._replace(ended_us=one.started_us + 2_000_000)], {"load": one})
    (row,) = paces.rows({("load", FutureState.failed): 1}, {"load": one}, 0.0)
    assert (row["median"], row["slowest"]) == (2.0, 2.0)


def test_what_is_shown_of_an_id_is_how_it_begins(page: Page, served: Served) -> None:
    big = str(UUID(bytes=served.lab.submit(name="train", requirements=Requirements(gpu=8))))
    shown = page.go("/futures")
    link = shown.locator("tbody tr a.mono").first
    sync_api.expect(link).to_have_text(big[:18], timeout=PATIENCE_MS)
    link.click()
    sync_api.expect(shown.locator("p.do code")).to_contain_text(f"futures-worker cancel {big}", timeout=PATIENCE_MS)
