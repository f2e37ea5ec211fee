"""What people see of tasks and heap: whole screens of a terminal of 80 columns, kept here as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.terminal import coloured, piped, screen

from fdb_schema import open_database
from s3heap_tender import SysDb
from s3heap_tender.cli import common, main
from s3heap_tender.cli.moments import Moments

IDS = [UUID(f"{at}f2a3c4d-0000-4000-8000-00000000000{at}") for at in range(4)]
NAMES = ("index", "report-of-every-night-and-day", "thumbnails", "broken")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Tasks of each state: scheduled, paused, waiting (its only run is done) and dead."""
    url = f"embedded:{tmp_path / 'db'}"
    where = ("--db", url, "--cluster", "demo")
    with SysDb(open_database(url), "demo") as sysdb:
        for id, name in zip(IDS, NAMES, strict=True):
            sysdb.create_task("orders", name, 60.0, id=id, max_attempts=1)
        sysdb.pause(IDS[1])
        sysdb.tick()
        sysdb.finish(sysdb.claim(sysdb.get(IDS[2])))
        sysdb.fail(sysdb.claim(sysdb.get(IDS[3])), "ValueError: no image in 5.png")
        monkeypatch.setattr(common, "ago", lambda seconds: "1.0m")
        # What is due now is so within two ticks of the clock.
        monkeypatch.setattr(Moments, "brief", staticmethod(lambda seconds: "12s ago" if seconds < 1 else "in 12s"))
        yield SimpleNamespace(where=where, heap=(*where, "--store", f"file:{tmp_path / 'heap'}"), sysdb=sysdb)


LS = """\
id        state      due      gen  name                  last error
0f2a3c4d  scheduled  12s ago  1    orders/index
1f2a3c4d  paused     12s ago  1    …every-night-and-day
2f2a3c4d  waiting             1    orders/thumbnails
3f2a3c4d  dead                1    orders/broken         ValueError: no image in
                                                         5.png"""

NEXT = """\
due      id        gen  cadence  name
12s ago  0f2a3c4d  1    1.0m     orders/index"""

DLQ = """\
task      gen  failures  died     name    error
3f2a3c4d  1    1         12s ago  broken  ValueError: no image in 5.png"""


@pytest.mark.parametrize(("arguments", "expected"), [(["ls"], LS), (["next"], NEXT), (["dlq"], DLQ)])
def test_screens_of_eighty_columns(scene: Any, arguments: list[str], expected: str) -> None:
    shown = screen(main, *arguments, *scene.where)
    assert shown == expected
    assert max(map(len, shown.splitlines())) <= 80


def test_a_state_is_in_colour(scene: Any) -> None:
    lines = coloured(main, "ls", *scene.where).splitlines()
    assert [("\x1b[33mscheduled" in line, "\x1b[1;31mdead" in line) for line in lines if "f2a3c4d" in line] == [
        (True, False), (False, False), (False, False), (False, True),
    ]  # fmt: skip


def test_the_old_verbs_say_the_same(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    ids = [row["id"] for row in piped(main, capfd, "ls", *scene.where)]
    assert ids == [row["id"] for row in piped(main, capfd, "tasks", *scene.where)] == [str(id) for id in IDS]
    shown = [piped(main, capfd, verb, "orders/index", *scene.where) for verb in ("show", "describe")]
    assert [row["id"] for row in shown] == [str(IDS[0])] * 2


def test_tasks_are_chosen_by_what_they_are_like(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def names(*options: str) -> list[str]:
        return [row["name"] for row in piped(main, capfd, "ls", *options, *scene.where)]

    assert names("--state", "waiting") == ["thumbnails"]
    assert names("--name", "*e*") == ["index", NAMES[1], "broken"]
    assert names("--reason", "NO IMAGE") == ["broken"]
    assert names("--since", "1h") == ["thumbnails", "broken"]
    assert names("--sort", "name", "--limit", "2") == ["broken", "index"]
    assert "no time ago" in piped(main, capfd, "ls", "--since", "lately", *scene.where, code=2)
    assert [row["name"] for row in piped(main, capfd, "dlq", "--name", "brok*", "--limit", "1", *scene.where)] == [
        "broken"
    ]
    assert piped(main, capfd, "dlq", "--reason", "other", *scene.where) == []


def test_the_beginning_of_an_id_is_enough_where_it_names_one(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert piped(main, capfd, "show", "2f2a", *scene.where)["name"] == "thumbnails"
    assert "no task" in piped(main, capfd, "show", "9999", *scene.where, code=3)
    scene.sysdb.create_task("orders", "other", 60.0, id=UUID("2f2a3c4d-0000-4000-8000-0000000000ff"))
    assert "several tasks" in piped(main, capfd, "show", "2f2a", *scene.where, code=2)


def test_delete_says_what_it_would_do_and_does_nothing(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    (would,) = piped(main, capfd, "delete", "orders/index", "--dry-run", *scene.where)
    assert (would["task"], would["deleted"]) == (str(IDS[0]), False)
    assert piped(main, capfd, "show", "orders/index", *scene.where)["state"] == "scheduled"
    assert piped(main, capfd, "delete", "orders/index", *scene.where)["deleted"] is True


def test_no_page_shows_what_only_python_writes(scene: Any) -> None:
    pages = [
        screen(main, "show", "orders/broken", *scene.where),
        screen(main, "summary", *scene.heap),
        screen(main, "fsck", *scene.heap),
    ]
    for page in pages:
        assert not any(form in page for form in ("None", "True", "False", "{", "[", "()"))
        assert max(len(line) for line in page.splitlines() if not line.startswith("→")) <= 80
    assert "initial 1, factor 2" in pages[0]
    assert "to push: runs to be put on the heap" in pages[1]


def test_watch_prints_a_state_once_and_ends_when_it_was_told(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    row = piped(main, capfd, "watch", "orders/broken", "--for", "0.6", *scene.where)
    assert (row["id"], row["dead"]) == (str(IDS[3]), True)


def test_names_and_ids_are_completed(scene: Any) -> None:
    db = scene.where[1]
    assert sorted(common._complete(db, "demo", "orders/t")) == ["orders/thumbnails"]
    assert list(common._complete(db, "demo", "2f2")) == [str(IDS[2])]
    assert f"orders/{NAMES[0]}" in common._complete(db, "demo", "")
