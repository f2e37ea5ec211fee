"""The long form: a range of seeds, some at a time, resumable; every seed's report is a line of a file.

SIGTERM ends it after the runs that are under way; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from chaos.harness import report_of
from chaos.plan import plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "futures-worker" / "failure-modes.md"
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def summary(rows: list[dict[str, Any]]) -> str:
    """The figures of many runs, as a table for the documentation."""
    blows: Counter[str] = Counter()
    states: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for row in rows:
        blows.update(row["blows"])
        states.update(row["states"])
        reasons.update(row["reasons"])
    failed = [row["seed"] for row in rows if row["wrong"]]
    lines = [
        "| | |",
        "|---|---|",
        f"| seeded runs | {len(rows):,} |",
        f"| runs in which something did not hold | {len(failed):,}{' (' + ', '.join(map(str, failed[:20])) + ')' if failed else ''} |",
        f"| futures | {sum(row['futures'] for row in rows):,}, starts {sum(row['starts'] for row in rows):,} |",
        f"| ended | {', '.join(f'{n:,} {state}' for state, n in sorted(states.items()))} |",
        f"| failed for | {', '.join(f'{reason} {n:,}' for reason, n in reasons.most_common())} |",
        f"| blows | {', '.join(f'{blow} {n:,}' for blow, n in sorted(blows.items()))} |",
    ]
    return "\n".join(lines)


def write(figures: str) -> None:
    """Put the figures into the page on failures."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\nThe last runs:\n\n{figures}\n{END}{tail}")


def tell(number: str, row: dict[str, Any]) -> None:
    """Say what became of a seed."""
    state = "WRONG" if row["wrong"] else "ok"
    print(f"{number} seed {row['seed']}: {state}, {row['futures']} futures in {row['seconds']} s", flush=True)
    for line in row["wrong"]:
        print("    " + line.replace("\n", "\n    "), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END, END excluded; or one seed")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--db", help="a database all runs share, each under a name of its own: fdb: or fdb:/path/fdb.cluster"
    )
    parser.add_argument("--load", type=float, default=1000.0, help="begin no run beside others over this load average")
    parser.add_argument(
        "--results", type=Path, default=Path(".chaos/results.jsonl"), help="seeds in it are not run again"
    )
    parser.add_argument("--again", action="store_true", help="run seeds again that went wrong before")
    parser.add_argument("--show", action="store_true", help="print the plans and run nothing")
    parser.add_argument("--write", action="store_true", help="put those figures into the page on failures")
    parser.add_argument("--summary", action="store_true", help="print the figures of the results file and run nothing")
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    if given.show:
        print("\n".join(plan(seed).describe() for seed in seeds))
        return 0
    rows: dict[int, dict[str, Any]] = {}
    if given.results.exists():
        for line in given.results.read_text().splitlines():
            row = json.loads(line)
            rows[row["seed"]] = row
    if given.summary or given.write:
        print(summary(list(rows.values())))
        if given.write:
            write(summary(list(rows.values())))
        return 0
    left = [seed for seed in seeds if seed not in rows or (given.again and rows[seed]["wrong"])]
    given.results.parent.mkdir(parents=True, exist_ok=True)
    keep = given.results.parent / "failed"
    spawn = multiprocessing.get_context("spawn")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    signal.signal(signal.SIGTERM, lambda *_: left.clear())
    number, runs = 0, len(left)
    with ProcessPoolExecutor(given.jobs, mp_context=spawn) as pool:
        under_way: set[Future[dict[str, Any]]] = set()
        while left or under_way:
            if left and len(under_way) < given.jobs and (not under_way or os.getloadavg()[0] < given.load):
                under_way.add(pool.submit(report_of, left.pop(0), keep, given.db))
            ended, under_way = wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED)
            for done in ended:
                number += 1
                row = done.result()
                rows[row["seed"]] = row
                with given.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                tell(f"{number}/{runs}", row)
    chosen = [rows[seed] for seed in seeds if seed in rows]
    print(summary(chosen))
    return 1 if any(row["wrong"] for row in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
