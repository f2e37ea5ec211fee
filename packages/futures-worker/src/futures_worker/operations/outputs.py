"""What tasks printed: the end of it, attempt by attempt, as workers keep it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fdb_datamodel import ClusterSpace, TaskOutput, read_output
from futures_worker.database import ask


def outputs(database: Any, space: ClusterSpace, future_id: UUID, attempt: int | None = None) -> list[TaskOutput]:
    """What is kept of each attempt that printed anything, oldest first; of one attempt only where it is given."""
    found: list[TaskOutput] = ask(database, read_output, space, future_id, strategy="off")
    return [output for output in found if attempt in (None, output.attempt)]


def text_of(found: list[TaskOutput]) -> str:
    """All of it as one text; what isn't kept any more is counted, and of several attempts each has a line above it."""
    parts = []
    for output in found:
        if len(found) > 1:
            parts.append(f"--- attempt {output.attempt}\n")
        lost = output.size - len(output.data)
        if lost > 0:
            parts.append(f"... {lost:,} bytes are no longer kept\n")
        parts.append(output.data.decode(errors="replace"))
    return "".join(parts)
