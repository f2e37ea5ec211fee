"""What others tell a program, and what it tells them."""

from __future__ import annotations

from typing import Any

from fdb_datamodel import hold_futures, programs
from futures_worker.client.basis.options import check_name
from futures_worker.client.basis.program import current_program
from futures_worker.client.context import ClientContext
from futures_worker.database import ask
from futures_worker.payload import dump_result, load_own


def send(context: ClientContext, program: bytes, name: str, value: Any) -> None:
    """See `Future.send`."""
    check_name(name, "an event")
    inside = current_program()
    if inside is not None:
        inside.send(context, program, name, value)
        return
    payload = dump_result(value)
    data, contained = payload.to_bytes(), payload.contained_in(context.origin.identity)

    def body(tr: Any) -> None:
        programs.send_event(tr, context.space, program, name, data)
        hold_futures(tr, context.space, contained, outer=program)

    ask(context.db, body)  # with an idempotency id: an event is sent once


def published(context: ClientContext, program: bytes) -> dict[str, Any]:
    """See `Future.published`."""
    found = ask(context.db, programs.read_published, context.space, program, strategy="off")
    return {name: load_own(value) for name, value in found.items()}
