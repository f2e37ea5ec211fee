"""docs/commands.md is true: every command is there with its kind, takes what its kind takes, and keeps to the forms of JSON."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import typer

import fdb_datamodel as dm
from fdb_datamodel.coordination.queues import make_queue
from fdb_datamodel.coordination.semaphores import make_semaphore
from fdb_datamodel.transitions.limits import set_limit
from fdb_datamodel.transitions.schedules import put_schedule
from fdb_schema import ClusterSpace, open_database
from idempotent_txn import IdempotencyId, run
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from s3heap_tender import Heap, HeapStore, SysDb

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
MODULES = {
    "futures-worker": "futures_worker.cli",
    "lease-locks": "lease_locks.cli",
    "s3heap-tender": "s3heap_tender.cli",
    "idempotent-txn": "idempotent_txn.cli",
    "fdb-embedded": "fdb_embedded.cli",
    "mainspring": "mainspring.cli",
}
SAME = {"futures": "futures-worker", "leases": "lease-locks", "heap": "s3heap-tender", "ids": "idempotent-txn"}
TAKES = {
    "listing": {"--json", "--limit"},
    "look": {"--json"},
    "watch": {"--json", "--for"},
    "change": {"--json"},
    "removal": {"--json", "--dry-run"},
    "service": set(),
    "tool": set(),
}
METAVARS = {"--db": "URL", "--cluster": "NAME", "--reason": "TEXT", "--since": "AGO", "--name": "GLOB"}
"""Options that mean one thing, and what they say that they take; `force-release --reason` is a reason that is given."""


def table() -> dict[str, tuple[str, list[str]]]:
    """Command → (kind, its older names), as the page has it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in PAGE.partition("## Every command")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in TAKES:
            for command, older in re.findall(r"`([\w -]+)`(?: \(([^)]*)\))?", cells[2]):
                assert command not in found, command
                found[command] = (cells[0], re.findall(r"[\w-]+", older))
    return found


TABLE = table()


def commands(command: Any, path: str, hidden: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """(words, command, whether it is hidden) of every command below, and of a group that does something itself."""
    below = getattr(command, "commands", None)
    if below is None or command.invoke_without_command:
        yield path, command, hidden
    for name, one in (below or {}).items():
        if not (path == "mainspring" and name in SAME):
            yield from commands(one, f"{path} {name}", one.hidden)


ALL = {
    path: (command, hidden)
    for program, module in MODULES.items()
    for path, command, hidden in commands(typer.main.get_command(importlib.import_module(module).app), program)
}


def options(command: Any) -> dict[str, Any]:
    return {option: parameter for parameter in command.params for option in parameter.opts if option.startswith("--")}


def test_every_command_is_on_the_page_and_no_other() -> None:
    older = {f"{path.rpartition(' ')[0]} {word}" for path, (_, words) in TABLE.items() for word in words}
    assert set(TABLE) | older == set(ALL)
    assert {path for path, (_, hidden) in ALL.items() if hidden} == older | {"mainspring version"}


@pytest.mark.parametrize("path", sorted(TABLE))
def test_a_command_takes_what_its_kind_takes_and_says_it_in_one_way(path: str) -> None:
    kind, older = TABLE[path]
    given = options(ALL[path][0])
    assert TAKES[kind] <= set(given)
    if kind in ("listing", "look", "watch"):
        assert "--dry-run" not in given
    for option, metavar in METAVARS.items():
        if option in given and (path, option) not in {("lease-locks force-release", "--reason")}:
            assert given[option].metavar == metavar, (path, option)
    for word in older:
        alias = ALL[f"{path.rpartition(' ')[0]} {word}"][0]
        assert options(alias).keys() == given.keys()


@pytest.mark.parametrize("path", sorted(path for path, (kind, _) in TABLE.items() if kind != "service"))
def test_help_fits_eighty_columns_and_has_no_noise(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = path.split()
    main(program, *words, "--help")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "<bool>" not in shown


def main(program: str, *words: str) -> int:
    """Run a program of ours in this process; its exit code."""
    argv, sys.argv = sys.argv, [program, *words]
    try:
        importlib.import_module(MODULES[program]).main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = argv
    return 0


FUTURES = [bytes.fromhex(f"019ad1f23c4d7{at:03x}9{at:015x}") for at in range(4)]
TASK = UUID("0f2a3c4d-0000-4000-8000-000000000000")


def doubled(x: int) -> int:
    """What the memo of the scene knows of."""
    return 2 * x


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Any]:
    """One cluster with something of everything in it."""
    url, cluster = f"embedded:{tmp_path / 'db'}", "demo"
    db, space = open_database(url), ClusterSpace(cluster)
    now_us = time.time_ns() // 1000
    run(db, dm.beat_session, space, b"s" * 16, 1)
    info = dm.WorkerInfo(4, dm.Requirements(4, 8 << 30), 512 << 20, 4711, host="a-host", wall_us=now_us)
    worker = run(db, dm.register_worker, space, dm.WorkerId("10.0.0.7", 40001, b"w" * 16), info)
    specs = [dm.FutureSpec(code=b"x", name="resize", id=one, session=b"s" * 16, max_retries=0) for one in FUTURES[:3]]
    specs.append(dm.FutureSpec(code=b"x", name="order", id=FUTURES[3], session=b"s" * 16, durable=True))
    run(db, dm.submit_futures, space, specs)
    for future in FUTURES[:2]:
        claim = run(db, dm.claim_future, space, future, worker)
        if future == FUTURES[0]:
            run(db, dm.fail_future, space, claim, dm.Failure("error", "no image", traceback="ValueError: x\n"), True)
        else:
            run(db, dm.realize_future, space, claim, b"r")
    again = dm.FutureSpec(code=b"x", name="report")
    run(db, set_limit, space, "api", 2, None)
    run(db, make_queue, space, "jobs", 10)
    run(db, make_semaphore, space, "api", 2)
    run(db, put_schedule, space, "nightly", "3600", again, nominal=3_600_000_000, due_us=3_600_000_000)
    run_program(db, space, run(db, dm.claim_future, space, FUTURES[3], worker))
    run(db, lambda tr: tr.set(b"a", b"x"), idempotency_id=IdempotencyId(b"order-17"))
    run(db, lambda tr: tr.set(b"b", b"x"), strategy="ids", idempotency_id=IdempotencyId(b"order-18"))
    store = f"file:{tmp_path / 'heap'}"
    with LeaseManager(url, cluster=cluster) as locks, SysDb(db, cluster) as sysdb, HeapStore(store) as objects:
        locks.acquire("build")
        runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="p")
        for x in (3, 4):
            runner.call(doubled, x)
        runner.flush()
        for memo, _ in runner.rows.scan(db):
            locks.acquire(memo.lock_name)  # as if they were computed again
        sysdb.create_task("orders", "index", id=TASK)
        sysdb.create_task("orders", "broken", max_attempts=1)
        sysdb.fail(sysdb.claim(sysdb.find("orders", "broken")), "no image")
        with Heap(objects, sysdb):
            pass
        where = ("--db", url, "--cluster", cluster)
        yield SimpleNamespace(db=db, url=url, where=where, store=store, tmp=tmp_path)


def run_program(db: Any, space: ClusterSpace, claim: dm.Claim) -> None:
    """What one asks for before it sleeps."""
    attempt = dm.programs.ProgramClaim(claim.id, claim.token)
    for number, request in enumerate(
        (dm.programs.Request("step", "charge", b"1"), dm.programs.Request("sleep", due_us=7))
    ):
        run(db, dm.programs.record_request, space, attempt, number, request)


def arguments(scene: Any, path: str, invocations: list[str]) -> list[str]:
    """What a command is given besides its name."""
    words = path.split()
    given = {
        "futures-worker show": [str(UUID(bytes=FUTURES[0]))],
        "futures-worker schedules delete": ["nightly"],
        "futures-worker limits set": ["api", "--concurrent", "3"],
        "futures-worker limits delete": ["api"],
        "futures-worker programs show": [str(UUID(bytes=FUTURES[3]))],
        "futures-worker logs": [str(UUID(bytes=FUTURES[1]))],
        "futures-worker stack": [str(UUID(bytes=FUTURES[0]))],
        "mainspring logs": [str(UUID(bytes=FUTURES[1]))],
        "futures-worker watch": [str(UUID(bytes=FUTURES[1]))],
        "futures-worker cancel": [str(UUID(bytes=FUTURES[2]))],
        "futures-worker retry": ["--name", "resize"],
        "lease-locks show": ["build"],
        "lease-locks history": ["build"],
        "lease-locks force-release": ["build", "--reason", "test"],
        "lease-locks inspect": invocations[:1],
        "lease-locks diff": invocations,
        "lease-locks cancel": invocations[:1],
        "lease-locks invalidate": invocations[:1],
        "lease-locks prune": ["--older-than", "0"],
        "s3heap-tender show": ["orders/index"],
        "s3heap-tender watch": ["orders/index", "--for", "0"],
        "s3heap-tender delete": ["orders/index"],
        "idempotent-txn show": ["order-17"],
        "idempotent-txn expire": ["order-17"],
        "idempotent-txn clean": ["--min-age", "0"],
        "fdb-embedded get": ["a"],
        "mainspring doctor": ["--watch", "0.5"],
    }.get(path, [])
    known = options(ALL[path][0])
    if "--db" in known:
        given = [*given, "--db", scene.url]
    if "--cluster" in known:
        given = [*given, "--cluster", "demo"]
    if words[0] == "s3heap-tender" and "--store" in known:
        given = [*given, "--store", scene.store]
    return [*words[1:], *given, "--json"]


def invocations_of(capsys: pytest.CaptureFixture[str], scene: Any) -> list[str]:
    """The addresses of the two memoized invocations."""
    assert main("lease-locks", "inspect", "memo:p", *scene.where, "--json") == 0
    return [str(row["memo_uri"]) for row in json.loads(capsys.readouterr().out)]


MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
LIKE_A_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
LIKE_A_FIGURE = re.compile(r"-?\d{1,15}(\.\d+)?( ?(s|ms|min|h|d|B|KiB|MiB|GiB|%))?")
TEXTS = {"text", "value", "left", "right", "output", "key", "batch"}
"""Fields that hold what users wrote, whatever it looks like."""
PYTHON = re.compile(r"\b(None|datetime\.|UUID\(|Decimal\(|<\w+ object)")


def wrong(value: Any, name: str = "") -> Iterator[str]:
    """What of a document breaks the forms of docs/commands.md."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from wrong(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from wrong(one, name)
    elif isinstance(value, str):
        if LIKE_A_MOMENT.match(value) and not MOMENT.fullmatch(value):
            yield f"{name}: {value} is no RFC 3339 in UTC"
        if LIKE_A_FIGURE.fullmatch(value) and name not in TEXTS:
            yield f"{name}: {value!r} is a number as text"
        if PYTHON.search(value) and name not in TEXTS:
            yield f"{name}: {value!r} is Python"
    if name.endswith("_at") and not (value is None or (isinstance(value, str) and MOMENT.fullmatch(value))):
        yield f"{name}: {value!r} is no moment"
    if name.endswith(("_in", "_seconds", "_age")) and not (value is None or isinstance(value, int | float)):
        yield f"{name}: {value!r} is no number of seconds"


NOT_RUN = {"s3heap-tender check", "mainspring config show", "lease-locks watch"}
"""A trace that isn't there, what has no cluster, and what has its own test (test_cli.py of lease-locks)."""


def test_json_keeps_to_the_forms(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    invocations = invocations_of(capsys, scene)
    for path, (kind, _) in sorted(TABLE.items()):
        if kind not in ("listing", "look", "watch") or path in NOT_RUN:
            continue
        code = main(path.split()[0], *arguments(scene, path, invocations))
        out = capsys.readouterr().out
        assert code in (0, 1), (path, code)
        documents = [json.loads(line) for line in out.splitlines()]
        assert len(documents) == 1 or path == "fdb-embedded ls", (path, out)
        assert documents[0] or path in {"s3heap-tender peek", "s3heap-tender buckets", "futures-worker logs", "mainspring logs"}, path  # fmt: skip
        assert [found for document in documents for found in wrong(document)] == [], path


def test_a_broken_form_is_found() -> None:
    told = datetime(2026, 5, 4, tzinfo=UTC).isoformat()
    row = {"at": told, "held": "1.5 s", "last_at": 17, "due_in": "3", "x": "UUID('1')", "text": "17", "ok": 1.5}
    assert len(list(wrong([row]))) == 6


def test_a_dry_run_says_something_and_changes_nothing(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    invocations = invocations_of(capsys, scene)
    for path, (kind, _) in sorted(TABLE.items()):
        if kind == "removal":
            before = rows(scene.db)
            code = main(path.split()[0], *arguments(scene, path, invocations), "--dry-run")
            out = capsys.readouterr().out
            assert (code, bool(out)) == (0, True), path
            assert list(wrong(json.loads(out))) == [], path
            assert rows(scene.db) == before, path


def rows(db: Any) -> dict[bytes, bytes]:
    """All that users keep, but what moves by itself: the cluster clock, heartbeats, and marks of who looks."""
    found = {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}
    return {
        key: value for key, value in found.items() if not any(word in key for word in (b"clock", b"\x02hb", b"beat"))
    }
