"""What every command but `run` begins with: a database that answers within a time, and is there already for one that only
looks, so that a mistyped path isn't made one."""

from __future__ import annotations

from typing import Any, Final

from fdb_schema import open_database
from lease_locks.grants.space import LeaseSpace
from lease_locks.locks import LeaseManager

ANSWER_SECONDS: Final = 10.0
"""For which a transaction of a command waits; then the database is unreachable."""


def look_into(db: str | None, cluster: str, name: str | None = None, *, patient: bool = False) -> LeaseManager:
    """A manager over a database that must be there already; `name` is the lease that is asked for, if it is one.

    `patient`: the caller says how long each transaction may wait.

    Raises `NameInvalidError`, and only then `DatabaseUnreachableError`: what is mistyped is so in any database.
    """
    if name is not None:
        LeaseSpace(cluster).lock(name)
    database = open_database(db, create=False)
    return LeaseManager(database if patient else _bounded(database), cluster)


def act_on(db: str | None, cluster: str) -> LeaseManager:
    """A manager over a database that is made where there is none."""
    return LeaseManager(_bounded(open_database(db)), cluster)


def _bounded(database: Any) -> Any:
    database.options.set_transaction_timeout(round(ANSWER_SECONDS * 1000))
    return database
