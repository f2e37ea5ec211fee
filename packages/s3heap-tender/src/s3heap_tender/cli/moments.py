"""Times of the cluster clock as people read them: how long until or since then, and what this machine's clock will show.

The cluster clock starts near 0 and agrees with no wall clock, so a wall time is only for display; nothing compares it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fdb_schema.serving.figures import ago, timestamp


class Moments:
    """Readings of the cluster clock, as seen now; `now` is in its seconds."""

    def __init__(self, now: float, wall: datetime | None = None) -> None:
        self.now = now
        self.wall = datetime.now(UTC) if wall is None else wall

    def fields(self, name: str, seconds: float | None) -> dict[str, Any]:
        """`NAME_in`, seconds from now, and `NAME_at`, RFC 3339 in UTC; both None where there is no such time."""
        if seconds is None:
            return {f"{name}_in": None, f"{name}_at": None}
        return {f"{name}_in": round(seconds - self.now, 3), f"{name}_at": self.at(seconds)}

    def fields_of_wall(self, name: str, seconds: float) -> dict[str, Any]:
        """The same of a wall time, in seconds since 1970."""
        at = datetime.fromtimestamp(seconds, UTC)
        since = (at - self.wall).total_seconds()
        return {f"{name}_in": round(since, 3), f"{name}_at": timestamp(at)}

    def at(self, seconds: float) -> str:
        """RFC 3339, UTC."""
        return timestamp(self.wall + timedelta(seconds=seconds - self.now)) or ""

    def text(self, seconds: float) -> str:
        """For a page on one thing: relative, local time, and the cluster clock's own reading."""
        return f"{self.relative(seconds - self.now)}, {self.short(self.at(seconds))} (cluster clock {seconds:.3f} s)"

    @staticmethod
    def short(iso: str) -> str:
        """An ISO time as this machine's local time, to the second."""
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"

    @staticmethod
    def brief(seconds: float) -> str:
        """`in 4.2s`, `3m ago`: for a narrow column."""
        return f"{ago(-seconds)} ago" if seconds < 0 else f"in {ago(seconds)}"

    @staticmethod
    def relative(seconds: float) -> str:
        """`in 4.2 s`, `3 min 5 s ago`."""
        rest = abs(seconds)
        if rest < 90:
            text = f"{rest:.1f} s"
        elif rest < 5400:
            text = f"{int(rest) // 60} min {int(rest) % 60} s"
        elif rest < 172_800:
            text = f"{int(rest) // 3600} h {int(rest) // 60 % 60} min"
        else:
            text = f"{int(rest) // 86_400} d {int(rest) // 3600 % 24} h"
        return f"{text} ago" if seconds < 0 else f"in {text}"
