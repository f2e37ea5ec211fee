"""Where in the pool the lanes are that a worker may take from, so that it steps over all others together."""

from __future__ import annotations

from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.requirements import Named, round_up


def first_lane(ch: Changes, total: Named) -> bytes:
    """Where the lanes begin that name nothing before what a worker offers."""
    return min(ch.keys.lane_names((), name) for name, _ in total)


def next_lane(ch: Changes, named: Named, offered: dict[str, int]) -> bytes | None:
    """Where to read on after a lane of which a worker doesn't offer as much: past all that have that in common. None: it does."""
    for place, (name, amount) in enumerate(named):
        if name not in offered:
            here = ch.keys.lane_names(named[:place], name)
            others = [ch.keys.lane_names(named[:place], other) for other in offered]
            behind = ch.keys.lane_names(named[:place]) + b",\xff" if place else ch.keys.lanes()[1]
            return min((one for one in others if one > here), default=behind)
        if amount > round_up(offered[name], 1000):
            return ch.keys.lane_names(named[: place + 1]) + b",\xff"
    return None


def has_all(free: dict[str, int], named: Named) -> bool:
    """Whether of each there is as much free, rounded up as in keys."""
    return all(free.get(name, 0) > 0 and amount <= round_up(free[name], 1000) for name, amount in named)
