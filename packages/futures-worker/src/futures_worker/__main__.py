"""`python -m futures_worker` is the command `futures-worker`."""

from __future__ import annotations

from fdb_schema.serving.programs import start


def main() -> None:
    """The console script."""
    start("futures-worker", "futures_worker.cli")


if __name__ == "__main__":
    main()
