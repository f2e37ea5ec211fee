"""`python -m lease_locks` is the command `lease-locks`."""

from __future__ import annotations

from fdb_schema.serving.programs import start


def main() -> None:
    """The console script."""
    start("lease-locks", "lease_locks.cli")


if __name__ == "__main__":
    main()
