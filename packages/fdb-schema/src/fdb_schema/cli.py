"""How every command of Mainspring looks: the same options, output and exit codes.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 database unreachable, 47 lock stolen, 75 acquire timed out.
A listing prints a table in a terminal and one JSON document with `--json`; errors go to standard error as one line
`error: …`, without a traceback where Mainspring raised them on purpose.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdb_schema.database import URL_VARIABLE
from fdb_schema.errors import EXIT_FAILED, EXIT_UNREACHABLE, MainspringError, fdb_error_code
from fdb_schema.keyspace import CLUSTER_VARIABLE, DEFAULT_CLUSTER
from fdb_schema.logs import printable, redacted

DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Database: embedded:PATH, memory: or fdb:[CLUSTER_FILE]; without it embedded:./.mainspring.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", envvar=CLUSTER_VARIABLE, metavar="NAME", help="Name of the cluster's keyspace.")
]
MetricsAddressOption = Annotated[str, typer.Option("--metrics-address", help="Address of --metrics-port.")]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Port for Prometheus (/metrics); 0 takes any free one.",
        show_default="none",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]

# Names and failures are other people's text: [brackets] and :colons: in it are no markup.
_LITERAL: Final[dict[str, Any]] = {"markup": False, "emoji": False}

__all__ = [
    "DEFAULT_CLUSTER",
    "ClusterOption",
    "DbOption",
    "JsonOption",
    "MetricsAddressOption",
    "MetricsPortOption",
    "command_app",
    "fail",
    "in_terminal",
    "print_json",
    "print_rows",
    "printable",
    "run_app",
    "say",
    "version_option",
]


def command_app(distribution: str, help_text: str) -> typer.Typer:
    """A Typer application with `--version` of `distribution`, and no tracebacks of locals."""
    app = typer.Typer(
        help=help_text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def options(_version: bool = False) -> None:
        pass

    options.__annotations__["_version"] = version_option(distribution)
    options.__doc__ = help_text
    app.callback()(options)
    return app


def version_option(distribution: str) -> Any:
    """The annotation of a command's parameter `--version`, which prints that of `distribution` and exits."""

    def show(wanted: bool) -> None:
        if wanted:
            try:
                typer.echo(f"{distribution} {version(distribution)}")
            except PackageNotFoundError:
                typer.echo(f"{distribution} (run from a source tree)")
            raise typer.Exit

    return Annotated[bool, typer.Option("--version", callback=show, is_eager=True, help="Print the version and exit.")]


def run_app(app: typer.Typer) -> NoReturn:
    """Run `app` as a program: errors become one line and an exit code."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: nobody would learn how a process ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        app()
    except MainspringError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(EXIT_FAILED) from None
    except Exception as error:
        code = fdb_error_code(error)
        if code is None:
            print(printable(redacted(traceback.format_exc())), end="", file=sys.stderr)
            raise SystemExit(EXIT_FAILED) from None
        fail(f"the database answered {error} (FoundationDB error {code})", EXIT_UNREACHABLE)
    raise SystemExit(0)


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Print `error: message` to standard error and exit with `code`."""
    print(printable(redacted(f"error: {message}")), file=sys.stderr)
    raise SystemExit(code)


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may hold what others named or wrote."""
    print(printable(text), file=sys.stderr if err else sys.stdout)


def print_json(value: Any) -> None:
    """One JSON document; bytes as hexadecimal text, other unknown values as their text."""

    def plain(item: Any) -> Any:
        return item.hex() if isinstance(item, bytes) else str(item)

    print(json.dumps(value, default=plain, ensure_ascii=False))


def print_rows(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    empty: str = "nothing found",
    show: Callable[[str, Any], str] | None = None,
    style: Callable[[str, Any], str] | None = None,
    flowing: str | None = None,
) -> None:
    """A listing: `rows` as a table of `columns`, or all their fields as a JSON array.

    `show(column, value)` gives a cell's text where `str` isn't good enough, `style(column, value)` its look in a terminal.
    There the column named by `flowing` takes what width the others leave and goes on over several lines; the others take one
    line, cut at its end where it must be.
    """
    listed = list(rows)
    if as_json:
        print_json(listed)
        return
    if not listed:
        Console(stderr=True, **_LITERAL).print(empty, style="dim", soft_wrap=True)
        return
    console = Console(**_LITERAL)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        one_line = flowing is not None and column != flowing and console.is_terminal
        table.add_column(column.replace("_", " "), overflow="ellipsis" if one_line else "fold", no_wrap=one_line)
    for row in listed:
        cells = []
        for column in columns:
            value = row.get(column)
            cell = show(column, value) if show is not None else "" if value is None else str(value)
            look = style(column, value) if style is not None else ""
            cells.append(Text(printable(cell).replace("\n", "\\n"), style=look))
        table.add_row(*cells)
    if not console.is_terminal:
        # A pipe has no width: never cut or wrap what a program will read.
        console = Console(width=max(200, console.width), soft_wrap=True, **_LITERAL)
    console.print(table)


def in_terminal() -> bool:
    """Whether a person reads standard output, and so wants little of much."""
    return Console().is_terminal
