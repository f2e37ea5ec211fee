"""The protocol's model finds no violation, agrees with the table the code runs by, and catches every mutant."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from s3heap_tender.rows.states import CELLS, MOVES, NEVER, OPERATIONS, cell_name, move_between, why_not

model: Any = sys.modules["s3heap_tender_tests_model"]
Bounds = model.Bounds

BOUNDS = {
    "one runner": Bounds(writes=2, crashes=1, deletes=1, fails=1, requests=0, runners=1),
    "two runners": Bounds(writes=1, crashes=1, deletes=0, fails=0, requests=0, runners=2, generations=3, epochs=3),
    "a generation moved twice": Bounds(
        writes=1, crashes=1, deletes=0, fails=1, requests=1, runners=1, generations=3, epochs=3
    ),
}
MUTANT_BOUNDS = {
    "forget_what_is_on_the_heap": BOUNDS["one runner"],
    "forget_before_pushes_end": BOUNDS["one runner"],
    "no_fence": Bounds(writes=1, crashes=0, deletes=0, fails=0, runners=2),
    "due_comes_back": BOUNDS["a generation moved twice"],
    "superseded_is_live_only_by_gen": BOUNDS["a generation moved twice"],
}


@pytest.fixture(scope="module")
def explored() -> dict[str, Any]:
    return {name: model.Protocol(bounds).explore() for name, bounds in BOUNDS.items()}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_protocol_breaks_no_rule(explored: dict[str, Any], name: str) -> None:
    found = explored[name]
    assert found.violation is None, (found.violation, found.path)
    assert found.states > 1_000


def test_the_model_moves_as_the_table_says_and_makes_every_move_of_it(explored: dict[str, Any]) -> None:
    made = set()
    for found in explored.values():
        for (source, target), operations in found.moves.items():
            move = move_between(source, target)
            assert move is not None, f"{cell_name(source)} → {cell_name(target)}: {why_not(source, target)}"
            assert operations <= move.operations, (cell_name(source), cell_name(target), operations)
            made.add((source, target))
    assert made == {(move.source, move.target) for move in MOVES}


def test_the_model_changes_states_as_the_transitions_may(explored: dict[str, Any]) -> None:
    for found in explored.values():
        for operation, before, after in found.changes:
            assert (before, after) in OPERATIONS[operation], (operation, before, after)


@pytest.mark.parametrize("mutant", model.MUTANTS)
def test_a_protocol_without_one_of_its_rules_is_caught(mutant: str) -> None:
    bounds = MUTANT_BOUNDS.get(mutant, Bounds(writes=2, crashes=1, deletes=0, fails=1, runners=1))
    found = model.Protocol(bounds, mutant).explore()
    assert found.violation in ("LOST", "LEFT", "UNREAD", "OUTBOX", "STALE FINISH", "EARLY CLAIM", "MOVE B2 C2"), (
        found.violation,
        found.states,
    )
    assert found.path or found.states == 1


def test_every_pair_of_cells_is_a_move_or_has_a_reason() -> None:
    pairs = [(a, b) for a in CELLS for b in CELLS if a != b]
    assert len(pairs) == 30
    allowed = {(move.source, move.target) for move in MOVES}
    crossing = {(a, b) for a, b in pairs if a[0] != b[0] and a[1] != b[1]}
    assert len(crossing) == 12  # the twelve X
    assert len(allowed) == len(MOVES)
    assert allowed.isdisjoint(crossing)
    assert allowed.isdisjoint(NEVER)
    assert allowed | crossing | set(NEVER) == set(pairs)
