"""The program `mainspring-janitor`: duties of cleaning, each under a lease."""

from __future__ import annotations

from typing import NoReturn

from fdb_schema.cli import run_app
from fdb_schema.serving.service import service_app
from mainspring_janitor.cleaning import clean

app = service_app("mainspring-janitor", "janitor", clean)


def main() -> NoReturn:
    """Run the program."""
    run_app(app)


if __name__ == "__main__":
    main()
