"""`python -m fdb_embedded run SCRIPT ...` gives any FoundationDB program the engine; other commands are `fdb-embedded`'s."""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from pathlib import Path

from .binding import loading as binding
from .errors import InvalidOption


def main(arguments: list[str]) -> None:
    """Run a script or module with the engine in the place of libfdb_c, or a command of the command line."""
    if arguments[:1] != ["run"]:
        command()
        return
    parser = argparse.ArgumentParser(
        prog="python -m fdb_embedded run",
        description="Run a Python program written for FoundationDB with the embedded engine. "
        "Whatever cluster file it opens, it gets the database of --db.",
    )
    parser.add_argument("--db", metavar="PATH", help="directory of the database (MAINSPRING_DB, else ./.mainspring)")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    rest.required = False  # Python 3.11 names it among the missing
    options = parser.parse_args(arguments[1:])
    if not options.module and not Path(options.script).exists():
        parser.exit(2, f"error: there is no script {options.script}\n")
    if options.db is not None and options.db.startswith("fdb:"):
        parser.exit(2, f"error: --db {options.db} is the URL of a cluster: the engine takes a directory\n")
    try:
        binding.serve_everything_from(options.db or binding.default_name())
    except InvalidOption as error:
        parser.exit(2, f"error: {error}\n")
    binding.load(api_version=None)
    sys.argv = [options.script, *options.arguments]
    if options.module:
        if not _is_module(options.script):
            parser.exit(2, f"error: there is no module {options.script}\n")
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


def command() -> None:
    """The console script; where the extra that brings a command line isn't installed it says so."""
    try:
        for name in ("typer", "rich"):  # also what is imported where it is used alone
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        from .cli import main as command_line
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"error: this command needs {error.name}, which isn't installed: pip install 'fdb-embedded[cli]', "
            "or in a checkout: python tools/install.py 'fdb-embedded[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    command_line()


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return False  # a package on the way to it is missing
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
