"""The checker passes what the protocol does and finds each thing that it must never do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s3heap_tender import SysDb, history
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.trace import Trace

Line = dict[str, Any]


@pytest.fixture
def lines(quick: Any) -> list[Line]:
    """A trace with a write, two runs, a prune and a deletion; nothing left to do."""
    task = quick.sysdb.create_task("p", "t", cadence=10)
    other = quick.sysdb.create_task("q", "other", cadence=0)
    quick.settle(lambda task, gen, epoch: None, seconds=5)
    quick.sysdb.mark_dirty("p", 3)
    quick.settle(lambda task, gen, epoch: None, seconds=20)
    quick.clock.sleep(120)
    quick.heap.prune()
    quick.sysdb.delete(other.id)
    assert quick.sysdb.get(task.id).gen == 2
    return [json.loads(line) for line in quick.lines]


def check(lines: list[Line], **options: Any) -> list[str]:
    return [found.kind for found in history.check(map(json.dumps, lines), **options)]


def first(lines: list[Line], op: str, after: int = 0) -> Line:
    return next(line for line in lines[after:] if line["op"] == op)


def test_a_trace_of_the_protocol_has_no_violation(lines: list[Line]) -> None:
    assert {line["op"] for line in lines} >= {
        *("create", "claim", "finish", "sweep", "write", "delete", "heap.put", "heap.delete")
    }
    assert check(lines) == []


def test_a_lost_line_is_no_violation(lines: list[Line]) -> None:
    for index, line in enumerate(lines):
        if line["op"] not in ("create", "delete"):
            assert check(lines[:index] + lines[index + 1 :]) == [], line["op"]


def test_lines_of_several_processes_may_come_in_any_order(lines: list[Line]) -> None:
    assert check(lines[::-1]) == []


def change_state(lines: list[Line]) -> None:
    first(lines, "sweep")["after"]["state"] = "running"


def start_too_soon(lines: list[Line]) -> None:
    claims = [line for line in lines if line["op"] == "claim" and line["after"]["cadence"]]
    claims[1]["after"]["start"] = claims[0]["after"]["start"] + 9_999_999


def settle_twice(lines: list[Line]) -> None:
    lines.append(dict(first(lines, "finish")))


def settle_by_a_stranger(lines: list[Line]) -> None:
    first(lines, "finish")["before"]["epoch"] = 7


def settle_a_claim_that_was_taken_over(lines: list[Line]) -> None:
    first(lines, "finish")["held"][1] += 1


def skip_a_generation(lines: list[Line]) -> None:
    first(lines, "sweep")["after"]["gen"] += 5


def remove_what_is_needed(lines: list[Line]) -> None:
    claim = next(line for line in lines if line["op"] == "claim" and line["after"]["cadence"])
    item = [claim["task"], claim["after"]["gen"], claim["after"]["due_ms"]]
    put = dict(first(lines, "heap.put"), why="prune", added=[], removed=[item], v1=claim["v"])
    lines.insert(lines.index(claim) + 1, put)


def push_that_removes(lines: list[Line]) -> None:
    put = first(lines, "heap.put")
    put["removed"] = [[first(lines, "create")["task"], 1, 0]]


def run_after_deletion(lines: list[Line]) -> None:
    delete = first(lines, "delete")
    row = dict(delete["before"], step=delete["before"]["step"] + 1)
    lines.append(dict(delete, op="pause", before=row, after=dict(row, step=row["step"] + 1, paused=True)))


def forget_a_write(lines: list[Line]) -> None:
    lines.append(dict(first(lines, "write"), offset=99, v=10**15))


def write_garbage(lines: list[Line]) -> None:
    lines.append({"no": "op"})


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (change_state, "move"),
        (start_too_soon, "cadence"),
        (settle_twice, "fence"),
        (settle_by_a_stranger, "fence"),
        (settle_a_claim_that_was_taken_over, "fence"),
        (skip_a_generation, "fence"),
        (remove_what_is_needed, "lost item"),
        (push_that_removes, "lost item"),
        (run_after_deletion, "deleted"),
        (forget_a_write, "uncovered"),
        (write_garbage, "format"),
    ],
)
def test_each_forbidden_thing_is_found(lines: list[Line], spoil: Callable[[list[Line]], None], kind: str) -> None:
    spoil(lines)
    assert kind in check(lines)


def test_a_run_without_an_item_on_the_heap_is_found(quick: Any) -> None:
    quick.sysdb.finish(quick.sysdb.claim(quick.sysdb.create_task("p", "t", cadence=0)))
    assert any("B2 → C2" in found for found in quick.violations())


def test_a_write_to_come_is_no_violation_of_a_live_system(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.settle(lambda task, gen, epoch: None, seconds=3)
    quick.sysdb.mark_dirty("p", 1)
    assert quick.violations(drained=False) == []
    assert ["uncovered" in found for found in quick.violations()] == [True]


def test_the_environment_names_the_file(quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace"
    monkeypatch.setenv("MAINSPRING_TRACE", str(file))
    SysDb(quick.db, quick.cluster, sessions=LocalSessions(), clock=quick.clock).create_task("p", "t")
    [line] = file.read_text().splitlines()
    assert json.loads(line)["op"] == "create"


def test_a_trace_that_cannot_be_written_fails_no_step(quick: Any, tmp_path: Path) -> None:
    quick.sysdb.trace = Trace(str(tmp_path / "absent" / "trace"))
    assert quick.sysdb.create_task("p", "t").gen == 1
