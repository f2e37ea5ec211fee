"""What the tests beside it share: two sessions of one database, a folder of marks, and the modules of support/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lease_locks import LeaseManager

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture
def locks(any_db: Any) -> Iterator[LeaseManager]:
    with LeaseManager(any_db, cluster="demo") as manager:
        yield manager


@pytest.fixture
def other(any_db: Any) -> Iterator[LeaseManager]:
    """A second session, as another process would have."""
    with LeaseManager(any_db, cluster="demo") as manager:
        yield manager


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder in which every execution of a function leaves a file."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder
