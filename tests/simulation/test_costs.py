"""What calls wait for, and what idle services ask: as the docs say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "futures-worker" / "performance.md"


@pytest.fixture(scope="module")
def costs() -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "simulation.costs"],
        env=os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


def documented(heading: str) -> dict[str, int]:
    """A table of the page whose second column has this heading."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(f"| | {heading} |") :].split("\n\n")[0]
    return {name: int(number) for name, number in re.findall(r"^\| (\w.*?) \| (\d+) \|$", table, re.MULTILINE)}


def test_each_call_waits_for_no_more_messages_than_the_docs_say(costs: Any) -> None:
    said = documented("messages")
    assert costs["waits"].keys() == said.keys()
    for name, number in costs["waits"].items():
        assert 0.6 * said[name] <= number <= said[name], f"{name}: {number}, and the docs say {said[name]}"


def test_idle_services_ask_no_more_than_the_docs_say(costs: Any) -> None:
    said = documented("transactions a minute")
    asked: dict[str, list[float]] = {}
    for name, counts in costs["idle"].items():
        asked.setdefault(name.split("-")[0], []).append(counts["transactions"])
    first, *others = sorted(asked["worker"], reverse=True)
    found = {
        "the first worker: the clock, timers, who lives": first,
        "each further worker": max(others),
        "a janitor": asked["janitor"][0],
        "a scheduler, a tender": max(*asked["scheduler"], *asked["tender"]),
        "the holder of a lease": asked["holder"][0],
        "a client that doesn't wait": asked["client"][0],
    }
    assert found.keys() == said.keys()
    for name, number in found.items():
        assert 0.9 * said[name] <= number <= 1.1 * said[name], f"{name}: {number}, and the docs say {said[name]}"
