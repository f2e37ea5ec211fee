"""The gauge of memory, against files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from futures_worker.worker.running.memory import MemoryGauge, resident_bytes


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MACHINE = {"proc/meminfo": "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    250 kB\n"}


def test_without_a_control_group_the_machine_counts(tmp_path: Path) -> None:
    write(tmp_path, MACHINE)
    gauge = MemoryGauge(tmp_path)
    assert gauge.used_fraction() == pytest.approx(0.75)
    assert gauge.kills() == 0


def test_the_tighter_limit_counts_and_what_can_be_dropped_does_not(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/box"
    write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "1:name=x:/other\n0::/box\n",
            f"{group}/memory.events": "low 0\noom 3\noom_kill 2\n",
            f"{group}/memory.max": "1000\n",
            f"{group}/memory.current": "960\n",
            f"{group}/memory.stat": "anon 1\ninactive_file 60\n",
        },
    )
    gauge = MemoryGauge(tmp_path)
    assert gauge.used_fraction() == pytest.approx(0.9)
    assert gauge.kills() == 2


def test_a_control_group_without_a_limit_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, MACHINE | {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "999\n"})
    assert MemoryGauge(tmp_path).used_fraction() == pytest.approx(0.75)


def test_where_nothing_can_be_read_nothing_is_short(tmp_path: Path) -> None:
    assert MemoryGauge(tmp_path).used_fraction() == 0.0


def test_this_process_holds_memory_and_one_that_is_gone_none() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(1 << 30) == 0
