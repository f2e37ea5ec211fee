"""Settings of the services: options, then environment variables, then one TOML file, then defaults; one reader for all.

    db = "embedded:/var/lib/mainspring"     # before the first table: what several services share
    cluster = "prod"

    [worker]                                # a table per service; its keys are the service's options without `--`
    slots = 8

A key that no option has is an error that names it and the nearest one there is: a setting never goes unheard.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from fdb_schema.errors import EXIT_USAGE, MainspringError

CONFIG_VARIABLE: Final = "MAINSPRING_CONFIG"
TABLES: Final = ("worker", "tender", "scheduler", "janitor", "dashboard", "up", "status", "doctor", "migrate")
"""Every table a file may have. A service reads its own, and only sees to it that the others' names are right."""
SHARED: Final = ("db", "cluster", "store", "endpoint_url", "log_format", "log_level", "otlp_endpoint")
"""Keys that stand before the first table; each goes to every service that has such an option."""

_CREDENTIALS: Final = re.compile(r"""(?<=://)[^/\s"'<>]+(?=@)""")
"""Up to the last @ before the path: a password may hold others, and a name alone may be a token."""


class ConfigurationError(MainspringError, ValueError):
    """A configuration file that can't be read, or that has a key nobody knows."""

    exit_code: ClassVar[int] = EXIT_USAGE


@dataclass(frozen=True, slots=True)
class Configuration:
    """One file's settings; keys with underscores, values as TOML has them."""

    path: Path | None = None
    shared: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, table: str, options: Collection[str]) -> dict[str, Any]:
        """What the file says for a service: its table, and of the shared keys those that it has.

        Raises `ConfigurationError` for a key of the table that is none of `options`.
        """
        own = self.tables.get(table, {})
        for key in own:
            if key not in options:
                raise ConfigurationError(f"{self.path}: {_unknown(f'key {key!r} in [{table}]', key, options)}")
        return {key: value for key, value in self.shared.items() if key in options} | dict(own)


def read_configuration(path: Path | None) -> Configuration:
    """The settings of a file; of None, none.

    Raises `ConfigurationError`: no such file, no TOML, an unknown table, or an unknown key before the first table.
    """
    if path is None:
        return Configuration()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the configuration {path} can't be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigurationError(f"the configuration {path} is no TOML: it is nested too deep") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration {path} is no TOML: {error}") from None
    shared: dict[str, Any] = {}
    tables: dict[str, Mapping[str, Any]] = {}
    for name, value in document.items():
        key = name.replace("-", "_")
        if isinstance(value, dict):
            if name not in TABLES:
                raise ConfigurationError(f"{path}: {_unknown(f'table [{name}]', name, TABLES)}")
            tables[name] = {inner.replace("-", "_"): _plain(path, name, inner, found) for inner, found in value.items()}
        elif key not in SHARED:
            hint = _unknown(f"key {name!r} before the first table", key, SHARED)
            raise ConfigurationError(f"{path}: {hint}; what only one service has goes into its table, as [worker]")
        else:
            shared[key] = _plain(path, "", name, value)
    return Configuration(path, shared, tables)


def _plain(path: Path, table: str, key: str, value: Any) -> Any:
    if isinstance(value, (str, int, float)) or (
        isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value)
    ):
        return value
    place = f"{key!r} in [{table}]" if table else repr(key)
    raise ConfigurationError(f"{path}: {place} must be a text, a number, true, false or a list of texts")


def _unknown(what: str, word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
    return f"unknown {what}; {meant}"


def option_names(command: Any) -> dict[str, str]:
    """Key of the file → parameter, for every setting of a command; `--config`, `--version` and the like are none."""
    names: dict[str, str] = {}
    for parameter in command.params:
        if parameter.name in NO_SETTINGS or getattr(parameter, "is_eager", False):
            continue
        for option in parameter.opts:
            if option.startswith("--") or not option.startswith("-"):
                names[option.lstrip("-").replace("-", "_").lower()] = parameter.name
    return names


NO_SETTINGS: Final = frozenset({"config", "help", "version", "install_completion", "show_completion"})


def apply_configuration(context: Any, table: str, configuration: Configuration) -> None:
    """Make the file's values the defaults of `context`'s command, below options and environment."""
    names = option_names(context.command)
    found = configuration.of(table, names)
    context.default_map = {names[key]: value for key, value in found.items()}


def without_credentials(text: str) -> str:
    """`text` with names and passwords of URLs in it made unreadable."""
    return _CREDENTIALS.sub("***", text)


def configured_path() -> Path | None:
    """The file that the environment names, if any."""
    found = os.environ.get(CONFIG_VARIABLE)
    return Path(found) if found else None
