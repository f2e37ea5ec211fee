"""The command `s3heap-tender`: run the services, look at tasks and heap, and mend them."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import run_app
from s3heap_tender.cli import heap, services, tasks
from s3heap_tender.cli.common import app

__all__ = ["app", "heap", "main", "services", "tasks"]


def main() -> NoReturn:
    """Run the command."""
    run_app(app)
