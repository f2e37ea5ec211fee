"""An explicit-state model of the protocol: every order of steps, crashes included, of one task, small bounds.

A transaction of the sysdb is one step, so is a conditional write of the heap. From every state that can be reached, the
model lets everything run that is still alive and asks whether the last write gets its run. A `mutant` leaves out one
rule of the protocol; each must be caught.

State of the task: `st` (None, scheduled, running, waiting, or "gone"), `gen`, `due` (its number in the generation: one
never comes back), `live`, `epoch`; `log` and `done` are the log's end and how far it is processed; `dirty` the marker; `intent`
(gen, due, stamp); `heap` the items (gen, due); `version` tells the pruner whether the object changed since it looked.
That no push outlives its task's tombstone is what `keep_tombstones` is for: the model takes it as given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s3heap_tender.rows.states import ROW_OF, Cell, Column, State, cell_name, move_between

S, R, W = State.SCHEDULED, State.RUNNING, State.WAITING
GONE = "gone"
FORGOTTEN = "forgotten"  # deleted, and its tombstone dropped: nothing is known of it

MUTANTS = {
    "no_fence": "a run that lost its claim settles it all the same",
    "no_outbox": "a sweep tells the tender in memory instead of leaving an intent",
    "clear_before_push": "the intent is cleared before its item is on the heap",
    "clear_any": "whatever intent is there is cleared after a push",
    "unconditional_delete": "the pruner writes without a condition",
    "due_comes_back": "a generation that is moved gets a due time that it had before",
    "sweep_drops_in_running": "a sweep clears the marker of a running task, and finish does not look at the log",
    "finish_no_recheck": "finish does not look at the log",
    "finish_snapshot_only": "finish looks at the log, but does not conflict with a write it did not see",
    "done_off_by_one": "the current generation counts as done",
    "superseded_is_live_only_by_gen": "a claim does not compare due times",
    "retake_sees_the_end": "a retake of a run that goes on counts as having read what was written since",
    "forget_what_is_on_the_heap": "a tombstone is dropped while items of its task are on the heap",
    "forget_before_pushes_end": "a tombstone is dropped while a tender may still push an intent it read before",
}


class Model(NamedTuple):
    st: Any
    gen: int
    due: int
    live: int
    epoch: int
    log: int
    done: int
    dirty: bool
    intent: tuple[int, int, int] | None
    heap: frozenset[tuple[int, int]]
    version: int
    writes: int
    crashes: int
    deletes: int
    fails: int
    requests: int
    tender: Any
    runs: tuple[Any, ...]
    pruner: Any
    lease: str | None
    tail: int = 0  # the log's end at the first claim of the attempt that runs; what a re-attached run has read
    read: int = 0  # what some finished run has read in truth


@dataclass
class Exploration:
    states: int = 0
    moves: dict[tuple[Cell, Cell], set[str]] = field(default_factory=dict)
    changes: set[tuple[str, Any, Any]] = field(default_factory=set)
    violation: str | None = None
    path: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bounds:
    writes: int = 2
    crashes: int = 1
    deletes: int = 1
    fails: int = 1
    requests: int = 0
    runners: int = 1
    generations: int = 4
    epochs: int = 4
    states: int = 1_500_000


def cell(s: Model) -> Cell:
    row = ROW_OF[None if s.st in (None, GONE, FORGOTTEN) else s.st]
    return row, Column.ON_HEAP if s.heap else Column.NOT_ON_HEAP


Successors = list[tuple[str, Model]]


class Protocol:
    """The steps that may follow a state."""

    def __init__(self, bounds: Bounds, mutant: str | None = None) -> None:
        self.bounds = bounds
        self.mutant = mutant
        self._drained: dict[Model, bool] = {}

    def initial(self) -> Model:
        b = self.bounds
        return Model(
            None, 0, 0, 0, 0, 0, 0, False, None, frozenset(), 0, b.writes, b.crashes, b.deletes, b.fails, b.requests,
            None, (None,) * b.runners, None, None,
        )  # fmt: skip

    def is_done(self, s: Model, item: tuple[int, int]) -> bool:
        if s.st in (None, GONE):
            return True
        if s.st == FORGOTTEN:
            return False
        gen, due = item
        if self.mutant == "done_off_by_one" and gen == s.gen and s.log == s.done:
            return True
        return gen < s.live or (gen == s.gen and due != s.due)

    def schedule(self, s: Model, *, new: bool, due: int | None = None, **more: Any) -> Model:
        """The row scheduled, and its intent."""
        gen = s.gen + 1 if new else s.gen
        due = (0 if new else s.due) if due is None else due
        stamp = 0 if s.tender is None else (s.intent[2] if s.intent else s.tender[1][2]) + 1
        return s._replace(st=S, gen=gen, live=gen, due=due, intent=(gen, due, stamp), **more)

    def moved(self, s: Model) -> int:
        """Another due time of the same generation."""
        return 1 - s.due if self.mutant == "due_comes_back" else s.due + 1

    def next(self, s: Model, *, drain: bool = False) -> Successors:
        found: Successors = []
        if s.st is None:
            found.append(("create", self.schedule(s._replace(tender=None), new=True)))
        if s.st in (W, S, R):
            if not drain:
                self._outside(s, found)
            self._sweep(s, found)
        self._forget(s, found)
        self._tender(s, found, drain)
        for index in range(len(s.runs)):
            self._runner(s, index, found, drain)
        if s.lease == "held" and s.st is R:
            holder = any(run is not None and run[2] == s.epoch for run in s.runs)
            if not drain or not holder:
                found.append(("session ends", s._replace(lease="dead")))
        self._prune(s, found, drain)
        return [(name, t if t.pruner is not None else t._replace(version=0)) for name, t in found]

    def _forget(self, s: Model, found: Successors) -> None:
        on_heap = s.heap and self.mutant != "forget_what_is_on_the_heap"
        on_its_way = s.tender is not None and self.mutant != "forget_before_pushes_end"
        if s.st == GONE and not on_heap and not on_its_way:
            found.append(("forget", s._replace(st=FORGOTTEN)))

    def _outside(self, s: Model, found: Successors) -> None:
        if s.writes:
            found.append(("write", s._replace(log=s.log + 1, dirty=True, writes=s.writes - 1)))
        if s.deletes:
            found.append(("delete", s._replace(st=GONE, intent=None, dirty=False, deletes=s.deletes - 1, lease=None)))
        if s.requests and s.st is S and s.due:
            found.append(("run_now", self.schedule(s, new=False, due=self.moved(s), requests=s.requests - 1)))

    def _sweep(self, s: Model, found: Successors) -> None:
        if not s.dirty:
            return
        if s.st is W and s.log > s.done:
            if s.gen >= self.bounds.generations:
                return
            if self.mutant == "no_outbox":
                told = ("push", (s.gen + 1, 0, 0)) if s.tender is None else s.tender
                t = s._replace(st=S, gen=s.gen + 1, live=s.gen + 1, due=0, dirty=False, tender=told)
            else:
                t = self.schedule(s, new=True, dirty=False)
            found.append(("sweep", t))
        else:
            # Scheduled or running: the claim or the finish reads the log itself. Waiting with nothing to read: covered.
            found.append(("sweep nothing", s._replace(dirty=False)))

    def _tender(self, s: Model, found: Successors, drain: bool) -> None:
        if s.tender is None:
            if s.intent is not None:
                keep = None if self.mutant == "clear_before_push" else s.intent
                found.append(("read intent", s._replace(tender=("push", s.intent), intent=keep)))
            return
        phase, intent = s.tender
        item = (intent[0], intent[1])
        if phase == "push":
            t = s._replace(heap=s.heap | {item}, version=s.version + 1, tender=("clear", intent))
            found.append(("push", t))
        else:
            same = s.intent == intent
            if self.mutant == "clear_any":
                same = True
            rest = None if same else s.intent
            if rest is not None:
                rest = (rest[0], rest[1], 0)
            found.append(("clear intent", s._replace(intent=rest, tender=None)))
        if s.crashes and not drain:
            rest = None if s.intent is None else (s.intent[0], s.intent[1], 0)
            found.append(("tender dies", s._replace(tender=None, intent=rest, crashes=s.crashes - 1)))

    def _runner(self, s: Model, index: int, found: Successors, drain: bool) -> None:
        run = s.runs[index]

        def at(t: Model, value: Any) -> Model:
            return t._replace(runs=(*t.runs[:index], value, *t.runs[index + 1 :]))

        if run is None:
            for gen, due in sorted(s.heap):
                current = gen == s.gen and (due == s.due or self.mutant == "superseded_is_live_only_by_gen")
                if s.epoch >= self.bounds.epochs or not current or self.is_done(s, (s.gen, s.due)):
                    continue
                if s.st is S or (s.st is R and s.lease == "dead"):
                    t = s._replace(st=R, epoch=s.epoch + 1, lease="held")
                    name = "claim" if s.st is S else "retake"
                    if self.mutant == "superseded_is_live_only_by_gen" and due != s.due:
                        name = "EARLY CLAIM"
                    # A retake finds the attempt's run, which goes on: it has read what there was when it began.
                    truly = s.log if s.st is S else s.tail
                    upto = s.log if self.mutant == "retake_sees_the_end" else truly
                    found.append((name, at(t._replace(tail=truly), ("run", gen, s.epoch + 1, upto, truly))))
            return
        _, gen, epoch, seen, truly = run
        if run[0] == "run":
            self._settle(s, index, run, found)
            if self.mutant == "finish_snapshot_only" and s.st is R and s.epoch == epoch:
                found.append(("finish begins", at(s, ("committing", gen, epoch, (seen, s.log), truly))))
        else:
            # The mutant's finish commits what it decided from an older view of the log.
            upto, tail = seen
            if s.st is R and s.epoch == epoch and s.gen == gen and tail <= upto:
                t = s._replace(st=W, live=gen + 1, done=max(s.done, upto), lease=None, tail=0, read=max(s.read, truly))
                found.append(("finish", at(t, None)))
            else:
                found.append(("finish refused", at(s, None)))
        if s.crashes and not drain:
            found.append(("runner dies", at(s._replace(crashes=s.crashes - 1), None)))

    def _settle(self, s: Model, index: int, run: tuple[Any, ...], found: Successors) -> None:
        _, gen, epoch, upto, truly = run
        read = max(s.read, truly)

        def at(t: Model) -> Model:
            return t._replace(runs=(*t.runs[:index], None, *t.runs[index + 1 :]))

        holds = s.st is R and s.epoch == epoch and s.gen == gen
        if not holds:
            if self.mutant == "no_fence" and s.st in (S, R):
                found.append(("STALE FINISH", at(s)))
            found.append(("finish refused", at(s)))
            return
        blind = self.mutant in ("sweep_drops_in_running", "finish_no_recheck")
        if s.log > upto and not blind:
            if gen < self.bounds.generations:
                found.append(
                    ("finish", at(self.schedule(s, new=True, done=max(s.done, upto), lease=None, tail=0, read=read)))
                )
        else:
            dirty = s.dirty
            if self.mutant == "finish_no_recheck":
                dirty = False
            t = s._replace(st=W, live=gen + 1, done=max(s.done, upto), lease=None, dirty=dirty, tail=0, read=read)
            found.append(("finish", at(t)))
        if s.fails:
            found.append(
                ("fail", at(self.schedule(s, new=False, due=self.moved(s), fails=s.fails - 1, lease=None, tail=0)))
            )

    def _prune(self, s: Model, found: Successors, drain: bool) -> None:
        if s.pruner is None:
            if s.heap and not drain:
                found.append(("prune loads", s._replace(pruner=("loaded", s.heap, s.version))))
        elif s.pruner[0] == "loaded":
            kept = frozenset(item for item in s.pruner[1] if not self.is_done(s, item))
            found.append(("prune judges", s._replace(pruner=("judged", kept, s.pruner[2]))))
        else:
            _, kept, version = s.pruner
            if version != s.version and self.mutant != "unconditional_delete":
                found.append(("prune refused", s._replace(pruner=None)))
            elif kept == s.heap:
                found.append(("prune nothing", s._replace(pruner=None)))
            else:
                found.append(("prune", s._replace(heap=kept, version=s.version + 1, pruner=None)))

    def drains(self, s: Model) -> bool:
        """Whether the last write gets its run when nothing dies and nothing is written any more."""
        known = self._drained.get(s)
        if known is not None:
            return known
        t = s
        for _ in range(150):
            after = self.next(t, drain=True)
            if not after:
                break
            first = [step for step in after if step[0] not in ("claim", "retake", "fail", "EARLY CLAIM")] or after
            t = first[0][1]
        exhausted = t.gen >= self.bounds.generations or t.epoch >= self.bounds.epochs
        ok = t.st in (None, GONE, FORGOTTEN) or (t.st is W and t.done >= t.log) or exhausted
        self._drained[s] = ok
        return ok

    def explore(self) -> Exploration:
        """Every state within the bounds, until one breaks a rule."""
        start = self.initial()
        parents: dict[Model, tuple[Model, str] | None] = {start: None}
        todo = deque([start])
        result = Exploration()

        def caught(kind: str, s: Model, last: str | None = None) -> Exploration:
            result.violation = kind
            path = [] if last is None else [last]
            while (parent := parents[s]) is not None:
                s = parent[0]
                path.append(parent[1])
            result.path = path[::-1]
            return result

        while todo:
            s = todo.popleft()
            result.states += 1
            if s.st is S and s.intent is None and s.tender is None and (s.gen, s.due) not in s.heap:
                return caught("OUTBOX", s)
            if s.done > s.read:
                return caught("UNREAD", s)
            if s.st == FORGOTTEN and s.heap:
                return caught("LEFT", s)
            if not self.drains(s):
                return caught("LOST", s)
            for name, t in self.next(s):
                if name.isupper():
                    return caught(name, s, name)
                before, after = cell(s), cell(t)
                if before != after:
                    if move_between(before, after) is None:
                        return caught(f"MOVE {cell_name(before)} {cell_name(after)}", s, name)
                    result.moves.setdefault((before, after), set()).add(name)
                if s.st != t.st and t.st != FORGOTTEN:
                    result.changes.add((name, s.st, None if t.st is GONE else t.st))
                if t not in parents:
                    if len(parents) >= self.bounds.states:
                        return caught("TOO MANY STATES", s)
                    parents[t] = (s, name)
                    todo.append(t)
        return result
