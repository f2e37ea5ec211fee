"""The engine is strictly serializable as its clients see it, and the checker finds what isn't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from histories.checker import check
from histories.history import Append, Get, Outcome, Put, Read, Transaction
from histories.runner import Plan, run
from histories.workload import DEFECTS

ok, failed, unknown = Outcome.ok, Outcome.failed, Outcome.unknown


def history(*rows: tuple[Any, ...]) -> list[Transaction]:
    """Rows of (begin, end, outcome, operations…)."""
    return [
        Transaction(f"t{number}", begin, end, outcome, list(operations))
        for number, (begin, end, outcome, *operations) in enumerate(rows)
    ]


def kinds(*rows: tuple[Any, ...]) -> set[str]:
    return {one.kind for one in check(history(*rows))}


def test_a_serial_history_is_clean() -> None:
    rows = [
        (0, 1, ok, Append("x", 1), Read("x", (1,))),
        (2, 3, ok, Read("x", (1,)), Append("x", 2), Append("x", 3), Read("x", (1, 2, 3))),
        (4, 5, ok, Read("x", (1, 2, 3)), Get("r", None), Put("r", 7)),
        (6, 7, ok, Get("r", 7), Put("r", 8)),
        (8, None, unknown, Append("x", 4)),
        (9, 10, ok, Read("x", (1, 2, 3, 4)), Get("r", 8)),
        (9, 11, failed, Append("x", 5)),
    ]
    assert check(history(*rows)) == []


def test_what_ran_at_the_same_time_may_have_any_order() -> None:
    assert kinds((0, 9, ok, Append("x", 1)), (1, 8, ok, Read("x", ())), (2, 7, ok, Read("x", (1,)))) == set()


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("G1a", [(0, 1, failed, Append("x", 1)), (2, 3, ok, Read("x", (1,)))]),
        ("G1b", [(0, 9, ok, Append("x", 1), Append("x", 2)), (1, 8, ok, Read("x", (1,))), (10, 11, ok, Read("x", (1, 2)))]),
        ("G0", [(0, 9, ok, Append("x", 1), Append("y", 2)), (0, 9, ok, Append("x", 3), Append("y", 4)),
                (0, 9, ok, Read("x", (1, 3))), (0, 9, ok, Read("y", (4, 2)))]),
        ("G1c", [(0, 9, ok, Append("x", 1), Read("y", (2,))), (0, 9, ok, Append("y", 2), Read("x", (1,)))]),
        ("G-single", [(0, 9, ok, Append("x", 1), Append("y", 2)), (0, 9, ok, Read("x", ()), Read("y", (2,))),
                      (10, 11, ok, Read("x", (1,)))]),
        ("G2", [(0, 9, ok, Read("x", ()), Append("y", 1)), (0, 9, ok, Read("y", ()), Append("x", 2)),
                (10, 11, ok, Read("x", (2,)), Read("y", (1,)))]),
        ("G-single-realtime", [(0, 1, ok, Append("x", 1)), (2, 3, ok, Read("x", ())), (4, 5, ok, Read("x", (1,)))]),
        ("lost", [(0, 1, ok, Append("x", 1)), (2, 3, ok, Read("x", ()))]),
        ("lost update", [(0, 9, ok, Get("r", None), Put("r", 1)), (0, 9, ok, Get("r", None), Put("r", 2))]),
        ("incompatible order", [(0, 9, ok, Append("x", 1)), (0, 9, ok, Append("x", 2)), (0, 9, ok, Read("x", (1, 2))),
                                (0, 9, ok, Read("x", (2,)))]),
        ("duplicate", [(0, 9, ok, Append("x", 1)), (0, 9, ok, Read("x", (1, 1)))]),
        ("garbage", [(0, 9, ok, Read("x", (7,)))]),
        ("internal", [(0, 9, ok, Append("x", 1), Read("x", ()))]),
        ("reordered", [(0, 9, ok, Append("x", 1), Append("x", 2)), (0, 9, ok, Read("x", (2, 1)))]),
        ("G-single-realtime", [(0, 1, ok, Get("r", None), Put("r", 1)), (2, 3, ok, Get("r", None)),
                               (4, 5, ok, Get("r", 1), Put("r", 2))]),
    ],
)  # fmt: skip
def test_an_anomaly_is_named(kind: str, rows: list[tuple[Any, ...]]) -> None:
    assert kind in kinds(*rows)


def test_a_large_history_is_checked_in_steps_that_grow_with_it() -> None:
    """Every transaction adds a bounded number of edges: the moments of real time are nodes, not pairs."""
    from histories import checker

    def edges(size: int) -> int:
        graph = checker._Graph()
        checker._real_time(history(*((2 * at, 2 * at + 1, ok) for at in range(size))), graph)
        return sum(map(len, graph.edges.values()))

    assert edges(2000) <= 2 * edges(1000) + 8


@pytest.mark.parametrize("seed", range(3))
def test_the_engine_is_strictly_serializable_for_its_clients(seed: int, database_dir: Path, tmp_path: Path) -> None:
    plan = Plan(seed, processes=3, threads=2 + seed, transactions=60, held=(0, 30, 400)[seed], growth=0.1 * (seed == 1))
    report = run(plan, str(database_dir), tmp_path)
    assert report.anomalies == [], report.told()
    assert report.committed > 100


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found_in_what_clients_saw(defect: str, database_dir: Path, tmp_path: Path) -> None:
    plan = Plan(1, processes=2, threads=3, transactions=150, kills=0, stops=0, defect=defect)
    assert run(plan, str(database_dir), tmp_path).anomalies != []
