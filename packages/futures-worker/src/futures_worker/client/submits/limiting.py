"""`Client.limit`: how many futures of a kind run at once, or begin in a second, on all workers together."""

from __future__ import annotations

from fdb_datamodel.transitions.limits import LimitStatus, list_limits, missing_limits, set_limit
from futures_worker.client.basis.options import check_name
from futures_worker.client.context import ClientContext
from futures_worker.database import ask

MOST_CONCURRENT = 1 << 31
LEAST_RATE, MOST_RATE = 1e-6, 1e6


def limit(context: ClientContext, name: str, concurrent: int | None, per_second: float | None) -> None:
    """See `Client.limit`."""
    check_name(name, "a limit")
    if concurrent is not None and (
        isinstance(concurrent, bool) or not isinstance(concurrent, int) or not 1 <= concurrent <= MOST_CONCURRENT
    ):
        raise ValueError(f"concurrent is a whole number, 1 or more, or None for any, found {concurrent!r}")
    if per_second is not None and (
        isinstance(per_second, bool)
        or not isinstance(per_second, (int, float))
        or not LEAST_RATE <= per_second <= MOST_RATE
    ):
        raise ValueError(
            f"per_second is a number from {LEAST_RATE:g} to {MOST_RATE:g}, or None for any, found {per_second!r}"
        )
    context()
    while ask(context.db, set_limit, context.space, name, concurrent, per_second, strategy="off"):
        pass


def limits(context: ClientContext) -> list[LimitStatus]:
    """See `Client.limits`."""
    context()
    found: list[LimitStatus] = ask(context.db, list_limits, context.space, strategy="off")
    return found


def known_limits(context: ClientContext, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, if there are such limits. Raises ValueError."""
    if not context.limits.issuperset(names):
        missing = ask(context.db, missing_limits, context.space, names, strategy="off")
        if missing:
            raise ValueError(
                f"cluster {context.cluster!r} has no limit {missing[0]!r}: make it, as client.limit({missing[0]!r}, concurrent=5)"
            )
        context.limits.update(names)
    return names
