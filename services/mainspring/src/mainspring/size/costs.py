"""What one transaction of each kind costs, and what each future, edge or lease in it adds.

Nothing here is estimated: `tests/support/sizes.py` makes every kind of transaction over an engine in memory and prints this table from what it
counted, and `test_size` fails where the two differ.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Cost(NamedTuple):
    """read: keys, and ranges in which there was nothing. Bytes are of keys and values. conflicts: read conflict ranges."""

    transactions: float = 0
    commits: float = 0
    read: float = 0
    read_bytes: float = 0
    written: float = 0
    written_bytes: float = 0
    conflicts: float = 0
    watches: float = 0

    def times(self, number: float) -> Cost:
        return Cost(*(one * number for one in self))

    def plus(self, other: Cost) -> Cost:
        return Cost(*(one + another for one, another in zip(self, other, strict=True)))


class Kind(NamedTuple):
    """Of transaction: what it costs with nothing in it, and each item."""

    fixed: Cost
    each: Cost = Cost()


COSTS: Final[dict[str, Kind]] = {
    "submit": Kind(
        Cost(transactions=1, commits=1, written=1, written_bytes=30.8),
        Cost(read=1, written=2, written_bytes=170, conflicts=1),
    ),
    "arguments": Kind(Cost(), Cost(written=1, written_bytes=46.2)),
    "turn": Kind(
        Cost(transactions=1, commits=1, read=3, read_bytes=50, written=4, written_bytes=310, conflicts=2),
        Cost(read=3, read_bytes=180, written=3, written_bytes=380, conflicts=2),
    ),
    "mail": Kind(Cost(transactions=1, read=1, read_bytes=160, watches=1)),
    "clear": Kind(Cost(transactions=1, commits=1, written=1, written_bytes=110)),
    "release": Kind(
        Cost(transactions=1, commits=1, written_bytes=1),
        Cost(read=2, read_bytes=70, written=1, written_bytes=39, conflicts=1),
    ),
    "edge": Kind(Cost(), Cost(read=13.4, read_bytes=520, written=9, written_bytes=490, conflicts=8.9)),
    "collect": Kind(Cost(), Cost(read=17.7, read_bytes=1490, written=7, written_bytes=310, conflicts=12)),
    "collect_pass": Kind(Cost(transactions=9, read=14, read_bytes=160)),
    "worker_beat": Kind(
        Cost(transactions=1, commits=1, read=2, read_bytes=60, written=1, written_bytes=70, conflicts=1)
    ),
    "carried_beat": Kind(Cost(), Cost(read=1, read_bytes=30.1, written=1, written_bytes=70)),
    "client_beat": Kind(
        Cost(transactions=1, commits=1, read=1, read_bytes=20, written=1, written_bytes=60, conflicts=1)
    ),
    "clock": Kind(Cost(transactions=1, commits=1, read=4, read_bytes=16, written=1, written_bytes=34, conflicts=1)),
    "look": Kind(Cost(transactions=1, read=3, read_bytes=130), Cost(read=2, read_bytes=130)),
    "lease": Kind(
        Cost(), Cost(transactions=2, commits=2, read=3.1, read_bytes=120, written=5, written_bytes=430, conflicts=2)
    ),
    "lease_beat": Kind(
        Cost(transactions=1, commits=1, read=1, read_bytes=10, written=1, written_bytes=60, conflicts=1)
    ),
    "heap_run": Kind(
        Cost(), Cost(transactions=3, commits=3, read=19, read_bytes=730, written=15, written_bytes=940, conflicts=5)
    ),
    "heap_turn": Kind(Cost(transactions=1, read=80, read_bytes=110)),
}
