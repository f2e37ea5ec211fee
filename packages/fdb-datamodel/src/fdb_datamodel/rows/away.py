"""What a program waits for while it has no process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Away:
    """What a program waits for without a process.

    kind: "sleep"; "futures", as long as not all of `ids` have ended, or (`until`) the "first" of them, or one by "failure"; or
    "event", one of that `name`. due_us: of the cluster clock, when it goes on in any case; None: never.
    """

    kind: str
    name: str = ""
    ids: tuple[bytes, ...] = ()
    until: str = "all"
    due_us: int | None = None
