"""The program `mainspring-worker`: `futures-worker run` with the settings of a service."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import run_app
from fdb_schema.serving.service import service_app
from futures_worker.cli import run

app = service_app("mainspring-worker", "worker", run)


def main() -> NoReturn:
    """Run the program."""
    run_app(app)


if __name__ == "__main__":
    main()
