"""The history checker: reads a trace from outside and finds what the protocol must never do.

    kinds of violation:
    format      a line that is no trace line
    move        a change of state, or a move between cells, that the table forbids
    cadence     a generation that began sooner after another than the cadence allows, wherever its claim took long
    fence       a claim settled by someone who did not hold it, a generation or epoch that did not grow
    lost item   an item removed from the heap although its generation was still needed
    deleted     a task that changed after its deletion
    uncovered   a write that no run covers at the end of the trace

Lines of one task are ordered by the number in its row, lines of one object by their ETags; lines of both by FoundationDB
versions. A process that dies between a step and its line leaves a gap: the lines around it say what must have happened.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from s3heap_tender.rows.states import (
    NEW_GENERATION,
    OPERATIONS,
    ROW_OF,
    Column,
    Row,
    State,
    move_between,
    why_not,
)

Line = dict[str, Any]
View = dict[str, Any]
_CLAIMS = ("claim", "retake")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must never happen, and the line that shows it."""

    kind: str
    message: str
    line: int = 0  # 1 is the first; 0 where no single line shows it

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" + (f" (line {self.line})" if self.line else "")


def check(lines: Iterable[str], *, drained: bool = True) -> list[Violation]:
    """Every violation that a trace shows.

    `drained` says that the trace ends with nothing left to do, so that every write must be covered by then.
    """
    found: list[Violation] = []
    parsed: list[Line] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            line["n"] = number
            assert isinstance(line["op"], str)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            found.append(Violation("format", f"no trace line: {text[:80]!r} ({error!r:.80})", number))
            continue
        parsed.append(line)
    steps: dict[str, list[Line]] = defaultdict(list)
    for line in parsed:
        if line["op"] in OPERATIONS:
            steps[line["task"]].append(line)
    begun = _begun(parsed)
    for task, history in steps.items():
        history.sort(key=_step)
        found.extend(_check_task(task, history, begun[task]))
    found.extend(_check_forgotten(parsed, steps))
    found.extend(_check_heap(parsed, steps))
    found.extend(_check_coverage(parsed, steps, drained))
    return sorted(found, key=lambda violation: violation.line)


def _step(line: Line) -> int:
    after, before = line["after"], line["before"]
    return int(after["step"] if after is not None else before["step"] + 1)


def _state(view: View | None) -> State | None:
    return None if view is None else State(view["state"])


def _begun(lines: list[Line]) -> dict[str, list[tuple[int, int, int]]]:
    """Starts, as (clock, generation, line), of runs that began later than their claims said."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for line in lines:
        if line["op"] == "begin":
            found[line["task"]].append((line["now"], line["after"]["gen"], line["n"]))
        elif line["op"] == "began":
            found[line["task"]].append((line["at"], line["gen"], line["n"]))
    return found


def _check_task(task: str, history: list[Line], begun: list[tuple[int, int, int]]) -> Iterator[Violation]:
    """The row's moves, in their order, and the starts of its runs, `begun` among them."""
    last: View | None = None
    last_step = 0
    deleted = False
    started = list(begun)
    for line in history:
        number, operation = line["n"], line["op"]
        before, after = line["before"], line["after"]
        if deleted:
            yield Violation("deleted", f"{operation} of task {task} after its deletion", number)
            continue
        if (_state(before), _state(after)) not in OPERATIONS[operation]:
            yield Violation(
                "move", f"{operation} of task {task} from {_name(before)} to {_name(after)} is not in the table", number
            )
        step = _step(line)
        if before is not None and before["step"] == last_step and last is not None:
            if before != last:
                yield Violation("fence", f"{operation} of task {task} began from a row that nobody left", number)
        elif before is not None and before["step"] < last_step:
            yield Violation("fence", f"two steps of task {task} began from the same row", number)
        elif before is not None and last is not None:
            yield from _check_gap(task, last, before, number)
        elif before is None and last is not None:
            yield Violation("move", f"task {task} was created twice", number)
        if before is not None and after is not None:
            yield from _check_step(task, operation, before, after, number)
        if before is not None and line.get("held", held := [before["gen"], before["epoch"]]) != held:
            yield Violation(
                "fence", f"{operation} of task {task} by the claim {line['held']}, while {held} was the task's", number
            )
        if operation in _CLAIMS and after is not None:
            started.append((after["start"], after["gen"], number))
        last, last_step = after, step
        deleted = after is None
    yield from _check_cadence(task, history, started)


def _check_step(task: str, operation: str, before: View, after: View, number: int) -> Iterator[Violation]:
    grew = after["gen"] - before["gen"]
    if grew not in ((0, 1) if operation in NEW_GENERATION else (0,)):
        yield Violation(
            "fence", f"{operation} of task {task} took generation {before['gen']} to {after['gen']}", number
        )
    if after["live"] < before["live"]:
        yield Violation("fence", f"{operation} of task {task} lowered live_gen", number)
    if after["completion"] < before["completion"]:
        yield Violation("fence", f"{operation} of task {task} lowered the completion offset", number)
    if operation in _CLAIMS and after["epoch"] != before["epoch"] + 1:
        yield Violation("fence", f"{operation} of task {task} left epoch {after['epoch']}", number)
    if operation in _CLAIMS and (before["paused"] or before["dead"]):
        yield Violation("move", f"{operation} of task {task}, which was paused or dead", number)
    if operation in ("claim", "retake", "redrive") and after["attempt"] - before["attempt"] != (operation == "redrive"):
        yield Violation("fence", f"{operation} of task {task} changed its attempt", number)


def _check_gap(task: str, known: View, found: View, number: int) -> Iterator[Violation]:
    """Steps whose lines were lost lie between two rows: what they must have done has to be possible."""
    steps = found["step"] - known["step"]
    states = {_state(known)}
    for _ in range(steps):
        states = {
            after
            for changes in OPERATIONS.values()
            for before, after in changes
            if before in states and before is not None and after is not None
        }
    if _state(found) not in states:
        yield Violation("move", f"task {task} got from {_name(known)} to {_name(found)} in {steps} steps", number)
    if found["gen"] < known["gen"] or found["epoch"] < known["epoch"] or found["live"] < known["live"]:
        yield Violation("fence", f"task {task} went back in generation, live_gen or epoch", number)


def _check_cadence(task: str, history: list[Line], started: list[tuple[int, int, int]]) -> Iterator[Violation]:
    """Starts of distinct generations, also of those that only a later row tells of, are a cadence apart."""
    starts = dict.fromkeys(started)
    for line in history:
        for view in (line["before"], line["after"]):
            if view is not None and view["state"] == State.RUNNING.value:
                starts.setdefault((view["start"], view["gen"], line["n"]))
    cadence = next((view["cadence"] for line in history for view in (line["after"], line["before"]) if view), 0)
    ordered = sorted(starts, key=lambda entry: (entry[0], entry[1]))
    for (clock, gen, _), (next_clock, next_gen, number) in pairwise(ordered):
        if next_gen != gen and next_clock - clock < cadence:
            yield Violation(
                "cadence",
                f"task {task}: generations {gen} and {next_gen} started {(next_clock - clock) / 1e6:.3f} s apart, "
                f"the cadence is {cadence / 1e6:.3f} s",
                number,
            )


def _check_forgotten(lines: list[Line], steps: dict[str, list[Line]]) -> Iterator[Violation]:
    """Only a deleted task's tombstone goes."""
    deleted = {line["task"] for line in lines if line["op"] in ("delete", "delete.begin")}
    for line in lines:
        if line["op"] == "forget" and steps.get(line["task"]) and line["task"] not in deleted:
            yield Violation("deleted", f"task {line['task']} was forgotten and never deleted", line["n"])


def _check_heap(lines: list[Line], steps: dict[str, list[Line]]) -> Iterator[Violation]:
    """Removals are of done items only, and a run starts from an item that is on the heap."""
    added: dict[str, list[int]] = defaultdict(list)  # task → v0 of every addition
    removed: dict[tuple[str, int, int], int] = {}
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if not line["op"].startswith("heap."):
            continue
        by_key[line["key"]].append(line)
        if line["op"] == "heap.put" and line.get("why") not in ("push", "prune"):
            yield Violation(
                "move", f"{line['key']} was written for {line.get('why')!r}, which is no operation", line["n"]
            )
        for task, _gen, _due in line.get("added", ()):
            added[task].append(line["v0"])
            if line.get("why") == "prune":
                yield Violation("move", f"a prune added an item of task {task}", line["n"])
        for task, gen, due_ms in line["removed"]:
            removed[task, gen, due_ms] = line["n"]
            if line.get("why") == "push":
                yield Violation("lost item", f"a push removed an item of task {task}, generation {gen}", line["n"])
            if not _was_done(steps.get(task, []), gen, due_ms, line["v1"]):
                yield Violation(
                    "lost item",
                    f"the item of task {task}, generation {gen} due at {due_ms} ms was removed while it was needed",
                    line["n"],
                )
    for task, history in steps.items():
        for line in history:
            if line["op"] == "claim" and line.get("v") is not None and not any(v0 <= line["v"] for v0 in added[task]):
                # A push whose line a crash took leaves the item's removal, or a later chain, as its witness.
                if any(key[0] == task for key in removed) or _chain_broken(by_key):
                    continue
                yield Violation("move", _cell_message(task), line["n"])


def _cell_message(task: str) -> str:
    source, target = (Row.B, Column.NOT_ON_HEAP), (Row.C, Column.NOT_ON_HEAP)
    assert move_between(source, target) is None
    return f"task {task} ran with nothing of it on the heap (B2 → C2): {why_not(source, target)}"


def _chain_broken(by_key: dict[str, list[Line]]) -> bool:
    """Whether some object's ETags do not follow each other: the line of a write was lost."""
    for history in by_key.values():
        etags = {line.get("etag") for line in history}
        if any(line["prev"] is not None and line["prev"] not in etags for line in history):
            return True
        if sum(line["op"] == "heap.put" for line in history) != len(etags - {None}):
            return True
    return False


def _was_done(history: list[Line], gen: int, due_ms: int, version: int) -> bool:
    """Whether some row of the task up to `version` says that the item is over, or the task is gone."""
    for line in history:
        committed = line.get("v")
        for view, at in ((line["before"], line.get("rv")), (line["after"], committed)):
            if at is not None and at > version:
                continue
            if view is None:
                if line["op"] == "delete" and at is not None:
                    return True
            elif gen < view["live"] or (gen == view["gen"] and due_ms != view["due_ms"]):
                return True
    last = history[-1]["after"] if history else None
    if last is not None and last["state"] != State.WAITING.value and (last["gen"], last["due_ms"]) == (gen, due_ms):
        # The line of the step that ended this generation may have been lost, and no other followed. Had the item
        # been needed, its run never comes, and the writes it was for are found uncovered.
        return True
    # The line that made it so may have been lost; the next one's row before shows it, read after the removal.
    return any(
        line["before"] is not None
        and (gen < line["before"]["live"] or (gen == line["before"]["gen"] and due_ms != line["before"]["due_ms"]))
        and not _has_predecessor(history, line)
        for line in history
    )


def _has_predecessor(history: list[Line], line: Line) -> bool:
    return any(_step(other) == line["before"]["step"] for other in history)


def _check_coverage(lines: list[Line], steps: dict[str, list[Line]], drained: bool) -> Iterator[Violation]:
    """Every write has, for every task of its partition, a run that started after it or read beyond it."""
    if not drained:
        return
    perhaps_deleted = {line["task"] for line in lines if line["op"] == "delete.begin"}
    by_partition: dict[str, list[list[Line]]] = defaultdict(list)
    for history in steps.values():
        by_partition[history[0]["partition"]].append(history)
    for write in lines:
        if write["op"] != "write" or write.get("v") is None:
            continue
        for history in by_partition.get(write["partition"], ()):
            created = history[0].get("v") if history[0]["op"] == "create" else None
            end = history[-1]["after"]
            if end is None or end["paused"] or end["dead"] or history[0]["task"] in perhaps_deleted:
                continue
            if not _covered(history, write) and not (
                created is not None and created > write["v"] and end["start"] >= 0
            ):
                yield Violation(
                    "uncovered",
                    f"the write of version {write['v']} to partition {write['partition']} caused no run of task "
                    f"{history[0]['task']}",
                    write["n"],
                )


def _covered(history: list[Line], write: Line) -> bool:
    """Whether a run read the write: one that began after it, was told of its offset, or said itself how far it read.

    A retake is no beginning: its run may be one that goes on, and that read the log before the write.
    """
    behind = bool(write.get("behind"))
    offset = None if behind else write.get("offset")
    claims = [line for line in history if line["op"] == "claim"]
    if any((c.get("rv") or 0) >= write["v"] or (offset is not None and c["tail"] >= offset) for c in claims):
        return True
    attempts = {_attempt(line["after"]) for line in claims}
    known = 0
    last: View | None = None
    for line in history:
        before, after = line["before"], line["after"]
        if line["op"] == "finish" and (line.get("stated", True) or _attempt(before) not in attempts):
            if offset is not None and after["completion"] >= offset:
                return True
            if not behind and (line.get("rv") or 0) >= write["v"] and line["upto"] >= line["tail"]:
                return True
        # The line of a claim may have been lost: a later row tells of its epoch, whose run began after a row before it.
        if before is not None and before["epoch"] > known and (version := _version_of_epoch(history, before["epoch"])):
            retaken = last is not None and last["state"] == State.RUNNING.value and _attempt(last) == _attempt(before)
            if version >= write["v"] and not retaken:
                return True
            known = before["epoch"]
        last = after
    return False


def _attempt(view: View) -> tuple[int, int]:
    return view["gen"], view["attempt"]


def _version_of_epoch(history: list[Line], epoch: int) -> int | None:
    """A version that the start of `epoch` certainly followed, where its own line was lost."""
    if any(line["op"] in _CLAIMS and line["after"]["epoch"] == epoch for line in history):
        return None
    earlier = [
        line["v"] for line in history if line.get("v") and line["after"] is not None and line["after"]["epoch"] < epoch
    ]
    return max(earlier, default=None)


def _name(view: View | None) -> str:
    state = _state(view)
    return f"{'absent' if state is None else state.value} (row {ROW_OF[state].name})"
