"""Fixtures: a cluster in memory, and the dashboard's reading of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

sys.path.append(str(Path(__file__).parent))

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
