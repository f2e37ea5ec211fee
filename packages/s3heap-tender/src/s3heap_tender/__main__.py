"""`python -m s3heap_tender` is the command `s3heap-tender`."""

from __future__ import annotations

from fdb_schema.serving.programs import start


def main() -> None:
    """The console script."""
    start("s3heap-tender", "s3heap_tender.cli")


if __name__ == "__main__":
    main()
