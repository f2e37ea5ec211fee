"""A worker's line is not a queue: how much it may hold, and that priorities, time limits and cancels reach what is in it."""

from __future__ import annotations

from core_driver import Driver, answer_ring, claim, claims, outcomes, sent

from fdb_datamodel import Claim, MailEntry
from futures_worker.worker import messages
from futures_worker.worker.deciding import dispatching, planning
from futures_worker.worker.deciding.instructions import (
    ChildEnded,
    ChildSaid,
    DrainAsked,
    InputsReady,
    KillChild,
    MailArrived,
    PrepareInputs,
    RunTurn,
    TakeBack,
    TasksReturned,
    TurnEnded,
    WorkSignalled,
)
from futures_worker.worker.deciding.tasks import HORIZON, Pace

QUICK, SLOW = b"quick", b"slow"


def after_many_quick_ones(slots: int = 1) -> Driver:
    """A worker that ran 2,000 tasks of a quick function, and now claims as many as it may."""
    d = Driver(slots=slots)
    d.start()
    for _ in range(2000):
        d.core.pace.observe(QUICK, 1e-5)
    d.core.claim_target = planning.MOST_IN_HAND
    return d


def offered(d: Driver) -> RunTurn:
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    return turn


def test_the_pace_of_one_function_says_nothing_of_another() -> None:
    d = after_many_quick_ones()
    capacity = offered(d).capacity
    assert (capacity.seconds, capacity.at_once) == (HORIZON, 1)
    assert capacity.cost(QUICK) < 1e-4
    assert capacity.cost(SLOW) == HORIZON, "nothing is known of it: one at a time"


def test_what_is_in_hand_counts_by_what_it_takes() -> None:
    d = after_many_quick_ones(slots=2)
    for _ in range(20):
        d.core.pace.observe(SLOW, 0.2)
    d.claim(claim(1, code=SLOW), claim(2, code=SLOW), more=True)
    capacity = d.only(RunTurn, d.log)[-1].capacity
    assert (capacity.seconds, capacity.at_once) == (0.5625, 0), "of a second 0.4 are taken; in steps"


def test_a_running_task_that_takes_longer_than_expected_counts_as_it_does() -> None:
    d = after_many_quick_ones()
    d.claim(claim(1, code=QUICK))
    assert d.core.wants_work
    d.say(after=HORIZON)
    assert not d.core.wants_work, "nothing would begin soon"


def test_where_the_next_in_the_pool_takes_too_long_it_is_not_asked_again_before_something_ended() -> None:
    d = after_many_quick_ones()
    (turn,) = d.only(RunTurn, d.say(WorkSignalled()))
    found = claims(claim(1, code=QUICK), more=True)
    found.cut = True
    assert d.only(RunTurn, d.say(TurnEnded(found, turn))) == []
    assert d.only(RunTurn, d.say(WorkSignalled(again=True))) == []
    (turn,) = d.only(RunTurn, d.result(0, d.seq_of(1)))
    assert turn.limit == 2, "and not again for hundreds, of which one would be claimed"


def test_many_new_functions_that_were_all_short_let_the_next_be_claimed_ahead() -> None:
    pace = Pace()
    for number in range(Pace.NEWCOMERS):
        assert pace.cost(b"new") == HORIZON
        assert pace.any_short == (number > 0)
        pace.observe(b"%d" % number, 0.001)
    assert pace.cost(b"new") == 0.001
    pace.observe(b"long", 3.0)
    assert pace.cost(b"new") == HORIZON


def stuck(count: int = 20, code: bytes = QUICK) -> Driver:
    """A worker whose only slot runs the first of some tasks for longer than it expected; the others are in line."""
    d = after_many_quick_ones()
    d.claim(*[claim(i, code=code) for i in range(count)])
    assert d.only(TakeBack, d.say(after=dispatching.STUCK)) == [TakeBack(0)]
    d.say(TasksReturned(0, tuple(t.seq for t in list(d.core.children[0].queue)[1:])))
    assert len(d.core.ready) == count - 1
    return d


def test_the_line_goes_back_to_the_pool_once_every_slot_is_held_up() -> None:
    d = stuck()
    assert outcomes(d.say(after=planning.REVIEW)) == []
    back = outcomes(d.say(after=HORIZON))
    assert [(o.event, o.started) for o in back] == [("relinquish_claim", False)] * 19
    assert list(d.core.tasks) == [claim(0).id]


def test_what_a_task_here_waits_for_stays() -> None:
    d = stuck()
    d.core.children[0].awaits = (claim(7).id,)
    d.core.waiting = 1
    later = d.now + HORIZON + planning.REVIEW
    d.core.step([], later, later)
    assert [task.claim.id for task in d.core.ready] == [claim(7).id]


def test_a_line_that_turns_out_too_long_is_cut_at_its_end() -> None:
    d = stuck()
    d.core.pace.observe(QUICK, 0.1)
    back = outcomes(d.say(after=planning.REVIEW))
    assert [o.claim.id for o in back] == [claim(i).id for i in range(6, 20)], "0.5 s stay"


def test_a_late_task_in_line_goes_back_and_one_that_runs_goes_on() -> None:
    d = stuck(3)
    back = outcomes(d.say(late_mail(0, 1)))
    assert [(o.event, o.claim.id, o.started) for o in back] == [("relinquish_claim", claim(1).id, False)]
    assert d.child_of(0) == 0


def late_mail(*numbers: int) -> MailArrived:
    return MailArrived(tuple(MailEntry(claim(n).id, "late") for n in numbers))


def test_what_was_sent_to_a_child_and_not_begun_is_taken_back_when_it_is_late_or_cancelled() -> None:
    for kind, expected in (("late", ["relinquish_claim"]), ("cancel", [])):
        d = after_many_quick_ones()
        d.claim(*[claim(i, code=QUICK) for i in range(4)])
        said = d.say(MailArrived((MailEntry(claim(2).id, kind),)))
        assert (d.only(TakeBack, said), d.only(KillChild, said)) == ([TakeBack(0)], [])
        seqs = tuple(d.seq_of(i) for i in (1, 2, 3))
        ended = outcomes(d.say(TasksReturned(0, seqs), after=planning.LINGER))
        assert [o.event for o in ended] == expected
        assert claim(2).id not in d.core.tasks


def test_a_late_task_whose_inputs_are_on_their_way_goes_back_when_they_are_there() -> None:
    d = after_many_quick_ones()
    d.hold_inputs = True
    (prepare,) = d.only(PrepareInputs, d.claim(claim(1, code=QUICK)))
    d.say(late_mail(1))
    (outcome,) = outcomes(d.say(InputsReady(prepare.tasks)))
    assert (outcome.event, outcome.started) == ("relinquish_claim", False)


def test_what_shares_a_packet_with_a_long_task_is_known_not_to_begin() -> None:
    d = after_many_quick_ones()
    d.claim(*[claim(i, code=QUICK) for i in range(5)])
    d.say(after=dispatching.STUCK)
    d.say(TasksReturned(0, ()))  # the child has read them all
    assert not d.core.ready
    d.say(after=dispatching.SKIPS)
    assert [task.claim.id for task in d.core.ready] == [claim(i).id for i in range(1, 5)]
    first = d.seq_of(0)
    skipped = [[messages.SKIPPED, first + i] for i in range(1, 5)]
    said = d.say(ChildSaid(0, [[messages.RESULT, first, 200_000, b"v"], *skipped]), after=planning.LINGER)
    assert sent(said)[0] == 1, "they are sent anew, and once"
    assert len(d.core.tasks) == 4


def test_a_drained_task_that_had_begun_says_so() -> None:
    d = Driver()
    d.start(claim(1))
    d.say(DrainAsked(0.0))
    (outcome,) = outcomes(d.say(ChildEnded(0, "signal SIGKILL (pid 7)")))
    assert (outcome.event, outcome.started) == ("relinquish_claim", True)


def test_an_answered_ring_offers_the_time_that_is_left() -> None:
    d = after_many_quick_ones()
    answer_ring(d, *[claim(i, code=QUICK) for i in range(3)])
    claimed: list[Claim] = [task.claim for task in d.core.tasks.values()]
    assert len(claimed) == 3
