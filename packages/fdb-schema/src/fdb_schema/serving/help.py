"""Help and usage errors of every command: plain text of eighty columns without what nobody asked for, and near misses said."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ALIKE: Final = (
    {"ls", "list", "tasks"},
    {"show", "describe", "inspect", "info", "get", "result"},
    {"watch", "follow", "tail"},
    {"logs", "log", "output"},
    {"delete", "rm", "remove", "invalidate", "expire"},
    {"cancel", "kill", "stop", "abort"},
    {"retry", "rerun", "resubmit", "redrive"},
    {"errors", "failures", "failed"},
    {"status", "summary", "stats"},
    {"force-release", "release", "unlock"},
)
"""Words that other tools have for the same: who types one is told the other."""
_QUIET: Final = ("install_completion", "show_completion")
EPILOG: Final = "Completion of commands, options and ids: {program} --install-completion."


def _without_noise(command: Any) -> None:
    """Options for setting up stay unlisted, and so do variables and limits that follow a rule."""
    for parameter in command.params:
        if parameter.name in _QUIET:
            parameter.hidden = True
        if getattr(parameter, "envvar", None) is None and hasattr(parameter, "show_envvar"):
            parameter.show_envvar = False


_NAMED: Final = {"int": "N", "float": "N", "integer": "N", "Path": "FILE", "path": "FILE", "file": "FILE"}
"""Type of a value → what stands for it in a help page, where its option doesn't say."""
_CALLED: Final = {"port": "PORT", "address": "ADDRESS"}
"""End of an option's name → the same."""


def stands_for(parameter: Any) -> str:
    """What stands for a parameter's value in usage and help: its own word, its choices, else what its name, help and type say."""
    own = str(parameter.metavar or "").removesuffix("...").strip("[]")
    if own or parameter.param_type_name == "argument":
        return own or str(parameter.name).upper()
    if choices := choices_of(parameter):
        return "|".join(choices)
    by_name = next((word for end, word in _CALLED.items() if str(parameter.name).endswith(end)), "")
    kind = _kind(parameter)
    seconds = kind == "float" and "econds" in (parameter.help or "")
    return by_name or ("SECONDS" if seconds else _NAMED.get(kind, "TEXT"))


def choices_of(parameter: Any) -> list[str]:
    """What a parameter's value is one of; empty where it may be anything."""
    kind = getattr(parameter, "type_descriptor", None) or parameter.type  # of Typer since 0.26; of click
    return [str(getattr(choice, "value", choice)) for choice in getattr(kind, "choices", None) or ()]


def _kind(parameter: Any) -> str:
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None:
        return str(parameter.type.name).removesuffix(" range")
    return str(getattr(descriptor.annotation, "__name__", descriptor.annotation))


def _name_values(command: Any) -> None:
    for parameter in command.params:
        if not getattr(parameter, "is_flag", False):
            parameter.metavar = stands_for(parameter)


class NamedCommand(TyperCommand):
    """A command whose values have words for names, as ID, SECONDS and FILE, and not Python's types."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar or ""]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = f"{parameter.metavar}{'...' if parameter.nargs != 1 else ''}"
                pieces.append(name if parameter.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.param_type_name == "argument":
                headings["Arguments"].append((str(parameter.metavar), record[1]))
            elif record is not None:
                headings["Options"].append(record)
        for heading, rows in headings.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class PlainCommand(NamedCommand):
    """A command whose help is plain."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_noise(self)
        super().format_help(ctx, formatter)


class PlainGroup(TyperGroup):
    """A group whose help lists its commands under their headings, each with one whole sentence."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_noise(self)
        super().format_help(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:  # wrapped here, for it ends with what is to be copied, which has hyphens
            lines = textwrap.wrap(self.epilog, formatter.width - 2, break_on_hyphens=False, break_long_words=False)
            formatter.write("\n" + "".join(f"  {line}\n" for line in lines))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                rows = headings.setdefault(heading if isinstance(heading, str) else "Commands", [])
                rows.append((name, _first_sentence(command.help or command.short_help or "")))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", "")
            owners = [name for name in self.commands if option and _has(self.commands[name], option)]
            if owners:
                owner = min(owners, key=lambda name: name not in ("status", "ls"))
                error.message = (  # type: ignore[attr-defined]
                    f"{option} is an option of the commands: give it after one, as `{ctx.command_path} {owner} {option}`."
                )
                error.possibilities = []  # type: ignore[attr-defined]
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            message = getattr(error, "message", "")
            alike = [one for words in _ALIKE if args and args[0] in words for one in sorted(words) if self._listed(one)]
            if alike and "Did you mean" not in message:
                said = ", ".join(f"{one!r}" for one in alike)
                error.message = f"{message.rstrip('.')}. Did you mean {said}?"  # type: ignore[attr-defined]
            raise

    def _listed(self, name: str) -> bool:
        return name in self.commands and not self.commands[name].hidden


def _has(command: Any, option: str) -> bool:
    return any(option in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?!]) ", paragraph, maxsplit=1)[0]


class CommandApp(typer.Typer):
    """A Typer application of this look."""

    def __init__(self, **options: Any) -> None:
        options = {"cls": PlainGroup, "rich_markup_mode": None, "pretty_exceptions_enable": False} | options
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(**options)

    def command(self, *args: Any, **options: Any) -> Callable[[_Function], _Function]:
        """As Typer's; `aliases` are other names that stay working and aren't listed."""
        aliases: Iterable[str] = options.pop("aliases", ())
        options.setdefault("cls", PlainCommand)
        decorator = super().command(*args, **options)

        def register(function: _Function) -> _Function:
            for alias in aliases:
                super(CommandApp, self).command(alias, **(options | {"hidden": True}))(function)
            return decorator(function)

        return register
