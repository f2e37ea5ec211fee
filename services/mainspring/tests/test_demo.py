"""The main job: right whatever worker dies whenever, and its verdict is worth something."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.demo.sources import Outcome, analyse

STDLIB = Path(sysconfig.get_paths()["stdlib"])
RUNS = int(os.environ.get("MAINSPRING_DEMO_RUNS", "20"))


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Outcome]:
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RUNS))
def test_the_answer_is_right_after_a_kill_at_a_random_moment(seed: int) -> None:
    outcome = analyse(STDLIB / "email", workers=2, slots=1, seed=seed)
    assert outcome.violations == ()
    assert outcome.report == outcome.expected
    assert outcome.right
    assert outcome.killed_after is not None
    assert outcome.workers == 3, "another took the place of the killed one"
    assert outcome.tally.attempts >= outcome.tally.futures


def test_without_a_kill_every_future_takes_one_attempt() -> None:
    outcome = analyse(STDLIB / "json", workers=2, slots=2, kill=False)
    assert outcome.right
    assert outcome.tally.attempts == outcome.tally.futures == outcome.report.files + 1
    assert (outcome.tally.restarted, outcome.tally.reconstructed) == (0, 0)
    wrong = replace(outcome, expected=replace(outcome.expected, lines=1))
    assert not wrong.right


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_command_prints_the_ranking_and_the_verdict() -> None:
    done = command("--files", str(STDLIB / "asyncio"), "--seed", "3", "--top", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The 3 most complex functions" in done.stdout
    assert "SIGKILL" in done.stdout
    assert "takes its place" in done.stdout
    assert "times as fast" in done.stdout
    assert "survived: " in done.stdout
    said = done.stdout[done.stdout.index("right: ") :]
    assert "Next, " in said
    assert "mainspring up" in said


@pytest.mark.parametrize(("folder", "says"), [("missing", "is not a folder"), ("empty", "no Python file below")])
def test_a_folder_with_nothing_to_analyse_is_a_usage_error(tmp_path: Path, folder: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    done = command("--files", str(tmp_path / folder))
    assert done.returncode == 2
    assert says in done.stderr
