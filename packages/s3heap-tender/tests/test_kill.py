"""Real processes, a real S3 server, real SIGKILL: at the end every write is covered and the heap is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from s3heap_tender.demo import demonstrate


@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.timeout(280)
def test_services_killed_in_turn_lose_no_write(
    kind: str, shared_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "s3":
        # The demonstration starts a server of its own, to kill it; this tells whether one can be had.
        assert request.getfixturevalue("s3_server").endpoint_url
    seed = 7
    print(f"seed {seed}")
    report: Any = demonstrate(
        tmp_path,
        partitions=40,
        seconds=5.5,
        cadence=0.5,
        seed=seed,
        s3=kind == "s3",
        kill_every=0.8,
        drain_seconds=180,
        db=shared_url,
    )
    logs = "".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))
    assert report.problems == [], logs
    assert report.kills.keys() == {"tender", "scheduler", *(["s3"] if kind == "s3" else [])}
    assert report.runs >= 40
