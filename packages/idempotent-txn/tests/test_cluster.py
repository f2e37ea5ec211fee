"""On a cluster, with the faults that FoundationDB's own client injects: each effect exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("buggify_worker.py")
CALLS = 300


@pytest.mark.parametrize("strategy", ["native", "native-explicit", "lanes", "ids"])
def test_each_effect_exactly_once_under_the_clients_own_faults(shared_url: str, shared_db: Any, strategy: str) -> None:
    if not shared_url.startswith("fdb:"):
        pytest.skip("these are the faults of FoundationDB's client; the embedded engine has its own")
    # Network options come before the first database of a process, so the faults have a process of their own.
    done = subprocess.run(
        [sys.executable, str(WORKER), shared_url, strategy, str(CALLS)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    effects = Counter(int(row.key.split(b"/")[1]) for row in shared_db.get_range(b"effect/", b"effect0"))
    in_doubt = set(report["fatal"])
    print(f"{report['attempts']} attempts at {CALLS} calls, {len(in_doubt)} of them refused as undecidable")
    assert set(effects.values()) == {1}
    assert set(range(CALLS)) - in_doubt <= set(effects)
    assert report["attempts"] > CALLS, "no fault was injected"
    assert int.from_bytes(shared_db[b"added"], "little") == len(effects)
