"""The program `mainspring-tender`: `s3heap-tender tend` with the settings of a service."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import run_app
from fdb_schema.serving.service import service_app
from s3heap_tender.cli.services import tend

app = service_app("mainspring-tender", "tender", tend)


def main() -> NoReturn:
    """Run the program."""
    run_app(app)


if __name__ == "__main__":
    main()
