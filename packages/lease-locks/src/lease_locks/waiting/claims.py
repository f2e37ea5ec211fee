"""What is asked of an acquisition, checked, and what needs no acquisition."""

from __future__ import annotations

import secrets
from typing import Any, Final

from lease_locks.grants.errors import LeaseError
from lease_locks.grants.records import check_meta
from lease_locks.grants.transitions import Claim
from lease_locks.lease import Lease, in_hand
from lease_locks.session.session import Session

MOST_SECONDS: Final = 10**9 - 1  # of a ttl
MOST_SLOTS: Final = 2**31 - 1
LONGEST_WAIT: Final = 86_400.0 * 365


def claim_of(
    session: Session,
    *,
    ttl: float | None = None,
    mode: str = "exclusive",
    slots: int = 1,
    fair: bool = True,
    max_hold: float | None = None,
    meta: dict[str, Any] | None = None,
    maintained: bool = True,
    adopt: bool = False,
) -> Claim:
    """A claim of this process with a new owner's id. Raises `ValueError`, `TypeError` for what can't be asked for."""
    if mode not in ("exclusive", "shared"):
        raise ValueError(f'mode must be "exclusive" or "shared", not {mode!r}')
    if not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"slots must be a whole number from 1 to {MOST_SLOTS:,}, not {slots!r:.80}")
    if ttl is not None:
        check_seconds("ttl", ttl)
    if max_hold is not None:
        check_seconds("max_hold", max_hold)
    check_meta(meta)
    return Claim(
        owner=secrets.token_bytes(16),
        session=session.sid,
        ttl=session.ttl if ttl is None else float(ttl),
        mode=mode,
        slots=slots,
        fair=fair,
        max_hold=max_hold or 0.0,
        maintained=maintained,
        adopt=adopt,
        meta=meta,
        host=session.record.host,
        pid=session.record.pid,
        wall_us=session.clocks.wall_us(),
    )


def limit(timeout: float | None) -> float | None:
    """A wait's time limit; what is longer than anybody waits is none. Raises `ValueError`."""
    if timeout is None:
        return None
    if not (isinstance(timeout, int | float) and timeout >= 0):
        raise ValueError(f"timeout must be None or seconds from 0 on, not {timeout!r}")
    return None if timeout > LONGEST_WAIT else timeout


def check_seconds(what: str, value: float) -> None:
    """Raises `ValueError` unless `value` is a time to live."""
    if not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise ValueError(f"{what} must be a positive number of seconds, at most {MOST_SECONDS}, not {value!r}")


def reentered(session: Session, name: str, owner: Any, mode: str) -> Lease | None:
    """The lease on `name` that `owner`, a thread or task, holds already, once more; None where it holds none."""
    held = [part for part in session.ledger.parts if part.name == name and part.owner is owner]
    own = [lease for part in held if (lease := in_hand(session, part)).held]
    if not own:
        return None
    fitting = [one for one in own if mode == "shared" or one.mode == mode][:1]
    if not fitting:
        raise LeaseError(f"lease {name!r} is held here as {own[0].mode} and can't become {mode}: release it first")
    fitting[0].part.depth += 1
    return fitting[0]
