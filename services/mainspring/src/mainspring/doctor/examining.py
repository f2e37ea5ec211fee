"""All checks of a cluster together: once and thoroughly for the command, again and again and cheaply for a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fdb_datamodel import FutureDeletedError, FutureInfo, UnknownFutureError, describe_future, validate
from fdb_schema import ClusterSpace, MainspringError, database_url, fdb_error_code, url_of
from fdb_schema.serving.figures import counted
from idempotent_txn import id_status, run
from mainspring.doctor import cluster as checks
from mainspring.doctor.findings import Finding, ok, problem, warning
from mainspring.doctor.machine import check_engine, check_space, check_versions
from mainspring.doctor.observing import Observation, observe

OLD_IDS_SECONDS: Final = 3 * 86_400.0


def examine(
    db: Any, cluster: str, watch: float, min_free: int, places: list[Path], *, deep: bool = False
) -> list[Finding]:
    """All findings. A check that fails is a finding itself, and keeps no other from being made."""
    space = ClusterSpace(cluster)

    def describe(future: bytes) -> FutureInfo | None:
        try:
            return run(db, describe_future, space, future, strategy="off")
        except (UnknownFutureError, FutureDeletedError):
            return None  # meanwhile

    url = url_of(db) or database_url()
    findings = [
        *_guarded("engine", lambda: check_engine(db, space)),
        *_guarded("versions", lambda: check_versions(db, space)),
        *_guarded("space", lambda: check_space(url, min_free, places)),
        *_guarded("ids", lambda: _check_ids(db)),
    ]
    seen: list[Observation] = []

    def look() -> list[Finding]:
        seen.append(observe(db, cluster, watch))
        return []

    findings += _guarded("observation", look)
    for observation in seen:
        findings += checks.check_cluster(observation, cluster)
        for name, check in _CHECKS.items():
            findings += _guarded(name, lambda c=check, o=observation: c(o))  # type: ignore[misc]
        findings += _guarded("futures", lambda o=observation: checks.check_futures(o, describe))  # type: ignore[misc]
    if deep:
        findings += _guarded("invariants", lambda: _check_invariants(db, cluster))
    return findings


def examine_briefly(db: Any, cluster: str, watch: float, pause: Callable[[float], None] = time.sleep) -> list[Finding]:
    """What is wrong with a cluster's services, for who asks every minute: no future is read, and no worker is called."""
    seen = observe(db, cluster, watch, pause, brief=True)
    findings = _guarded("ids", lambda: _check_ids(db))
    for name, check in _CHECKS.items():
        findings += _guarded(name, lambda c=check: c(seen))  # type: ignore[misc]
    return findings


_CHECKS: dict[str, Callable[[Observation], list[Finding]]] = {
    "clock": checks.check_clock,
    "workers": checks.check_workers,
    "sessions": checks.check_sessions,
    "leases": checks.check_leases,
    "heap": checks.check_heap,
    "janitor": checks.check_duties,
}


def _check_ids(db: Any) -> list[Finding]:
    stores = id_status(db)
    oldest = max((store.oldest_age or 0.0 for store in stores), default=0.0)
    kept = sum(store.ids for store in stores)
    if oldest > OLD_IDS_SECONDS:
        what = f"{counted(kept, 'idempotency id is kept', 'idempotency ids are kept')}, the oldest for {oldest / 86_400:.1f} days"
        return [warning("ids", what, "run a janitor, or `mainspring ids clean`")]
    return [ok("ids", counted(kept, "idempotency id is kept", "idempotency ids are kept"))]


def _check_invariants(db: Any, cluster: str) -> list[Finding]:
    violations = validate(db, cluster)
    if not violations:
        return [ok("invariants", "every invariant of the futures holds")]
    return [
        problem("invariants", str(violation), "keep the database as it is, and report it with the workers' logs")
        for violation in violations[:20]
    ]


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:
        if not isinstance(error, (MainspringError, OSError)) and fdb_error_code(error) is None:
            raise
        return [problem(name, f"it can't be checked: {error}", "mend this first")]
