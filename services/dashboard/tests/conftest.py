"""Fixtures: a cluster in memory, and the dashboard's reading of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

sys.path.append(str(Path(__file__).parent))

from browsing import Page, Served, open_browser, serve
from dashboard_lab import Lab

from mainspring_dashboard import Cluster


@pytest.fixture
def lab() -> Lab:
    return Lab(f"memory:{uuid4().hex}")


@pytest.fixture
def cluster(lab: Lab) -> Iterator[Cluster]:
    found = Cluster(lab.url, "demo")
    yield found
    found.close()


@pytest.fixture(scope="module")  # it has an event loop, that nobody else in this process may have beside it
def browser() -> Iterator[Any]:
    with open_browser() as started:
        yield started


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    lab = Lab(f"embedded:{tmp_path}/db")
    with serve(lab, lab.url) as found:
        yield found


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Page]:
    opened = Page(browser, served)
    yield opened
    opened.close()
