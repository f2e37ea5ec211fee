"""The long form: a range of seeds at full size, on the embedded engine or a cluster."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from histories.runner import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, END excluded; or one seed")
    parser.add_argument("--transactions", type=int, default=400, help="of each thread")
    parser.add_argument("--url", help="fdb:FILE of a cluster whose keys l/, r/ and p/ may be erased")
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    wrong = total = 0
    for seed in range(int(first), int(end) if end else int(first) + 1):
        rng = random.Random(seed)
        plan = Plan(
            seed,
            processes=rng.randint(2, 8),
            threads=rng.randint(1, 6),
            transactions=given.transactions,
            kills=rng.randint(0, 4),
            stops=rng.randint(0, 4),
            held=rng.choice([0, 0, 20, 300]),
            growth=rng.choice([0.0, 0.02, 0.1]),
        )
        folder = Path(tempfile.mkdtemp(prefix="mainspring-history-"))
        if given.url:
            _erase(given.url)
        report = run(plan, given.url or str(folder / "db"), folder / "logs")
        total += report.transactions
        print(f"seed {seed}: {report.told()}", flush=True)
        if report.anomalies:
            wrong += 1
            print(f"    {plan}\n    its logs are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"{total:,} transactions in all, {wrong} runs with anomalies")
    return 1 if wrong else 0


def _erase(url: str) -> None:
    from fdb_schema import open_database

    db = open_database(url)
    for prefix in (b"l/", b"p/", b"r/"):
        db.clear_range(prefix, prefix + b"\xff")


if __name__ == "__main__":
    sys.exit(main())
