"""What people see of leases: whole screens of a terminal of 80 columns, kept here as text; and what programs get."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.terminal import coloured, piped, screen

from lease_locks import LeaseManager
from lease_locks.cli import doctor, leases, main

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two leases of users, one of them waited for by nobody, and two of services."""
    url = f"embedded:{tmp_path / 'db'}"
    where = ("--db", url, "--cluster", "demo")
    with LeaseManager(url, cluster="demo") as locks:
        held = [locks.acquire(name) for name in ("duty/ids", "nightly/report", "s3heap/tender/0", "build")]
        monkeypatch.setattr(leases, "ago", lambda seconds: "12s")
        monkeypatch.setattr(leases, "cut", lambda text, most=16: "a-host:4711")
        yield SimpleNamespace(where=where, locks=locks, held=held)


LS = """\
name             holder       mode       ttl  held for  renewed  waiting
build            a-host:4711  exclusive  12s  12s       12s      0
nightly/report   a-host:4711  exclusive  12s  12s       12s      0
s3heap/tender/0  a-host:4711  exclusive  12s  12s       12s      0
duty/ids         a-host:4711  exclusive  12s  12s       12s      0"""


def test_users_leases_come_first_in_eighty_columns(scene: Any) -> None:
    assert screen(main, "ls", *scene.where) == LS


def test_every_screen_fits_and_no_word_of_a_heading_breaks(scene: Any) -> None:
    for arguments in (["ls"], ["sessions"], ["history", "build"]):
        shown = screen(main, *arguments, *scene.where).splitlines()
        assert max(map(len, shown)) <= 80, shown
        assert len(shown) >= 2, shown
    assert "\x1b[32macquired" in coloured(main, "history", "build", *scene.where)


def test_programs_get_names_in_order_moments_and_numbers(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rows = piped(main, capfd, "ls", *scene.where)
    assert [row["name"] for row in rows] == ["build", "duty/ids", "nightly/report", "s3heap/tender/0"]
    row = rows[0]
    assert all(MOMENT.fullmatch(moment) for moment in (row["acquired_at"], row["maintainers"][0]["updated_at"]))
    assert (row["ttl"], type(row["held_for"]), type(row["renewed"])) == (15.0, float, float)
    (event,) = piped(main, capfd, "history", "build", *scene.where)
    assert MOMENT.fullmatch(event["at"])
    session = piped(main, capfd, "sessions", *scene.where)[0]
    assert MOMENT.fullmatch(session["started_at"])
    assert isinstance(session["renewed"], float)


def test_leases_are_chosen_by_prefix_age_and_number(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def names(*options: str) -> list[str]:
        return [row["name"] for row in piped(main, capfd, "ls", *options, *scene.where)]

    assert names("--prefix", "nightly/") == names("nightly/") == ["nightly/report"]
    assert names("--sort", "age", "--limit", "2") == ["build", "s3heap/tender/0"]
    assert names("--since", "1h") == names("--sort", "name")
    assert names("--since", "0s") == []
    assert "once" in piped(main, capfd, "ls", "a", "--prefix", "b", *scene.where, code=2)
    scene.held[3].release()
    assert [event["kind"] for event in piped(main, capfd, "history", "build", "--limit", "1", *scene.where)] == [
        "released"
    ]


def test_force_release_says_what_it_would_do_and_does_nothing(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("force-release", "build", "--reason", "test")
    (would,) = piped(main, capfd, *asked, "--dry-run", *scene.where)
    assert would == {"name": "build", "token": scene.held[3].token.hex, "released": False}
    assert scene.held[3].held
    assert "nobody holds" in piped(
        main, capfd, "force-release", "none", "--reason", "x", "--dry-run", *scene.where, code=3
    )
    assert piped(main, capfd, *asked, *scene.where) == [would | {"released": True}]


def test_many_dead_sessions_are_one_finding() -> None:
    def dead(at: int) -> dict[str, Any]:
        return {"what": f"session {at} is dead", "do": "lease-locks doctor --clean", "cleanable": True}

    lease = {"what": "lease 'a' is dead", "do": "nothing", "cleanable": False}
    assert len(list(doctor._grouped([dead(at) for at in range(3)], False))) == 3
    told = list(doctor._grouped([*[dead(at) for at in range(40)], lease], True))
    assert told == [
        ("session 0 is dead", "cleaned"),
        ("39 more sessions are dead: `lease-locks sessions` lists them", "cleaned"),
        ("lease 'a' is dead", "nothing"),
    ]


def test_names_are_completed(scene: Any) -> None:
    assert list(leases._complete(scene.where[1], "demo", "n")) == ["nightly/report"]
