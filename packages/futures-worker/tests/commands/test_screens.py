"""What people see: whole screens of a terminal of 80 columns, kept here as text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support import terminal
from support.terminal import piped

import fdb_datamodel as dm
from fdb_schema import ClusterSpace, open_database
from futures_worker.cli import main
from futures_worker.commands import acting, choosing, grouping, listing
from futures_worker.commands.choosing import ago, short_ids
from idempotent_txn import run

IDS = [bytes.fromhex(f"019ad1f23c4d7{at:03x}9{at:015x}") for at in range(6)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster with a worker, and futures of each state."""
    url = f"embedded:{tmp_path / 'db'}"
    db, space = open_database(url), ClusterSpace("demo")
    session = b"s" * 16
    run(db, dm.beat_session, space, session, 1)
    total = dm.Requirements(4, 8 << 30)
    info = dm.WorkerInfo(4, total, 512 << 20, 4711, host="node-with-a-long-name.example")
    worker = run(db, dm.register_worker, space, dm.WorkerId("10.0.0.7", 40001, b"w" * 16), info)
    names = ["resize", "resize", "train.model_of_a_long_name", "report", "publish", "resize"]
    specs = [
        dm.FutureSpec(code=b"x", name=name, id=one, session=session, max_retries=0)
        for one, name in zip(IDS, names, strict=True)
    ]
    specs[2] = dm.FutureSpec(
        code=b"x", name=names[2], id=IDS[2], session=session, requirements=dm.Requirements(16, 2 << 30, 1)
    )
    specs[4] = dm.FutureSpec(code=b"x", name=names[4], id=IDS[4], session=session, dependencies=(IDS[0],))
    run(db, dm.submit_futures, space, specs)
    for at, error in ((0, "ValueError"), (5, "ValueError")):
        claim = run(db, dm.claim_future, space, IDS[at], worker)
        text = f"no image in {at}.png"
        traceback = f'Traceback (most recent call last):\n  File "x.py", line 1, in resize\n    f()\n{error}: {text}\n'
        run(db, dm.fail_future, space, claim, dm.Failure("error", text, traceback=traceback), True)
    claim = run(db, dm.claim_future, space, IDS[3], worker)
    run(db, dm.realize_future, space, claim, b"r")
    run(db, dm.claim_future, space, IDS[1], worker)
    for module in (listing, grouping):
        monkeypatch.setattr(module, "ago", lambda seconds: "12s")
    return SimpleNamespace(url=url, where=("--db", url, "--cluster", "demo"))


def screen(*arguments: str, columns: int = 80, code: int = 0) -> str:
    """What the command shows in a terminal, without colours."""
    return terminal.screen(main, *arguments, columns=columns, code=code)


LS = """\
id                  state      name              age  took  reason
019ad1f2-3c4d-7005  failed     resize            12s  12s   error: no image in
                                                            5.png
019ad1f2-3c4d-7004  failed     publish           12s        upstream:
                                                            019ad1f2-3c4d-7000,
                                                            which failed: no
                                                            image in 0.png
019ad1f2-3c4d-7003  realized   report            12s  12s   result inline
019ad1f2-3c4d-7002  unclaimed  …_of_a_long_name  12s        unschedulable: needs
                                                            cpu=16 ram=2GiB
                                                            gpu=1, the largest
                                                            live worker has
                                                            cpu=4 ram=8GiB gpu=0
019ad1f2-3c4d-7001  claimed    resize            12s  12s   attempt 1 on worker
                                                            10.0.0.7:40001
019ad1f2-3c4d-7000  failed     resize            12s  12s   error: no image in
                                                            0.png"""

NARROW = """\
id                  state   name    age  took  reason
019ad1f2-3c4d-7005  failed  resize  12s  12s   error: no image in 5.png
019ad1f2-3c4d-7000  failed  resize  12s  12s   error: no image in 0.png"""

ERRORS = """\
count  last     name    error       id                  message
2      12s ago  resize  ValueError  019ad1f2-3c4d-7005  no image in 5.png"""

ERRORS_NARROW = """\
count  last     name    error       id
2      12s ago  resize  ValueError  019ad1f2-3c4d-7005
    no image in 5.png"""

WORKERS = """\
address         busy  cpu  ram    gpu  object store  pid   host
10.0.0.7:40001  0/4   4.0  8 GiB  0.0  512 MiB       4711  node-with-a-long-name
                                                           .example"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], LS),
        (["ls", "--name", "resi*", "--reason", "NO IMAGE"], NARROW),
        (["errors"], ERRORS),
        (["workers"], WORKERS),
    ],
)
def test_screens_of_eighty_columns(scene: Any, arguments: list[str], expected: str) -> None:
    shown = screen(*arguments, *scene.where)
    assert shown == expected
    assert max(map(len, shown.splitlines())) <= 80


def test_a_message_that_doesnt_fit_stands_under_its_row(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert screen("errors", *scene.where, columns=60) == ERRORS_NARROW
    assert "`futures-worker show ID` has the traceback" in capfd.readouterr().err


def test_what_fails_with_another_is_counted_apart(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    screen("errors", *scene.where)
    assert "1 more failed because of an argument that did" in capfd.readouterr().err
    (group,) = piped(main, capfd, "errors", *scene.where)
    assert (group["count"], group["name"], group["error"]) == (2, "resize", "ValueError")
    assert group["id"] == str(UUID(bytes=IDS[5])), "whole, for programs"


def test_what_was_cancelled_is_no_error(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    piped(main, capfd, "cancel", str(UUID(bytes=IDS[2])), *scene.where)
    screen("errors", *scene.where)
    assert "1 more was cancelled: `ls --state failed --reason cancelled` lists them" in capfd.readouterr().err
    assert [group["error"] for group in piped(main, capfd, "errors", *scene.where)] == ["ValueError"]


def test_a_program_gets_whole_ids_the_oldest_first_and_filters(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    whole = [str(UUID(bytes=one)) for one in IDS]
    assert [row["id"] for row in piped(main, capfd, "ls", *scene.where)] == whole
    assert [row["id"] for row in piped(main, capfd, "ls", "--newest", *scene.where)] == whole[::-1]
    assert [row["id"] for row in piped(main, capfd, "ls", "--name", "r*", *scene.where)] == [
        whole[at] for at in (0, 1, 3, 5)
    ]
    for name in ("model_of_a_long_name", "train.model_of_a_long_name", "model_*", "train.*"):
        assert [row["id"] for row in piped(main, capfd, "ls", "--name", name, *scene.where)] == [whole[2]]
    assert piped(main, capfd, "ls", "--name", "train", *scene.where) == []
    assert [row["id"] for row in piped(main, capfd, "ls", "--reason", "unschedulable", *scene.where)] == [whole[2]]
    assert len(piped(main, capfd, "ls", "--since", "1h", *scene.where)) == 6
    assert piped(main, capfd, "ls", "--since", "0s", *scene.where) == []
    assert "no time ago" in piped(main, capfd, "ls", "--since", "yesterday", *scene.where, code=2)
    assert piped(main, capfd, "ls", "--sort", "name", *scene.where)[0]["name"] == "publish"
    listed = piped(main, capfd, "ls", "--limit", "2", "--after", "019ad1f23c4d7001", *scene.where)
    assert [row["id"] for row in listed] == whole[2:4]


def test_a_list_that_goes_on_after_the_last_one_says_that_it_ends(
    scene: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [str(UUID(bytes=one)) for one in IDS]
    for order, last, word in (("--oldest", whole[-1], "newer"), ("--newest", whole[0], "older")):
        assert piped(main, capfd, "ls", order, "--after", last, *scene.where) == []
        monkeypatch.setattr(sys, "argv", ["futures-worker", "ls", order, "--after", last, *scene.where])
        with pytest.raises(SystemExit):
            main()
        said = "".join(capfd.readouterr())
        assert f"no futures {word} than {last}" in said
        assert "it has" not in said, "of other clusters, as if this one were empty"


def test_the_beginning_of_an_id_is_enough_where_it_names_one(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("019ad1f2-3c4d-7003", "019AD1F23C4D7003", str(UUID(bytes=IDS[3]))):
        assert piped(main, capfd, "show", text, *scene.where)["name"] == "report"
    assert "several futures" in piped(main, capfd, "show", "019ad1f2", *scene.where, code=2)
    assert "no future" in piped(main, capfd, "show", "019ad1f3", *scene.where, code=3)
    for text in ("019", "resize", "019ad1f2-3c4d-7003-9000-000000000003-0"):
        assert "is no id" in piped(main, capfd, "show", text, *scene.where, code=2)
    assert "is no id" in piped(main, capfd, "show", "zzzz", "--db", "embedded:/nowhere/at/all", code=2), (
        "before it looks"
    )


def test_retry_and_cancel_take_what_is_alike(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    resized = [str(UUID(bytes=IDS[at])) for at in (0, 5)]
    would = piped(main, capfd, "retry", "--name", "resize", "--dry-run", *scene.where)
    assert [row["id"] for row in would] == resized
    assert {row["state"] for row in piped(main, capfd, "ls", "--name", "resize", *scene.where)} == {"failed", "claimed"}
    done = piped(main, capfd, "retry", "--name", "resize", *scene.where)
    assert [(row["id"], row["retried"]) for row in done] == [(one, True) for one in resized]
    gone = piped(main, capfd, "cancel", "--reason", "unschedulable", *scene.where)
    assert [(row["id"], row["cancelled"]) for row in gone] == [(str(UUID(bytes=IDS[2])), True)]
    assert piped(main, capfd, "cancel", "--name", "no.such", *scene.where) == []
    assert "give either ids" in piped(main, capfd, "cancel", *scene.where, code=2)
    assert "give either ids" in piped(main, capfd, "retry", resized[0], "--name", "x", *scene.where, code=2)


@pytest.mark.parametrize(("command", "done", "other"), [("cancel", "cancelled", 1), ("retry", "retried", 0)])
def test_a_future_that_is_deleted_meanwhile_holds_up_no_other(
    scene: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    done: str,
    other: int,
) -> None:
    db, space = open_database(scene.url), ClusterSpace("demo")
    chosen = [run(db, dm.describe_future, space, IDS[at]) for at in (5, other)]
    monkeypatch.setattr(acting, "walk", lambda *_: chosen)
    run(db, dm.delete_future, space, IDS[5])
    argv = ["futures-worker", command, "--name", "resize", "--json", *scene.where]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert end.value.code == 1
    assert "1 of 2 futures not" in err
    gone, acted = json.loads(out)
    assert gone == {"id": str(UUID(bytes=IDS[5])), "state": "deleted", done: False}
    assert (acted["id"], acted[done]) == (str(UUID(bytes=IDS[other])), True)


def test_the_beginning_of_an_id_means_none_that_was_deleted(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    db, space = open_database(scene.url), ClusterSpace("demo")
    for one in (IDS[0], IDS[1], IDS[2], IDS[4], IDS[5]):
        run(db, dm.delete_future, space, one)
    assert piped(main, capfd, "show", "019ad1f2", *scene.where)["name"] == "report"
    run(db, dm.delete_future, space, IDS[3])
    assert "deleted" in piped(main, capfd, "show", "019ad1f2", *scene.where, code=3)


def test_times_are_told_in_one_unit() -> None:
    told = [ago(seconds) for seconds in (-1, 0.0004, 0.25, 3.14, 59, 119, 121, 3_000, 7_300, 100_000, 1e6)]
    assert told == ["0ms", "0ms", "250ms", "3.1s", "59s", "119s", "2.0m", "50m", "2.0h", "28h", "12d"]


def test_ids_are_as_long_as_tells_them_apart() -> None:
    ids = [str(UUID(bytes=one)) for one in IDS]
    alike = ids[0][:-1] + "7"
    assert set(short_ids(ids).values()) == {one[:18] for one in ids}
    assert short_ids([ids[0], alike]) == {ids[0]: ids[0], alike: alike}
    assert short_ids([]) == {}


TOP = """\
cluster demo: 0 waiting, 1 unclaimed, 1 claimed, 1 realized, 3 failed
see `futures-worker ls --state unclaimed`, `futures-worker errors`
address         busy  cpu  ram    gpu  object store  pid   host
10.0.0.7:40001  0/4   4.0  8 GiB  0.0  512 MiB       4711  node-with-a-long-name
                                                           .example"""


def test_top_fits_eighty_columns_too(scene: Any) -> None:
    assert screen("top", "--once", *scene.where) == TOP


def test_nothing_is_said_twice() -> None:
    one = "019ad1f2-3c4d-7005-9000-000000000005"
    assert [choosing.said_once(text, one) for text in (
        "error: ValueError: no image", "attempt 2 failed: error: my.Error: x", "error: no image in 5.png",
        f"cancelled: future {one} was cancelled", f"worker-lost: worker w died while it ran future {one}",
        f"actor-died: call {one} of actor a is lost: w",
    )] == [
        "ValueError: no image", "attempt 2 failed: my.Error: x", "error: no image in 5.png",
        "cancelled: this future was cancelled", "worker-lost: worker w died while it ran this future",
        "actor-died: this call of actor a is lost: w",
    ]  # fmt: skip


def test_a_page_says_the_error_and_the_id_once(scene: Any) -> None:
    db, space = open_database(scene.url), ClusterSpace("demo")
    run(db, dm.cancel_future, space, IDS[2])
    shown = screen("show", "019ad1f2-3c4d-7002", *scene.where)
    assert shown.count(str(UUID(bytes=IDS[2]))) == 1
    assert "this future was cancelled" in shown
    assert "this future was cancelled" in screen("ls", "--name", "*long*", *scene.where, columns=160)


def test_attempts_are_listed_where_one_was_not_enough(scene: Any) -> None:
    assert "attempts" not in screen("ls", *scene.where)
    db, space = open_database(scene.url), ClusterSpace("demo")
    worker = dm.WorkerId("10.0.0.7", 40001, b"w" * 16)
    again = bytes.fromhex("019ad1f23c4d70099000000000000009")
    spec = dm.FutureSpec(
        code=b"x", name="again", id=again, session=b"s" * 16, max_retries=3, backoff=dm.Backoff(0.0, 1.0, 0.0)
    )
    run(db, dm.submit_futures, space, [spec])
    claim = run(db, dm.claim_future, space, again, worker)
    run(db, dm.fail_future, space, claim, dm.Failure("crash", "it died"), False)
    second = run(db, dm.claim_future, space, again, worker)
    heading, *rows = screen("ls", "--name", "again", *scene.where).splitlines()
    assert "not charged" not in screen("show", "019ad1f2-3c4d-7009", *scene.where)
    assert heading.split() == ["id", "state", "name", "age", "took", "attempts", "reason"]
    assert rows[0].split()[5] == "2"
    run(db, dm.relinquish_claim, space, second)
    run(db, dm.claim_future, space, again, worker)
    run(db, dm.cancel_future, space, again)
    assert re.search(r"attempts  3  \(1 of them not charged", screen("show", "019ad1f2-3c4d-7009", *scene.where))


def test_a_trace_is_not_poured_into_a_terminal(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert screen("timeline", *scene.where, code=2) == ""
    assert "`-o trace.json`" in capfd.readouterr().err


def test_a_future_is_watched_until_it_has_ended(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    row = piped(main, capfd, "watch", "019ad1f2-3c4d-7003", *scene.where)
    assert (row["id"], row["state"]) == (str(UUID(bytes=IDS[3])), "realized")
    assert piped(main, capfd, "watch", "019ad1f2-3c4d-7001", "--for", "0.1", *scene.where)["state"] == "claimed"
    assert "no future" in piped(main, capfd, "watch", "019ad1f3", *scene.where, code=3)


def test_listings_end_where_they_are_told(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(piped(main, capfd, "errors", "--limit", "1", *scene.where)) == 1
    assert len(piped(main, capfd, "workers", "--limit", "1", *scene.where)) == 1


def test_some_of_those_that_are_alike_are_chosen(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("retry", "--name", "*", "--dry-run", "--limit", "1", "--sort", "name", *scene.where)
    assert [row["name"] for row in piped(main, capfd, *asked)] == ["publish"]
    assert len(piped(main, capfd, "cancel", "--name", "*", "--limit", "1", *scene.where)) == 1


def test_retire_says_what_it_would_do_and_does_nothing(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        piped(main, capfd, "secret", "rotate", *scene.where)
    before = piped(main, capfd, "secret", "show", *scene.where)
    assert piped(main, capfd, "secret", "retire", "--dry-run", *scene.where) == before
    assert piped(main, capfd, "secret", "show", *scene.where) == before
    assert len(piped(main, capfd, "secret", "retire", *scene.where)["secrets"]) == 1


def test_moments_are_rfc_3339_and_figures_are_numbers(scene: Any, capfd: pytest.CaptureFixture[str]) -> None:
    row = piped(main, capfd, "show", "019ad1f2-3c4d-7003", *scene.where)
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert all(re.fullmatch(moment, row[name]) for name in ("submitted", "claimed", "ended"))
    assert isinstance(row["seconds"], float)


def test_ids_are_completed(scene: Any) -> None:
    found = list(choosing._complete(scene.url, "demo", "019AD1F2-3c4d-7003"))
    assert found == [str(UUID(bytes=IDS[3]))]
    assert len(list(choosing._complete(scene.url, "demo", ""))) == 6
