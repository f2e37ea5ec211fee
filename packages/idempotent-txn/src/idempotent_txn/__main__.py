"""`python -m idempotent_txn` is the command `idempotent-txn`."""

from __future__ import annotations

from fdb_schema.serving.programs import start


def main() -> None:
    """The console script."""
    start("idempotent-txn", "idempotent_txn.cli")


if __name__ == "__main__":
    main()
