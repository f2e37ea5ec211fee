"""The configuration as a whole: every service's settings, what each is, and which of option, environment or file says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fdb_schema.serving.configuration import (
    NO_SETTINGS,
    Configuration,
    option_names,
    read_configuration,
    without_credentials,
)

SERVICES: Final = ("up", "worker", "tender", "scheduler", "janitor", "dashboard", "status", "doctor", "migrate")


def services_of(root: Any) -> Mapping[str, Any]:
    """Table of the file → command, of every service that the command `root` has."""
    commands = root.commands
    return {name: commands[name] for name in SERVICES if name in commands}


def check_file(path: Path, services: Mapping[str, Any]) -> Configuration:
    """The file's settings, once every key of every table is known to its service's command. Raises `ConfigurationError`."""
    found = read_configuration(path)
    for table, command in services.items():
        found.of(table, option_names(command))
    return found


def effective(path: Path | None, services: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every setting of every service: table, key, value, and source ("environment", "file" or "default").

    Raises `ConfigurationError`.
    """
    arguments = [] if path is None else ["--config", str(path)]
    for table, command in services.items():
        context = command.make_context(
            table, list(arguments), resilient_parsing=True, auto_envvar_prefix=f"MAINSPRING_{table.upper()}"
        )
        if path is not None:
            check_file(path, services)
        names = option_names(command)
        for key, parameter in names.items():
            if parameter in NO_SETTINGS:
                continue
            value = context.params.get(parameter)
            source = context.get_parameter_source(parameter)
            yield {
                "service": table,
                "setting": key,
                "value": _shown(key, value),
                "source": _SOURCES.get(getattr(source, "name", ""), "default"),
            }


def _shown(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "***" if value and key in _SECRETS else without_credentials(value)


_SECRETS = frozenset({"token", "secret", "password"})
_SOURCES = {"ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "COMMANDLINE": "option"}
