"""The command `fdb-embedded`: look at a database and look after it.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 the database can't be opened.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from typer.core import TyperCommand

from . import __version__
from .binding.loading import default_name, load
from .engine import status
from .errors import EmbeddedError, InvalidOption
from .opening import close
from .opening import open as open_database
from .sharing import private
from .tools import archive, maintenance
from .tools.text import parse, printable, show

app = typer.Typer(
    help="Look at an embedded FoundationDB database and look after it. Keys are text with \\xNN escapes, or tuples: ('a', 1).",
    epilog="To run a program written for FoundationDB on the engine: python -m fdb_embedded run [--db PATH] SCRIPT.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="embedded:PATH, or its directory; without it MAINSPRING_DB, else embedded:./.mainspring.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Raw = Annotated[bool, typer.Option("--raw", help="Never show bytes as tuples.")]


class _Command(TyperCommand):
    """A command whose help names its arguments and says nothing of Python's types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [(str(one.metavar), one.required) for one in self.params if one.param_type_name == "argument"]
        return [self.options_metavar or "", *(name if required else f"[{name}]" for name, required in names)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = [(one, one.get_help_record(ctx)) for one in self.get_params(ctx)]
        arguments = [(str(one.metavar), row[1]) for one, row in records if row and one.param_type_name == "argument"]
        options = [row for one, row in records if row and one.param_type_name != "argument"]
        for heading, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


Key = Annotated[str, typer.Argument(metavar="KEY")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fdb-embedded {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Look at an embedded FoundationDB database and look after it."""


@contextlib.contextmanager
def _database(name: str | None, create: bool = False) -> Iterator[Any]:
    """The database of --db, closed afterwards; errors end the command with their exit code."""
    path = _path_of(name)
    with _told(UNREACHABLE):
        if not create and not path.startswith(("memory:", ":memory:")) and not (Path(path) / "data.mdb").exists():
            _fail(f"there is no database in {path}", UNREACHABLE)
    try:
        database = open_database(path)
    except EmbeddedError as error:
        _fail(str(error), UNREACHABLE)
    try:
        with _told():
            yield database
    finally:
        close(database)


def _path_of(name: str | None) -> str:
    with _told():
        name = name or default_name()
    if name.startswith("fdb:"):
        _fail(f"{name} is a FoundationDB cluster: this command looks at embedded databases (embedded:PATH)", USAGE)
    return name.removeprefix("embedded:")


@contextlib.contextmanager
def _told(code: int = FAILED) -> Iterator[None]:
    """Errors end the command with their exit code, `code` where the system refuses something."""
    try:
        yield
    except EmbeddedError as error:
        _fail(str(error), USAGE if isinstance(error, InvalidOption) else FAILED)
    except load().FDBError as error:
        _fail(str(error), FAILED)
    except BrokenPipeError:
        raise  # who read has seen enough: the end of the command line is quiet about it
    except OSError as error:
        _fail(f"{error.filename or 'it'} can't be read or written: {error.strerror or error}", code)


def _fail(text: str, code: int) -> Any:
    typer.echo(printable(f"error: {text}"), err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int], None]]:
    """Count rows on a terminal's standard error; silent elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda rows: bar.advance(task, rows)


@app.command("status", cls=_Command)
def status_(db: Db = None, as_json: Json = False) -> None:
    """Version, sizes, readers, and what the log holds."""
    with _database(db) as database:
        engine = database.dpointer.engine
        figures = {
            "path": str(engine.path or ":memory:"),
            **status.measure(engine),
            "journaled": engine.store.page.journaled,
        }
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            _print_figures(figures)


_MEANINGS = {
    "version": "of the last commit",
    "readers": "transactions that keep old pages",
    "journaled": "commits since the last checkpoint lie in a journal",
}


def _print_figures(figures: dict[str, Any]) -> None:
    """A line per figure, as people read them."""
    width = max(map(len, figures))
    for name, value in figures.items():
        told = "none" if value is None else ("no", "yes")[value] if isinstance(value, bool) else value
        meaning = f"  ({_MEANINGS[name]})" if name in _MEANINGS else ""
        typer.echo(printable(f"{name.replace('_', ' '):<{width}}  {told}{meaning}"))


@app.command("show", hidden=True, cls=_Command)
@app.command(cls=_Command)
def get(key: Key, db: Db = None, as_json: Json = False, raw: Raw = False) -> None:
    """Print the value of KEY; exit code 3 when it isn't there."""
    tuples = load().tuple
    with _database(db) as database:
        value = database[parse(key, tuples)]
        if value is None:
            _fail(f"no key {key}", NOT_FOUND)
        typer.echo(json.dumps({"key": key, "value": show(value, tuples, raw)}) if as_json else show(value, tuples, raw))


@app.command("set", cls=_Command)
def set_(key: Key, value: Annotated[str, typer.Argument(metavar="VALUE")], db: Db = None) -> None:
    """Set KEY to VALUE; where there is no database it makes one."""
    tuples = load().tuple
    with _database(db, create=True) as database:
        database[parse(key, tuples)] = parse(value, tuples)


@app.command("range", hidden=True, cls=_Command)
@app.command("ls", cls=_Command)
def range_(
    begin: Annotated[str, typer.Argument(metavar="BEGIN")] = "",
    end: Annotated[str, typer.Argument(metavar="END", help="Without it: all keys that start with BEGIN.")] = "",
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="At most so many rows; 0 for all.")] = 100,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the end.")] = False,
    db: Db = None,
    as_json: Json = False,
    raw: Raw = False,
) -> None:
    """List the rows of [BEGIN, END).

    With --json one document per line.
    """
    fdb = load()
    with _database(db) as database:
        low = parse(begin, fdb.tuple)
        high = parse(end, fdb.tuple) if end else (fdb.impl.strinc(low) if low.strip(b"\xff") else b"\xff")
        for row in database.create_transaction().snapshot.read_range(low, high, limit, reverse):
            key, value = show(row[0], fdb.tuple, raw), show(row[1], fdb.tuple, raw)
            typer.echo(json.dumps({"key": key, "value": value}) if as_json else f"{key}\t{value}")


@app.command(cls=_Command)
def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write; - for standard output.")] = "-",
    prefix: Annotated[str, typer.Option(metavar="KEY", help="Only keys that start so.")] = "",
    private_rows: Annotated[
        bool, typer.Option("--private", help="Rows that programs marked as secrets too; they make new ones without.")
    ] = False,
    db: Db = None,
) -> None:
    """Write all rows but secrets, at one version, as lines of JSON."""
    fdb = load()
    with _database(db) as database, _progress("rows") as progress:
        low = parse(prefix, fdb.tuple)
        high = fdb.impl.strinc(low) if low.strip(b"\xff") else b"\xff"
        with contextlib.ExitStack() as stack:
            out = sys.stdout if file == "-" else stack.enter_context(private.create(Path(file)))
            rows = archive.dump(database.dpointer.engine, low, high, out, progress, private=private_rows)
        typer.echo(f"{rows} rows", err=True)


@app.command("load", cls=_Command)
def load_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What to read; - for standard input."),
    ] = Path("-"),
    db: Db = None,
    force: Annotated[bool, typer.Option("--force", help="Load into a database that isn't empty.")] = False,
) -> None:
    """Set the rows of a dump.

    Of a file that is cut or damaged it sets none.
    """
    if file != Path("-") and not file.is_file() and not file.is_fifo():
        _fail(f"there is no file {file}", USAGE)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_dump_in(file))
        if file.is_file():  # it can be read twice
            for _ in archive.read(source):
                pass
            source.seek(0)
        database = stack.enter_context(_database(db, create=True))
        progress = stack.enter_context(_progress("rows"))
        if not force and database.get_range(b"", b"\xff", limit=1):
            raise EmbeddedError("the database isn't empty; --force loads into it all the same")
        done = 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            progress(rows)

        try:
            archive.load(database, archive.read(source), count)
        except BaseException:
            if done:
                typer.echo(f"note: {done} rows of the dump are in the database: it holds a part of it", err=True)
            raise
        typer.echo(f"{done} rows", err=True)


@contextlib.contextmanager
def _dump_in(file: Path) -> Iterator[IO[str]]:
    """The lines of a file, or of standard input; what is wrong with them ends the command with its exit code."""
    with contextlib.ExitStack() as stack:
        # A dump is ASCII: what isn't that is damage in its line.
        if file != Path("-"):
            source: IO[str] = stack.enter_context(file.open(encoding="ascii", errors="replace"))
        else:
            source = sys.stdin
            if isinstance(source, io.TextIOWrapper):
                source.reconfigure(encoding="ascii", errors="replace")
        with _told():
            yield source


@app.command(cls=_Command)
def compact(db: Db = None) -> None:
    """Rewrite the data file without its free pages.

    Nobody else may have the database open.
    """
    with _database(db) as database:
        before, after = maintenance.compact(database.dpointer.engine)
        typer.echo(f"{before} -> {after} bytes")


@app.command(cls=_Command)
def check(db: Db = None, as_json: Json = False) -> None:
    """Read everything and report what is damaged.

    Exit code 1 when anything is.
    """
    with _database(db) as database:
        report = maintenance.check(database.dpointer.engine)
        if as_json:
            typer.echo(json.dumps(report))
        else:
            _print_figures({name: value for name, value in report.items() if name != "problems"})
            for problem in report["problems"]:
                typer.echo(printable(f"problem: {problem}"), err=True)
        if report["problems"]:
            raise typer.Exit(FAILED)


def main() -> None:
    """The console script."""
    app()
