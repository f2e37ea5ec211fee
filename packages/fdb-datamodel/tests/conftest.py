"""Fixtures of the data model's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from datamodel_lab.lab import Lab


@pytest.fixture
def lab(any_db: Any) -> Iterator[Lab]:
    """An empty cluster, once per engine; at the end of the test every invariant holds."""
    found = Lab(any_db)
    yield found
    assert found.validate() == []


@pytest.fixture
def memory_lab() -> Iterator[Lab]:
    """The same in memory only."""
    found = Lab()
    yield found
    assert found.validate() == []


@pytest.fixture
def broken_lab() -> Lab:
    """An empty cluster in memory that the test will break."""
    return Lab()
