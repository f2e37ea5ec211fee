"""The cookbook's recipes that aren't programs by themselves: its tests are run by pytest, its crontab line by a shell.

What is a program runs in test_code_blocks.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lease_locks import LeaseManager

COOKBOOK = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
TESTS = [code for code in re.findall(r"```python\n(.*?)```", COOKBOOK, re.DOTALL) if "import pytest" in code]


def test_there_are_recipes_for_tests() -> None:
    assert len(TESTS) == 2


@pytest.mark.parametrize("code", TESTS, ids=["transactions", "futures"])
def test_a_recipe_for_tests_passes(tmp_path: Path, code: str) -> None:
    (tmp_path / "test_recipe.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_crontab_line_runs_on_one_machine_and_the_others_leave_with_75(tmp_path: Path) -> None:
    (line,) = re.findall(r"^0 3 \* \* \*  lease-locks (.+)$", COOKBOOK, re.MULTILINE)
    (tmp_path / "report").write_text("#!/bin/sh\necho reported\n")
    (tmp_path / "report").chmod(0o755)
    url = f"embedded:{tmp_path / 'db'}"
    assert "--db fdb:/etc/foundationdb/fdb.cluster " in line
    line = line.replace("fdb:/etc/foundationdb/fdb.cluster", shlex.quote(url))

    def cron() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lease_locks", *shlex.split(line)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    with LeaseManager(url) as locks, locks.lock("nightly-report", timeout=30):
        assert cron().returncode == 75
    done = cron()
    assert (done.returncode, done.stdout) == (0, "reported\n")
