"""Children are by what code runs in: the core gives each task one of its home, and lets no home starve another."""

from __future__ import annotations

from collections.abc import Sequence

from core_driver import Driver, answer_ring, claim, claims, outcomes, sent

from futures_worker.worker.deciding.dispatching import OVERTAKING
from futures_worker.worker.deciding.instructions import (
    InputsReady,
    Instruction,
    RetireChild,
    RunTurn,
    TurnEnded,
    WorkSignalled,
)
from futures_worker.worker.deciding.tasks import ANYWHERE, Home

HOMES = {b"p": Home(b"p", b"P", "/p"), b"q": Home(b"q", b"Q", "/q")}


class Homes(Driver):
    """A worker whose tasks run in the home that their code names."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots)
        self.hold_inputs = True

    def ready(self, after: float = 0.0) -> list[Instruction]:
        """The inputs of all that is being prepared are there."""
        tasks = [task for task in self.core.tasks.values() if task.preparing]
        for task in tasks:
            task.digest, task.home = task.claim.code, HOMES.get(task.claim.code, ANYWHERE)
        return self.say(InputsReady(tasks), after=after)

    def take(self, *codes: bytes, first: int = 1) -> list[int]:
        """Claims of such code, numbered; which tasks are sent at once."""
        items = [claim(first + at, code=code) for at, code in enumerate(codes)]
        (turn,) = self.only(RunTurn, self.say(WorkSignalled()))
        self.say(TurnEnded(claims(*items), turn))
        return sent(self.ready())

    def homes(self) -> Sequence[Home | None]:
        return [child.home for child in self.core.children.values()]


def test_a_child_runs_what_is_of_its_home_and_nothing_else() -> None:
    d = Homes(2)
    assert sorted(d.take(b"p", b"q")) == [1, 2]
    assert sorted(map(str, d.homes())) == sorted(map(str, HOMES.values()))
    for task in (1, 2):
        d.result(d.child_of(task), d.seq_of(task), 1_000_000)
    assert sorted(d.take(b"q", b"p", first=3)) == [3, 4]
    assert len(d.core.children) == 2, "each had its child"
    for task, code in ((3, b"q"), (4, b"p")):
        assert d.core.children[d.child_of(task)].home == HOMES[code]


def test_where_idle_children_are_of_other_homes_others_are_forked_for_them() -> None:
    d = Homes(2)
    d.take(b"f", b"f")
    for task in (1, 2):
        d.result(d.child_of(task), d.seq_of(task), 1_000_000)
    assert sorted(d.take(b"p", b"p", first=3)) == [3, 4]
    retired = [i.child for i in d.log if isinstance(i, RetireChild)]
    assert sorted(retired) == [0, 1], "they were idle, and nothing waits for them"


def test_a_home_that_is_overtaken_has_the_next_slot_but_not_before_a_moment() -> None:
    d = Homes(1)
    d.take(b"f")
    d.core.pace.observe(b"f", 0.0001)
    d.core.claim_target = 100
    d.say(WorkSignalled())
    waiting = [claim(2, code=b"p"), *(claim(number, code=b"f") for number in range(3, 40))]
    answer_ring(d, *waiting)
    d.ready()
    now: list[int] = []
    at = d.now
    for _ in range(200):
        child = next(child for child in d.core.children.values() if child.queue)
        head = child.queue[0]
        now.append(int.from_bytes(head.claim.id, "big"))
        if now[-1] == 2:
            break
        d.result(child.number, head.seq, 100, after=0.02)
    assert now[-1] == 2, "it wasn't left to the end"
    assert d.now - at >= OVERTAKING and len(now) > 3, "others that had a child went first for a moment"
    assert len(now) < 35


def test_a_chain_stays_in_its_home() -> None:
    d = Homes(1)
    assert d.take(b"p", b"q") == [1]
    d.result(d.child_of(1), d.seq_of(1), 1_000_000)
    assert d.core.children[d.child_of(2)].home == HOMES[b"q"]
    assert outcomes(d.log)[-1].claim.id == (1).to_bytes(16, "big")
