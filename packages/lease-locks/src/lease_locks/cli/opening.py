"""What every command that only looks begins with: a database that is there, so that a mistyped path isn't made one."""

from __future__ import annotations

from fdb_schema import open_database
from lease_locks.locks import LeaseManager
from lease_locks.space import LeaseSpace


def look_into(db: str | None, cluster: str, name: str | None = None) -> LeaseManager:
    """A manager over a database that must be there already; `name` is the lease that is asked for, if it is one.

    Raises `NameInvalidError`, and only then `DatabaseUnreachableError`: what is mistyped is so in any database.
    """
    if name is not None:
        LeaseSpace(cluster).lock(name)
    return LeaseManager(open_database(db, create=False), cluster)
