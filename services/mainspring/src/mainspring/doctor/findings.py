"""What a check finds: value objects, and the words for what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    ok = "ok"
    warning = "warning"  # it works, and will not for ever
    problem = "problem"  # something does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation: which check, what was found, what to do about it."""

    check: str
    level: Level
    what: str
    do: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.ok, what)


def warning(check: str, what: str, do: str) -> Finding:
    return Finding(check, Level.warning, what, do)


def problem(check: str, what: str, do: str) -> Finding:
    return Finding(check, Level.problem, what, do)
