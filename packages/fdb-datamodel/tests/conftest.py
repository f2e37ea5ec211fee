"""Fixtures of the data model's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from datamodel_lab.lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty cluster; at the end of the test every invariant holds."""
    found = Lab()
    yield found
    assert found.validate() == []


@pytest.fixture
def broken_lab() -> Lab:
    """An empty cluster that the test will break."""
    return Lab()
