"""What each benchmark of tools/ prints with `--json`, as figures of one kind, for the report."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True)
class Figure:
    """A number, and how it is judged where it has a target."""

    row: str
    system: str
    value: float
    unit: str = ""
    target: str = ""
    met: bool | None = None

    def held_to(self, sign: str, limit: float, value: float | None = None, of: str = "") -> Figure:
        """With the target `sign` `limit`, of the value or of another that is made of it, as a ratio."""
        judged = self.value if value is None else value
        shown = f" ({judged:,.2f})" if of else ""
        met = judged >= limit if sign == ">=" else judged <= limit
        return replace(self, target=f"{'≥' if sign == '>=' else '≤'} {limit:,g}{of}{shown}", met=met)


def table(found: dict[str, dict[str, float]], units: dict[str, str] | None = None) -> Iterator[Figure]:
    """Of system → row → value."""
    for system, rows in found.items():
        for row, value in rows.items():
            yield Figure(row, system, value, (units or {}).get(row, ""))


def of_adapters(found: Any) -> Iterator[Figure]:
    """Costs by system."""
    return table(found, importlib.import_module("bench_adapters").ROWS)


def of_datamodel(found: Any) -> Iterator[Figure]:
    """Rates and costs of ours alone."""
    return (Figure(row, "ours", value, unit) for unit, rows in found.items() for row, value in rows.items())


def of_engine(found: Any) -> Iterator[Figure]:
    """Rates by contestant, then the targets."""
    for one in found["rates"]:
        unit = "rows/s" if one["case"] == "bulk" else "transactions/s"
        yield Figure(f"{one['part']}: {one['case']}", one["contestant"], one["per_second"], unit)
    for one in found["targets"]:
        yield Figure(one["what"], "ours", one["found"], one["unit"]).held_to(">=", one["target"])


def of_futures(found: Any) -> Iterator[Figure]:
    """Rows by system, of which ours is held to a multiple of a peer's, then the rows of ours alone."""
    bench = importlib.import_module("bench_futures")
    results = found["results"]
    gates = {row: (peer, *gate) for (row, peer), gate in bench.GATES.items() if peer in results}
    for figure in table(results):
        row = figure.row
        titled = replace(figure, row={**bench.ROWS, **bench.OWN_ROWS}[row])
        if figure.system == "ours" and row in bench.OWN_GATES:
            titled = titled.held_to(*bench.OWN_GATES[row])
        elif figure.system == "ours" and row in gates:
            peer, sign, limit = gates[row]
            titled = titled.held_to(sign, limit, figure.value / results[peer][row], f" x {peer}")
        yield titled


def of_growth(found: Any) -> Iterator[Figure]:
    """The dearest point of each curve, and whether it is flat or n·log n; of workers there is no target."""
    judged: Callable[[Any], tuple[str, bool | None]] = importlib.import_module("bench_growth").judged
    for curve, points in found.items():
        words, met = judged(points)
        title = f"{curve}, {points[0][0]:,} to {points[-1][0]:,}: the dearest"
        yield Figure(
            title, "ours", max(cost for _, cost in points), "µs each", words, None if curve == "workers" else met
        )


def of_heap(found: Any) -> Iterator[Figure]:
    """Rows of ours alone."""
    for figure in table({"ours": found["rows"]}):
        target = found["targets"].get(figure.row)
        yield figure.held_to(*target) if target else figure


def of_heap_requests(found: Any) -> Iterator[Figure]:
    """Counts by how many tasks there are."""
    return table({f"{rows['tasks']:,} tasks": {k: v for k, v in rows.items() if k != "tasks"} for rows in found})


def of_idempotency(found: Any) -> Iterator[Figure]:
    """Rates as parts of the baseline's."""
    for one in found["modes"]:
        figure = Figure(
            f"{one['work']}, threads: {one['threads']}", one["mode"], one["ratio"], "of the baseline's rate"
        )
        yield figure.held_to(">=", one["target"]) if one["target"] else figure


def of_leases(found: Any) -> Iterator[Figure]:
    """Costs by contestant; a memoized call is held to joblib's, where that is measured."""
    for measure, by in found["results"].items():
        unit, limit = found["targets"][measure]
        if measure == "memo":
            limit = round(by.get("joblib.Memory", limit), 3)
        for name, value in by.items():
            ours = name == "lease-locks"
            figure = Figure(measure, "ours" if ours else name, value, unit)
            yield figure.held_to("<=", limit) if ours else figure


def of_objects(found: Any) -> Iterator[Figure]:
    """Times of ours beside memcpy's, and the ratio."""
    for name, value in found["ms"].items():
        yield Figure(name, "ours", value, "ms")
    yield Figure("put", "ours", found["ratio"], "x memcpy").held_to(">=", found["target"])


def of_programs(found: Any) -> Iterator[Figure]:
    """Rows by system."""
    for figure in table(found["results"]):
        titled = replace(figure, row=found["rows"][figure.row])
        target = found["targets"].get(figure.row) if figure.system == "ours" else None
        yield titled.held_to("<=" if figure.row == "resume" else ">=", round(target)) if target else titled


def of_transaction(found: Any) -> Iterator[Figure]:
    """What a transaction takes, and LMDB's part of it."""
    for one in found:
        yield Figure(one["work"], "ours", one["microseconds"], "µs")
        by_hand = (part["microseconds"] for part in one["parts"] if part["layer"] == "LMDB")
        yield Figure(one["work"], "LMDB, by hand", sum(by_hand), "µs")


READERS: Final[dict[str, Callable[[Any], Iterable[Figure]]]] = {
    "adapters": of_adapters, "datamodel": of_datamodel, "engine": of_engine, "futures": of_futures, "growth": of_growth,
    "heap": of_heap, "heap_requests": of_heap_requests, "idempotency": of_idempotency, "leases": of_leases,
    "objects": of_objects, "programs": of_programs, "transaction": of_transaction,
}  # fmt: skip
"""Benchmark → how its JSON is read."""


def parsed(bench: str, printed: str) -> tuple[list[Figure], Any]:
    """The figures in what a benchmark printed, whose last line is JSON, and that JSON.

    Raises ValueError where it isn't, or isn't what this benchmark prints.
    """
    last = (printed.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
        return list(READERS[bench](found)), found
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"bench_{bench}.py printed no figures, but {last[:200]!r}: {type(error).__name__}: {error}"
        ) from error
