"""Requests of programs that are recorded without a read: whatever has changed since the one before is a conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from datamodel_lab.lab import Lab

import fdb_datamodel as dm
from fdb_datamodel import Capacity, Claim, Failure, Outcome, programs
from fdb_datamodel.programs import ProgramClaim, Request
from fdb_schema import fdb_error_code

NOT_COMMITTED = 1020


class Stepping:
    """A program of a lab that has recorded one request."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.clock(1)
        self.worker = lab.worker()
        self.spec = lab.spec(durable=True)
        lab.submit(self.spec)
        self.id = self.spec.id
        self.claim: Claim = lab(dm.claim_future, self.id, self.worker)
        self.fence = ProgramClaim(self.id, self.claim.token)
        self.after = 0
        first = lab.db.create_transaction()
        programs.record_request(first, lab.space, self.fence, 0, Request("step", "a", b"1"))
        self.commit(first)

    def following(self, number: int) -> Any:
        """A transaction that records a request behind the last one, not committed yet."""
        tr = self.lab.db.create_transaction()
        programs.record_following(tr, self.lab.space, self.fence, number, Request("step", "b", b"2"), self.after)
        return tr

    def commit(self, tr: Any) -> None:
        tr.commit().wait()
        self.after = tr.get_committed_version()

    def meddling(self, meddle: Callable[[Stepping, Any], None]) -> Any:
        """A transaction of somebody else, not committed yet."""
        tr = self.lab.db.create_transaction()
        meddle(self, tr)
        return tr


@pytest.fixture
def program(memory_lab: Lab) -> Stepping:
    return Stepping(memory_lab)


def _cancel(program: Stepping, tr: Any) -> None:
    programs.cancel_program(tr, program.lab.space, program.id, 5.0)


def _take_over(program: Stepping, tr: Any) -> None:
    crash = Outcome.failed(program.claim, Failure("crash", "so it seemed"))
    dm.finish_turn(tr, program.lab.space, program.worker, [crash], Capacity(), 0)
    assert dm.claim_future(tr, program.lab.space, program.id, program.worker) is not None


def _give_up(program: Stepping, tr: Any) -> None:
    dm.finish_turn(tr, program.lab.space, program.worker, [Outcome.relinquished(program.claim)], Capacity(), 0)


MEDDLES = [_cancel, _take_over, _give_up]


def test_one_behind_the_other(program: Stepping) -> None:
    for number in range(1, 4):
        program.commit(program.following(number))
    assert [one.form for one in program.lab(programs.read_requests, program.id)] == [("step", "a")] + 3 * [
        ("step", "b")
    ]
    assert program.lab.validate() == []


@pytest.mark.parametrize("meddle", MEDDLES)
def test_what_changes_between_them_is_a_conflict(program: Stepping, meddle: Callable[..., None]) -> None:
    program.meddling(meddle).commit().wait()
    with pytest.raises(Exception) as error:
        program.commit(program.following(1))
    assert fdb_error_code(error.value) == NOT_COMMITTED


@pytest.mark.parametrize("meddle", MEDDLES)
def test_what_changes_while_it_is_on_its_way_is_one(program: Stepping, meddle: Callable[..., None]) -> None:
    following = program.following(1)
    program.meddling(meddle).commit().wait()
    with pytest.raises(Exception) as error:
        program.commit(following)
    assert fdb_error_code(error.value) == NOT_COMMITTED


def test_a_cancel_behind_the_one_before_in_its_batch_is_one(program: Stepping) -> None:
    """Both commits have one version, which by itself doesn't say which came first."""
    before, other = program.following(1), program.meddling(_cancel)
    commits = before.commit(), other.commit()
    for commit in commits:
        commit.wait()
    assert before.get_committed_version() == other.get_committed_version()
    program.after = before.get_committed_version()
    with pytest.raises(Exception) as error:
        program.commit(program.following(2))
    assert fdb_error_code(error.value) == NOT_COMMITTED


def test_one_that_is_recorded_by_then_stays(program: Stepping) -> None:
    """By a transaction that did what was asked as well, of which the program was told otherwise."""
    program.lab(programs.record_request, program.fence, 1, Request("step", "done", b"3"))
    with pytest.raises(Exception) as error:
        program.commit(program.following(1))
    assert fdb_error_code(error.value) == NOT_COMMITTED
    assert program.lab(programs.read_requests, program.id)[1].form == ("step", "done")


def test_parts_that_were_written_outlast_a_clear_that_comes_late(program: Stepping) -> None:
    late = program.lab.db.create_transaction()
    programs.clear_value(late, program.lab.space, program.fence, 1)
    program.lab(programs.write_parts, program.fence, 1, 0, [b"a", b"b"])
    with pytest.raises(Exception) as error:
        late.commit().wait()
    assert fdb_error_code(error.value) == NOT_COMMITTED
    assert program.lab(programs.read_value, program.id, 1, 0, 8) == [b"a", b"b"]


def test_a_value_too_large_is_refused(program: Stepping) -> None:
    tr = program.lab.db.create_transaction()
    large = Request("step", "b", bytes(programs.VALUE_LIMIT + 1))
    with pytest.raises(dm.OversizeError, match="write it in parts"):
        programs.record_following(tr, program.lab.space, program.fence, 1, large, program.after)
