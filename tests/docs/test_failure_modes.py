"""The page on failures names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "futures-worker" / "failure-modes.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    defined: set[str] = set()
    for folder in ("packages/fdb-schema/tests", "packages/fdb-datamodel/tests", "packages/futures-worker/tests"):
        for path in (ROOT / folder).rglob("test_*.py"):
            defined |= set(re.findall(r"^def (test_\w+)", path.read_text(), flags=re.MULTILINE))
    assert len(named) > 30
    assert named - defined == set()
