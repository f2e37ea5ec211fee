"""The table of statements in README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]


def test_every_statement_names_a_test_that_exists() -> None:
    rows = [line for line in (_HERE / "README.md").read_text().splitlines() if line.startswith("|") and "::" in line]
    assert len(rows) > 60
    for row in rows:
        named = re.findall(r"`((?:tests/)?[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            path = _ROOT / file if file.startswith("tests/") else _HERE / file
            assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{file} has no test {test}"
