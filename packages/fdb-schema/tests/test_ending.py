"""A service that was told to end and whose database is silent."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from fdb_schema import open_database
from fdb_schema.serving import ending

SILENT = """
import logging, threading
from fdb_schema.serving.ending import end_though_silent

class Silent:
    def create_transaction(self):
        raise OSError("timed out")

logging.basicConfig()
stop = threading.Event()
end_though_silent(stop, Silent(), lambda: 0.1)
stop.set()
threading.Event().wait(60)
"""


def test_a_service_whose_database_is_silent_ends_and_says_why() -> None:
    ended = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4, ended.stderr
    assert "the database has given no answer" in ended.stderr
    assert "others will find it gone" in ended.stderr


def test_one_whose_database_answers_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, looked = threading.Event(), 0
    monkeypatch.setattr(ending, "_LOOK_SECONDS", 0.001)
    answers = ending._answers

    def counted(database: Any) -> bool:
        nonlocal looked
        looked += 1
        if looked > 3:
            asked.set()
        return answers(database)

    monkeypatch.setattr(ending, "_answers", counted)
    stop = threading.Event()
    over = ending.end_though_silent(stop, open_database("memory:"), lambda: 0.0)
    stop.set()
    assert asked.wait(60)
    over.set()
