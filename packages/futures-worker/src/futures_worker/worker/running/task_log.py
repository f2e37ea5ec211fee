"""What a worker's log says of its tasks: which one, its function and attempt, as text and as fields of a JSON line.

debug    a task was claimed, or is done
info     it failed and is tried again, or was given back unfinished
warning  it failed for good
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from fdb_datamodel import Claim, Claims, Outcome
from fdb_datamodel.rows.records import SHORTAGE

log = logging.getLogger("futures_worker")
MOST: Final = 20
"""Lines of one turn and one level: a thousand failures of one loop are told by number."""
_TEXT: Final = 300


def tell_of_turn(outcomes: Sequence[Outcome], claims: Claims) -> None:
    """Log how claims ended and which were made; what another had decided before (`stale`) isn't ours to tell."""
    debug = log.isEnabledFor(logging.DEBUG)
    heard = outcomes if debug else [outcome for outcome in outcomes if outcome.failure is not None]
    if not heard and not debug:
        return  # nearly every turn: it must cost nothing
    ended: dict[int, list[tuple[Claim, str]]] = {}
    stale, retried = set(claims.stale), set(claims.retried)
    for outcome in heard:
        claim = outcome.claim
        if claim.id in stale:
            continue
        level, text = _ended(outcome, retried)
        if log.isEnabledFor(level):
            ended.setdefault(level, []).append((claim, text))
    if claims and debug:
        ended.setdefault(logging.DEBUG, []).extend((claim, "claimed") for claim in claims)
    for level, told in ended.items():
        for claim, text in told[:MOST]:
            task, function = str(claim.future_id), claim.name or "future"
            extra = {"task": task, "function": function, "attempt": claim.attempt}
            log.log(level, "task %s %s attempt %d: %s", task, function, claim.attempt, text, extra=extra)
        if len(told) > MOST:
            log.log(level, "%d more tasks like these in this turn", len(told) - MOST)


def _ended(outcome: Outcome, retried: Collection[bytes]) -> tuple[int, str]:
    failure = outcome.failure
    if failure is None:
        return logging.DEBUG, "done" if outcome.away is None else f"away ({outcome.away.kind})"
    why = " ".join(f"{failure.reason}: {failure.message}".split())[:_TEXT].removesuffix(": ").rstrip(":")
    if (
        outcome.event != "fail_future"
    ):  # by this worker: that needn't be said to who reads its log, but what its host is short of
        return logging.INFO, f"given back ({why if failure.reason == SHORTAGE else failure.reason})"
    if outcome.claim.id in retried:
        return logging.INFO, f"failed, to be tried again ({why})"
    return logging.WARNING, f"failed for good ({why})"
