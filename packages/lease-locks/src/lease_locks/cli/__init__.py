"""The command `lease-locks`: leases for people and shell scripts, and what the memo holds."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import command_app, run_app
from lease_locks.cli import doctor, forgetting, leases, memos, running

app = command_app("lease-locks", "Leases that need no clock, and runs that are never computed twice.")
leases.register(app)
doctor.register(app)
running.register(app)
memos.register(app)
forgetting.register(app)


def main() -> NoReturn:
    """Run the command; exit codes as everywhere in Mainspring."""
    run_app(app)


__all__ = ["app", "main"]
