"""How figures look, in tables for people and in JSON for programs: one form for times, durations, sizes and ids."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

WHOLE: Final = ("id", "task", "session", "address")
"""Columns that are never cut unless a table says otherwise: what one copies into another command."""
_MICROSECOND: Final = 1e-6


def timestamp(moment: datetime | float | None) -> str | None:
    """A moment as RFC 3339 in UTC, to the millisecond: `2026-05-04T08:00:00.250Z`; `moment` is seconds since 1970 or has a zone.

    None where there is none, or no calendar has it.
    """
    if moment is None:
        return None
    try:
        at = moment.astimezone(UTC) if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def timestamp_us(microseconds: int | None) -> str | None:
    """The same of µs since 1970; 0 is none."""
    return timestamp(microseconds * _MICROSECOND) if microseconds else None


def plain(value: Any) -> Any:
    """What JSON has no form for: moments as RFC 3339 in UTC, bytes as hexadecimal text, others as their text."""
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def told(value: Any, nothing: str = "") -> str:
    """A value as people read it, never as Python writes it: yes and no, lists with commas, fields as `name value`."""
    if value is None or value == "":
        return nothing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.15g}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {told(one, 'none')}" for name, one in value.items()) or nothing
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(told(one, "none") for one in value) or nothing
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return str(plain(value)) if not isinstance(value, (str, int, UUID)) else str(value)


def ago(seconds: float) -> str:
    """A time ago, or a duration, in one unit: `350ms`, `12s`, `5m`, `3h`, `8d`."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    for unit, size_, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < most * size_:
            return f"{seconds / size_:.1f}{unit}" if seconds < 10 * size_ else f"{seconds / size_:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def size(amount: float | None) -> str:
    """Bytes as people read them: `1.5 GiB`."""
    if amount is None:
        return ""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """So many of a thing, as people read it: `1 task`, `2 tasks`, `1,410 tasks`; of `task waits` the plural is `tasks wait`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def cut(text: str, most: int = 16) -> str:
    """`text` in at most so many characters: of a qualified name the end tells more than the beginning."""
    return text if len(text) <= most else "…" + text[1 - most :]


def short_ids(ids: list[str], least: int = 8) -> dict[str, str]:
    """As much of the beginning of each id as tells it from the others, all of one length and at least `least` characters."""
    length = least
    ordered = sorted(set(ids))
    for one, other in itertools.pairwise(ordered):
        differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        length = max(length, next(differing, min(len(one), len(other))) + 1)
    return {one: one[:length].rstrip("-") for one in ordered}
