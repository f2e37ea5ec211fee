"""Every service is a program of its own that explains itself, and the same under `mainspring`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.upping import mainspring

SERVICES = ["worker", "tender", "scheduler", "janitor", "dashboard"]


def program(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_explains_itself(name: str) -> None:
    text = program(f"mainspring_{name}", "--help")
    assert "SIGTERM" in text or "interrupted" in text
    for option in ("--db", "--cluster", "--config", "--log-format", "--version", "--show-completion"):
        assert option in text
    assert program(f"mainspring_{name}", "--version").startswith(f"mainspring-{name} ")


@pytest.mark.parametrize("name", SERVICES)
def test_mainspring_has_the_same_service(name: str) -> None:
    own = {line.split()[0] for line in program(f"mainspring_{name}", "--help").splitlines() if line.startswith("  --")}
    here = {line.split()[0] for line in program("mainspring", name, "--help").splitlines() if line.startswith("  --")}
    assert own - here == {"--version", "--install-completion", "--show-completion"}
    assert here <= own


@pytest.mark.parametrize("name", ["top", "logs"])
def test_what_is_looked_for_first_is_found_at_the_top(name: str) -> None:
    options = [
        [
            line.split()[0]
            for line in program("mainspring", *where, name, "--help").splitlines()
            if line.startswith("  --")
        ]
        for where in ([], ["futures"])
    ]
    assert "--cluster" in options[0]
    assert options[0] == options[1]


def test_the_dashboard_without_its_package_says_what_is_missing(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['mainspring_dashboard'] = None; from mainspring.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "dashboard", "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: the dashboard isn't installed here: add the package")


def test_a_scheduler_says_what_it_can_t_run(tmp_path: Path) -> None:
    done = mainspring(tmp_path, "scheduler", "--run", "json:nothing", "--db", f"embedded:{tmp_path / 'db'}")
    assert done.returncode == 1
    assert done.stderr.strip() == "error: module json has no function 'nothing'"
    both = mainspring(tmp_path, "scheduler", "--run", "json:dumps", "--", "true")
    assert both.returncode == 2


def test_config_show_says_where_each_setting_comes_from(tmp_path: Path) -> None:
    import json

    file = tmp_path / "mainspring.toml"
    file.write_text('db = "embedded:/from/file"\n[worker]\nslots = 3\n[doctor]\nwatch = 2.5\n')
    environment = {"MAINSPRING_TENDER_POLL": "1.5", "MAINSPRING_HEAP": "s3://user:secret@host/x"}
    done = mainspring(tmp_path, "config", "show", "--config", str(file), "--json", env=environment)
    assert done.returncode == 0, done.stderr
    found = {(row["service"], row["setting"]): (row["value"], row["source"]) for row in json.loads(done.stdout)}
    assert found["worker", "slots"] == (3, "file")
    assert found["worker", "db"] == ("embedded:/from/file", "file")
    assert found["tender", "poll"] == (1.5, "environment")
    assert found["doctor", "watch"] == (2.5, "file")
    assert found["janitor", "every"] == (10.0, "default")
    assert "secret" not in done.stdout


@pytest.mark.parametrize("table", ["tender", "up", "doctor"])
def test_one_unknown_key_anywhere_stops_up(tmp_path: Path, table: str) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text(f"[{table}]\nnosuchthing = 3\n")
    done = mainspring(tmp_path, "up", "--config", str(file))
    assert done.returncode == 2
    assert f"unknown key 'nosuchthing' in [{table}]" in done.stderr
    assert not (tmp_path / ".mainspring").exists()
