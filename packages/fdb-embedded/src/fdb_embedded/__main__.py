"""`python -m fdb_embedded run SCRIPT ...` gives any FoundationDB program the engine; other commands are `fdb-embedded`'s."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from . import binding


def main(arguments: list[str]) -> None:
    """Run a script or module with the engine in the place of libfdb_c, or a command of the command line."""
    if arguments[:1] != ["run"]:
        from .cli import main as command_line

        command_line()
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
        parser.error(f"there is no script {options.script}")
    if options.db is not None and options.db.startswith("fdb:"):
        parser.error(f"--db {options.db} is the URL of a cluster: the engine takes a directory")
    binding.serve_everything_from(options.db or binding.default_name())
    binding.load(api_version=None)
    sys.argv = [options.script, *options.arguments]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
