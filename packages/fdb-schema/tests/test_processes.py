"""What a process imports: nothing from a directory that others may write to, and never before what is installed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from fdb_schema.serving.processes import import_from_here, signal_name


@pytest.mark.parametrize(
    ("mode", "taken"), [(0o700, True), (0o755, True), (0o775, True), (0o777, False), (0o1777, False)]
)
def test_the_working_directory_is_searched_last_and_only_if_it_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: int, taken: bool
) -> None:
    monkeypatch.setattr(sys, "path", ["/first"])
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(mode)
    os.chown(tmp_path, -1, os.getegid())
    assert import_from_here() is taken
    assert import_from_here() is taken
    assert sys.path == (["/first", str(tmp_path)] if taken else ["/first"])
    assert ("others may write" in caplog.text) is not taken


def test_every_signal_has_a_name() -> None:
    names = [signal_name(number) for number in range(1, signal.NSIG)]
    assert len(set(names)) == signal.NSIG - 1
    assert [names[number - 1] for number in (9, 35, 63, 64)] == ["SIGKILL", "SIGRTMIN+1", "SIGRTMIN+29", "SIGRTMAX"]
