"""How every command of Mainspring looks: the same options, output and exit codes.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 database unreachable, 47 lock stolen, 75 acquire timed out.
A listing prints a table in a terminal and one JSON document with `--json`; errors go to standard error as one line
`error: …`, without a traceback where Mainspring raised them on purpose.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from fdb_schema.database import URL_VARIABLE
from fdb_schema.errors import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, MainspringError, fdb_error_code
from fdb_schema.keyspace import CLUSTER_VARIABLE, DEFAULT_CLUSTER
from fdb_schema.serving.figures import WHOLE, plain, told
from fdb_schema.serving.help import EPILOG, CommandApp
from fdb_schema.serving.logs import JSON_ESCAPES, printable, redacted

# rich, and what reads the versions of packages, are imported where they are used: services start without.
if TYPE_CHECKING:
    from fdb_schema.serving.tables import table_of

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
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="List so many at most.", show_default="all")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]

# Names and failures are other people's text: [brackets] and :colons: in it are no markup.
_LITERAL: Final[dict[str, Any]] = {"markup": False, "emoji": False}

__all__ = [
    "DEFAULT_CLUSTER",
    "ClusterOption",
    "CommandApp",
    "DbOption",
    "DryRunOption",
    "JsonOption",
    "LimitOption",
    "MetricsAddressOption",
    "MetricsPortOption",
    "command_app",
    "completing",
    "fail",
    "hanging",
    "in_terminal",
    "print_json",
    "print_record",
    "print_rows",
    "printable",
    "run_app",
    "say",
    "seconds_of",
    "table_of",
    "version_option",
]


def __getattr__(name: str) -> Any:
    if name == "table_of":
        from fdb_schema.serving.tables import table_of

        return table_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def command_app(distribution: str, help_text: str) -> CommandApp:
    """A Typer application with `--version` of `distribution`, and no tracebacks of locals."""
    app = CommandApp(help=help_text, no_args_is_help=True, epilog=EPILOG.format(program=distribution))

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
            from importlib.metadata import PackageNotFoundError, version

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
        if code is not None:
            fail(f"the database answered {error} (FoundationDB error {code})", EXIT_UNREACHABLE)
        _fail_by_circumstance(error)
        print(printable(redacted(traceback.format_exc())), end="", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None
    raise SystemExit(0)


def _fail_by_circumstance(error: Exception) -> None:
    """Fail where the machine refused something, or an argument is no text: that is said in a line. Anything else is a defect."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        fail(f"{error.strerror or error}{where}{_REFUSED[error.errno]}")
    strange = [argument for argument in sys.argv[1:] if any("\ud800" <= one <= "\udfff" for one in argument)]
    if strange and isinstance(error, UnicodeError | TypeError):  # the latter is what socket says of a host name
        fail(f"an argument isn't UTF-8: {strange[0][:200]}", EXIT_USAGE)


_REFUSED: Final = {
    errno.EMFILE: "; it needs more: raise the limit of open files (ulimit -n)",
    errno.ENFILE: ", of this machine (sysctl fs.file-max)",
    errno.ENAMETOOLONG: "",
    errno.ENOSPC: "",
    errno.EDQUOT: "",
    errno.EROFS: "",
    errno.EACCES: "",
    errno.EPERM: "",
    errno.ELOOP: "",
    errno.ENOTDIR: "",
    errno.EISDIR: "",
    errno.ENXIO: ", which is a pipe that nobody reads",
    errno.EAGAIN: "; this user may have no more processes or threads (ulimit -u)",
}
"""What to do about what a machine refuses."""


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Print `error: message` to standard error and exit with `code`."""
    print(printable(redacted(f"error: {message}")), file=sys.stderr)
    raise SystemExit(code)


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may hold what others named or wrote."""
    print(printable(text), file=sys.stderr if err else sys.stdout)


def hanging(line: str, indent: int) -> str:
    """The line as it is, but in a terminal that is too narrow over several, all but the first `indent` columns from the left."""
    from rich.console import Console

    console = Console(**_LITERAL)
    if not console.is_terminal or len(line) <= console.width or "\n" in line:
        return line
    text = line.lstrip(" ")
    lead = " " * (len(line) - len(text))
    pieces = textwrap.wrap(
        text,
        console.width,
        initial_indent=lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(pieces)


def print_json(value: Any) -> None:
    """One JSON document; moments as RFC 3339 in UTC, bytes as hexadecimal text, other unknown values as their text.

    Characters that would command a terminal are escaped, as JSON escapes them.
    """
    print(json.dumps(value, default=plain, ensure_ascii=False).translate(JSON_ESCAPES))


def print_rows(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    empty: str = "nothing found",
    show: Callable[[str, Any], str] | None = None,
    style: Callable[[str, Any], str] | None = None,
    flowing: str | None = None,
    whole: Collection[str] = WHOLE,
    under: bool = False,
    limit: int | None = None,
) -> None:
    """A listing: `rows` as a table of `columns`, or all their fields as a JSON array; of more than `limit` the first so many.

    `show(column, value)` gives a cell's text where `told` isn't good enough, `style(column, value)` its look in a terminal.
    There the column named by `flowing`, else the last, takes what width the others leave and goes on over several lines, or
    stands under its row where they leave little, with `under` as soon as it doesn't fit; the others take one line, cut at its
    end where it must be, but never where the column is one of `whole` or for its heading. Elsewhere each row is one line.
    """
    from rich.console import Console

    from fdb_schema.serving.tables import table_of

    listed = list(rows)
    more = 0 if limit is None else max(0, len(listed) - limit)
    listed = listed[: len(listed) - more]
    if as_json:
        print_json(listed)
    elif not listed:
        Console(stderr=True, **_LITERAL).print(empty, style="dim", soft_wrap=True)
    else:
        console = Console(**_LITERAL)
        table = table_of(listed, columns, show, style, flowing=flowing, whole=whole, under=under)
        if console.is_terminal:
            console.print(table, crop=False)
        else:  # a pipe has no width: never cut or wrap what a program will read
            print("\n".join(line.plain for line in table.lines(console, None)))
    if more:
        say(f"{more} more: a greater --limit lists them", err=True)


def print_record(row: Mapping[str, Any], meanings: Mapping[str, str] | None = None) -> None:
    """One thing: a field that says something under the other, with what words mean that are the data model's own."""
    width = max((len(name) for name in row), default=0)
    for name, value in row.items():
        text = told(value)
        if text:
            meaning = (meanings or {}).get(name)
            line = f"{name.replace('_', ' '):<{width}}  {text}" + (f"  ({meaning})" if meaning else "")
            say(hanging(line, width + 2))


def seconds_of(text: str) -> float:
    """The seconds of a time ago as an option gives it, `90s`, `10m`, `2h` or `7d`; or the end of the command."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        fail(f"{text!r} is no time ago: give a number and s, m, h or d, as 10m", EXIT_USAGE)
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def completing(find: Callable[[str | None, str, str], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """What completes an argument in a shell: the texts that `find(db, cluster, beginning)` gives; none where it fails."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return list(find(ctx.params.get("db"), ctx.params.get("cluster") or DEFAULT_CLUSTER, incomplete))
        except Exception:  # no database, none of ours: a key that is pressed prints nothing of it
            return []

    return complete


def in_terminal() -> bool:
    """Whether a person reads standard output, and so wants little of much."""
    from rich.console import Console

    return Console().is_terminal
