"""How a command of a package becomes a service: settings from a file, logs and traces, `--version`; nothing else is added."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from fdb_schema.cli import CommandApp, version_option
from fdb_schema.serving.configuration import CONFIG_VARIABLE, apply_configuration, read_configuration
from fdb_schema.serving.help import NamedCommand
from fdb_schema.serving.logs import LogFormat, LogLevel, configure_logging
from fdb_schema.serving.tracing import VARIABLE, configure_tracing

_PANEL = "Configuration and logs"

LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="MAINSPRING_LOG_FORMAT",
        rich_help_panel=_PANEL,
        help="Lines for people, or one JSON object per line.",
    ),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level", envvar="MAINSPRING_LOG_LEVEL", rich_help_panel=_PANEL, help="Least severity that is logged."
    ),
]

OtlpOption = Annotated[
    str | None,
    typer.Option(
        "--otlp-endpoint",
        envvar=VARIABLE,
        metavar="URL",
        rich_help_panel=_PANEL,
        help="Send OpenTelemetry traces there, as http://127.0.0.1:4318; without it there are none.",
        show_default=False,
    ),
]

EPILOG = "A setting comes from its option, else from its environment variable, else from the file of --config."

SERVICE: Final[dict[str, Any]] = {"epilog": EPILOG, "cls": NamedCommand}
"""How a service is added to an application: its help is the reference of its settings and names every variable."""


def config_option(table: str) -> Any:
    """The option `--config FILE` of a service, as a type for Typer; it takes effect before all other options."""

    def load(context: typer.Context, value: Path | None) -> Path | None:
        apply_configuration(context, table, read_configuration(value))
        return value

    callback: Callable[..., Any] = load
    return Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar=CONFIG_VARIABLE,
            metavar="FILE",
            is_eager=True,
            callback=callback,
            rich_help_panel=_PANEL,
            help=f"TOML file of settings: table [{table}], and before the first table what services share.",
            show_default=False,
        ),
    ]


def service_command(
    function: Callable[..., None], table: str, *, distribution: str | None = None
) -> Callable[..., None]:
    """`function`, a Typer command, with the options every service has.

    table: of the configuration file, and the service's name in logs. distribution: adds `--version` of it. A function
    that wants to know `config`, `log_format`, `log_level` or `otlp_endpoint` has a parameter of that name.
    """
    hints = get_type_hints(function, include_extras=True)
    given = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
    ]
    added: dict[str, tuple[Any, Any]] = {
        "log_format": (LogFormatOption, LogFormat.text),
        "log_level": (LogLevelOption, LogLevel.info),
        "otlp_endpoint": (OtlpOption, None),
        "config": (config_option(table), None),
    }
    if distribution is not None:
        added["version"] = (version_option(distribution), False)

    own = {parameter.name for parameter in given}

    def service(**settings: Any) -> None:
        configure_logging(table, settings["log_format"], settings["log_level"])
        configure_tracing(table, settings["otlp_endpoint"])
        function(**{name: value for name, value in settings.items() if name in own})

    parameters = [
        *(parameter for parameter in given if parameter.name not in added),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in added.items()
        ),
    ]
    service.__name__ = table
    service.__doc__ = function.__doc__
    service.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    service.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return service


def service_app(distribution: str, table: str, function: Callable[..., None]) -> typer.Typer:
    """A program of one command: `function` as a service. Its environment variables begin with the program's name."""
    app = CommandApp(
        context_settings={
            "help_option_names": ["-h", "--help"],
            "auto_envvar_prefix": distribution.replace("-", "_").upper(),
        },
    )
    app.command(name=distribution, **SERVICE)(service_command(function, table, distribution=distribution))
    return app
