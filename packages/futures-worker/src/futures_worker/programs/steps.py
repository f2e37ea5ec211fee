"""Steps: functions that a program runs in its own process, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fdb_datamodel import hold_futures, programs
from fdb_datamodel.programs import PART_BYTES, PARTS_AT_ONCE, VALUE_LIMIT, Request
from futures_worker.client.basis.program import running
from futures_worker.failure import Failure, dump_exception, load_exception
from futures_worker.payload import dump_result, load_own
from futures_worker.programs.asking import Asking
from futures_worker.worker.child.coroutines import finished
from futures_worker.worker.child.task_context import waiting

MOST_PAUSE: Final = 60.0
"""Seconds between two tries of a step."""


class Step(NamedTuple):
    """What is to be run. within: in a transaction, that it gets first and that records it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    within: bool = False
    retries: int = 0
    backoff: float = 0.1


def run_step(asking: Asking, step: Step) -> Any:
    """What the step returned, the first time; raises what it raised."""
    number, found = asking.ask("step", step.name)
    if found is None:
        found = _try(asking, number, step)
    value = _value_of(asking, number, found)
    if found.error:
        raise load_exception(Failure.from_bytes(value))
    return load_own(value)


def _try(asking: Asking, number: int, step: Step) -> Request:
    for attempt in range(step.retries + 1):
        try:
            with running(None):
                if step.within:
                    return _transact(asking, number, step)
                payload = dump_result(finished(step.function(*step.args, **step.kwargs)))
        except MemoryError:
            asking.history.undo(number)
            raise  # no answer of the function's: another attempt, with more room perhaps, runs it again
        except Exception as error:
            if attempt == step.retries:
                return _keep(asking, number, step.name, dump_exception(error, skip_frames=1).to_bytes(), error=True)
            with waiting():
                time.sleep(min(step.backoff * 2.0**attempt, MOST_PAUSE))
        else:
            return _keep(asking, number, step.name, payload.to_bytes(), holds=asking.contained(payload))
    raise AssertionError("a step is tried once at least")


def _transact(asking: Asking, number: int, step: Step) -> Request:
    """The step's writes and its record are one transaction."""

    def body(tr: Any, space: Any, claim: programs.ProgramClaim) -> Request:
        known = programs.find_request(tr, space, claim, number)
        if known is not None:
            return known  # a commit whose outcome wasn't known
        payload = dump_result(finished(step.function(tr, *step.args, **step.kwargs)))
        hold_futures(tr, space, asking.contained(payload), outer=asking.id)
        return programs.record_request(tr, space, claim, number, Request("step", step.name, payload.to_bytes()))

    return asking.history.record(number, asking.within(body))


def _keep(
    asking: Asking, number: int, name: str, data: bytes, *, error: bool = False, holds: Sequence[bytes] = ()
) -> Request:
    if len(data) <= VALUE_LIMIT:
        return asking.note(number, Request("step", name, data, error), holds=holds)
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    asking.within(programs.clear_value, number)
    for at in range(0, len(parts), PARTS_AT_ONCE):
        asking.within(programs.write_parts, number, at, parts[at : at + PARTS_AT_ONCE])
    return asking.note(number, Request("step", name, None, error, parts=len(parts)), holds=holds)


def _value_of(asking: Asking, number: int, found: Request) -> bytes:
    if not found.parts:
        return found.value or b""
    data = bytearray()
    for at in range(0, found.parts, PARTS_AT_ONCE):
        data += b"".join(asking.transact(programs.read_value, asking.id, number, at, PARTS_AT_ONCE))
    return bytes(data)
