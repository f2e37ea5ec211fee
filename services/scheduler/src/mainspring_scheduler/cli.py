"""The program `mainspring-scheduler`: due tasks become futures on the workers."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import run_app
from fdb_schema.serving.service import service_app
from mainspring_scheduler.scheduling import schedule

app = service_app("mainspring-scheduler", "scheduler", schedule)


def main() -> NoReturn:
    """Run the program."""
    run_app(app)


if __name__ == "__main__":
    main()
