"""The lease's states as two tables: a grant's in the database, and what one process believes about it.

Every transition function names its row. A pair that is in no table is refused with `LeaseStateError`.

    grant (one fencing token)             belief (one process that maintains it)
    ABSENT ─acquired─▶ HELD ─┬─released▶  HELD ─renewed─▶ HELD
                    joined ↻ ├─expired─▶       ─deadline▶ LOST (unreachable)
                   renewed ↻ ├─stolen──▶       ─hold over▶ LOST (max_hold)
                      left ↻ └─forced──▶ ENDED ─ended────▶ LOST (expired, stolen, forced)
                                               ─released─▶ RELEASED
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from lease_locks.grants.errors import LeaseStateError


class Grant(StrEnum):
    """A fencing token's state in the database."""

    ABSENT = "absent"  # not given yet
    HELD = "held"  # the holder's row is there
    ENDED = "ended"  # the row is gone, for ever: tokens are never given twice


class Event(StrEnum):
    """What happens to a grant. All but `RENEWED` are written to the name's history."""

    ACQUIRED = "acquired"
    JOINED = "joined"
    RENEWED = "renewed"
    LEFT = "left"
    RELEASED = "released"
    EXPIRED = "expired"
    STOLEN = "stolen"
    FORCED = "forced"


GRANT_ROWS: Final[dict[tuple[Grant, Event], Grant]] = {
    (Grant.ABSENT, Event.ACQUIRED): Grant.HELD,
    (Grant.HELD, Event.JOINED): Grant.HELD,
    (Grant.HELD, Event.RENEWED): Grant.HELD,
    (Grant.HELD, Event.LEFT): Grant.HELD,
    (Grant.HELD, Event.RELEASED): Grant.ENDED,
    (Grant.HELD, Event.EXPIRED): Grant.ENDED,
    (Grant.HELD, Event.STOLEN): Grant.ENDED,
    (Grant.HELD, Event.FORCED): Grant.ENDED,
}


class Belief(StrEnum):
    """What a process that maintains a grant may believe."""

    HELD = "held"
    LOST = "lost"
    RELEASED = "released"


class News(StrEnum):
    """What a process learns about a grant that it maintains."""

    RENEWED = "renewed"  # its heartbeat committed
    DEADLINE = "deadline"  # FENCE × ttl since the start of its last committed heartbeat
    HOLD_OVER = "hold over"  # max_hold since the grant
    ENDED = "ended"  # the holder's row is gone, by somebody else's doing
    RELEASED = "released"  # the holder's row is gone, by a maintainer's release


BELIEF_ROWS: Final[dict[tuple[Belief, News], Belief]] = {
    (Belief.HELD, News.RENEWED): Belief.HELD,
    (Belief.HELD, News.DEADLINE): Belief.LOST,
    (Belief.HELD, News.HOLD_OVER): Belief.LOST,
    (Belief.HELD, News.ENDED): Belief.LOST,
    (Belief.HELD, News.RELEASED): Belief.RELEASED,
    # A lost lease is never renewed again, and its first reason stays.
    (Belief.LOST, News.RENEWED): Belief.LOST,
    (Belief.LOST, News.DEADLINE): Belief.LOST,
    (Belief.LOST, News.HOLD_OVER): Belief.LOST,
    (Belief.LOST, News.ENDED): Belief.LOST,
    (Belief.LOST, News.RELEASED): Belief.LOST,
    (Belief.RELEASED, News.RENEWED): Belief.RELEASED,
    (Belief.RELEASED, News.DEADLINE): Belief.RELEASED,
    (Belief.RELEASED, News.HOLD_OVER): Belief.RELEASED,
    (Belief.RELEASED, News.ENDED): Belief.RELEASED,
    (Belief.RELEASED, News.RELEASED): Belief.RELEASED,
}


def next_grant(state: Grant, event: Event) -> Grant:
    """The grant's state after `event`. Raises `LeaseStateError` where the table has no such row."""
    try:
        return GRANT_ROWS[state, event]
    except KeyError:
        raise LeaseStateError(f"a grant that is {state} can't be {event}") from None


def next_belief(state: Belief, news: News) -> Belief:
    """The belief after `news`; every pair has a row."""
    return BELIEF_ROWS[state, news]
