"""Gpus given out by id: none to two that run at once, but for shares of one; and no process keeps what the next one is given."""

from __future__ import annotations

import random

import pytest
from core_driver import Driver, claim, claims, outcomes, sent

from fdb_datamodel import Requirements, allot
from futures_worker.worker import messages
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    InputsReady,
    RetireChild,
    RunTurn,
    TurnEnded,
    WorkSignalled,
)
from futures_worker.worker.registration import gpu_ids


class Gpus(Driver):
    """A worker with slots and gpus for its tasks."""

    def __init__(self, slots: int, gpus: float) -> None:
        super().__init__(slots, Requirements(8, "4GiB", gpus))
        self.core.give_out_gpus(gpu_ids(gpus, None)[1])

    def take(self, **needs: float) -> list[int]:
        """Claims by number of what each needs of gpus; which are sent at once."""
        (turn,) = self.only(RunTurn, self.say(WorkSignalled()))
        items = [claim(int(name[1:]), shape=(0, 0, round(amount * 1000))) for name, amount in needs.items()]
        return sent(self.say(TurnEnded(claims(*items), turn)))

    def gpus_of(self, task: int) -> str | None:
        home = self.core.children[self.child_of(task)].home
        assert home is not None
        return home.gpus


def test_ids_are_whole_ones_and_shares_of_one() -> None:
    assert allot((1000, 1000, 1000), 2000) == ((0, 1000), (1, 1000))
    assert allot((600, 1000), 1000) == ((1, 1000),)
    assert allot((600, 600), 1000) is None, "fractions of two are no whole one"
    assert allot((1000, 600, 300), 300) == ((2, 300),), "of which the least is left"
    assert allot((1000, 1000), 1500) == ((0, 1000), (1, 500))
    assert allot((1000,), 1500) is None


@pytest.mark.parametrize("seed", range(20))
def test_what_is_claimed_can_be_given_out(seed: int) -> None:
    """A worker offers what is free of each: whatever order tasks come and go in, the core's invariants hold."""
    chance = random.Random(seed)
    d = Gpus(6, 3)
    number, running = 0, dict[int, float]()
    for _ in range(60):
        amount = chance.choice((0, 0.25, 0.5, 0.6, 1, 2))
        if len(running) < 6 and allot(tuple(d.core.devices), round(amount * 1000)) is not None:
            number += 1
            d.take(**{f"t{number}": amount})
            running[number] = amount
        elif running:
            task = chance.choice(list(running))
            if d.seq_of(task) < 0:
                for child in [c for c in d.core.children.values() if c.state == "dying"]:
                    d.say(ChildEnded(child.number, "exit code 0"))
                continue
            del running[task]
            d.result(d.child_of(task), d.seq_of(task), 1_000_000)
        for child in [c for c in d.core.children.values() if c.state == "dying" and chance.random() < 0.7]:
            d.say(ChildEnded(child.number, "exit code 0"))
        given = [
            g
            for task in running
            if d.seq_of(task) >= 0 and running[task] >= 1
            for g in (d.gpus_of(task) or "").split(",")
        ]
        assert len(set(given)) == len(given), "whole ones are nobody else's"


def test_a_process_that_used_a_gpu_has_ended_before_another_has_it() -> None:
    d = Gpus(2, 1)
    assert d.take(t1=1) == [1]
    assert d.gpus_of(1) == "0"
    d.result(d.child_of(1), d.seq_of(1), 1_000_000)
    first = next(child.number for child in d.core.children.values() if child.home is not None)
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    d.hold_inputs = True
    d.say(TurnEnded(claims(claim(2, shape=(0, 0, 1000), code=b"other")), turn))
    (task,) = d.core.tasks.values()
    task.digest, task.home = b"other", task.home._replace(setting=b"another")
    said = d.say(InputsReady([task]))
    assert sent(said) == [] and [i.child for i in said if isinstance(i, RetireChild)] == [first]
    assert sent(d.say(ChildEnded(first, "exit code 0"))) == [2]
    assert d.gpus_of(2) == "0"


def test_the_same_process_takes_the_next_task_and_those_without_a_gpu_see_none() -> None:
    d = Gpus(2, 2)
    assert d.take(t1=1, t2=0) == [1, 2]
    assert (d.gpus_of(1), d.gpus_of(2)) == ("0", "")
    first = d.child_of(1)
    d.result(first, d.seq_of(1), 1_000_000)
    assert d.take(t3=1) == [3]
    assert d.child_of(3) == first, "what it has loaded onto it is of use"


def test_a_claim_that_finds_none_free_goes_back() -> None:
    d = Gpus(3, 1)
    d.take(t1=0.6)
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    back = outcomes(d.say(TurnEnded(claims(claim(2, shape=(0, 0, 500))), turn), after=0.01))
    assert [(one.claim.id[-1], one.event) for one in back] == [(2, "relinquish_claim")]
    child, seq = d.child_of(1), d.seq_of(1)
    d.say(ChildSaid(child, [[messages.RESULT, seq, 10, b""]]))
    assert d.core.devices == [1000]


@pytest.mark.parametrize(
    ("gpus", "visible", "found"),
    [
        (None, None, (0, ())),
        (None, "", (0, ())),
        (None, "2,3", (2, ("2", "3"))),
        (None, "1,-1,0", (1, ("1",))),
        (2, None, (2, ("0", "1"))),
        (1, "GPU-a, GPU-b", (1, ("GPU-a",))),
        (1.5, None, (1.5, ("0", "1"))),
        (0, "0,1", (0, ())),
    ],
)
def test_which_gpus_there_are(gpus: float | None, visible: str | None, found: tuple[float, tuple[str, ...]]) -> None:
    assert gpu_ids(gpus, visible) == found


def test_more_gpus_than_there_are_is_refused() -> None:
    for gpus, visible, text in (
        (2, "0", "2 gpus are asked for, and CUDA_VISIBLE_DEVICES='0' names 1"),
        (None, "1,1", "twice"),
        (5000, None, "1024"),
    ):
        with pytest.raises(ValueError, match=text):
            gpu_ids(gpus, visible)
