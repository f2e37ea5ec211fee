"""The reference page is what the code says, the table of states is complete, and the README's example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fdb_datamodel as dm
from fdb_datamodel import TRANSITIONS, FutureState

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_is_made_from_the_code() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_datamodel_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "packages" / "fdb-datamodel" / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "realized []\n"


def test_every_public_name_is_documented() -> None:
    readme = (ROOT / "packages" / "fdb-datamodel" / "README.md").read_text()
    functions = {name for name in dm.__all__ if callable(getattr(dm, name)) and name[0].islower()}
    helpers = {"as_id", "id_for_key", "new_future_id", "new_future_ids", "parse_size", "is_live"}
    assert {name for name in functions - helpers if f"`{name}`" not in readme} == set()
    assert all(getattr(dm, name).__doc__ for name in functions)


def test_every_state_can_be_reached_and_left_as_the_table_says() -> None:
    states: set[FutureState | None] = set(FutureState)
    reached = {target for row in TRANSITIONS.values() for target in row.targets}
    left = {source for row in TRANSITIONS.values() for source in row.sources}
    assert states <= reached and states <= left
    assert all(row.event == event for event, row in TRANSITIONS.items())
