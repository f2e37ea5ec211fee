"""How a call of an actor runs, and how it ended, for whoever records that."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fdb_datamodel import Failure, FutureResult, actors
from futures_worker.errors import FutureFailedError, ObjectLostError, WireError
from futures_worker.failure import text_of
from futures_worker.objects.object_names import result_name
from futures_worker.payload import INLINE_RESULT_BYTES, dump_exception, dump_result, load_args
from futures_worker.worker.actor_callers import Call
from futures_worker.worker.processes import leave_if_forked

if TYPE_CHECKING:
    from futures_worker.client.context import ClientContext


class Calls:
    """Runs calls of one object. No method of it raises, but for `arguments` and `method`."""

    def __init__(self, context: ClientContext, host: actors.ActorHost, instance: Any) -> None:
        self._context = context
        self._host = host
        self._instance = instance

    def run(self, call: Call, come_to: Callable[[Any], Any]) -> actors.CallOutcome:
        """How it ended. `come_to` turns what the method returned into its value: it may be a coroutine."""
        try:
            args, kwargs = self.arguments(call)
        except BaseException as error:
            return self.never_ran(call, error)
        pid = os.getpid()
        try:
            value = come_to(self.method(call.method)(*args, **kwargs))
        except BaseException as error:
            leave_if_forked(pid, error)
            return self.raised(call, error)
        leave_if_forked(pid)
        return self.returned(call, value)

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of a call, with the results of those it depends on."""
        if not call.dependencies and not call.args:
            return (), {}
        return load_args(call.args, self._values(call), name=call.name)

    def never_ran(self, call: Call, error: BaseException) -> actors.CallOutcome:
        """Its arguments can't be had."""
        reason = "upstream" if isinstance(error, _UpstreamError) else "unpickle"
        chain = (error.upstream,) if isinstance(error, _UpstreamError) else ()
        carried = error.__cause__ if isinstance(error, _UpstreamError) and error.__cause__ else error
        return failed(call, _carried(reason, text_of(error), carried, chain))

    def raised(self, call: Call, error: BaseException) -> actors.CallOutcome:
        """The object's own code has raised."""
        return failed(call, _carried("error", f"{type(error).__name__}: {text_of(error)}", error))

    def returned(self, call: Call, value: Any) -> actors.CallOutcome:
        """What it returned, in the outcome or, where it is large, with the worker."""
        try:
            result = dump_result(value)
            contained = result.contained and result.contained_in(self._context.origin.identity)
            if result.nbytes <= INLINE_RESULT_BYTES:
                data = result.to_bytes()
                stored = FutureResult(data, len(data))
                return actors.CallOutcome(call.id, call.session, call.name, stored, contained=contained)
            name, worker = result_name(call.id, 0, 1), self._host.worker
            self._context.object_fetcher().put(worker.address, name, result.to_bytes())
            stored = FutureResult(None, result.nbytes, name, worker)
            return actors.CallOutcome(call.id, call.session, call.name, stored, contained=contained)
        except (ObjectLostError, WireError) as error:  # the worker is gone, and this process goes with it
            text = f"it ran, and its result of {result.nbytes:,} bytes has no place any more: {error}"
            return failed(call, Failure("actor-died", text[:500]))
        except BaseException as error:
            return failed(call, _carried("result-pickle", text_of(error), error))

    def method(self, name: str) -> Callable[..., Any]:
        """What a call of that name reaches. Raises AttributeError."""
        if name.startswith("_") and name != "__call__":
            raise AttributeError(f"{name!r} of {type(self._instance).__name__} is private: calls reach public methods")
        method: Callable[..., Any] = getattr(self._instance, name)
        return method

    def _values(self, call: Call) -> list[Any]:
        from futures_worker.client.data import find

        values = []
        for dependency in call.dependencies:
            try:
                values.append(find(self._context, dependency).result())
            except Exception as error:
                raise _UpstreamError(dependency, f"{call.name} never ran: an argument of it failed: {error}") from error
        return values


class _UpstreamError(FutureFailedError):
    def __init__(self, upstream: bytes, message: str) -> None:
        super().__init__(message)
        self.upstream = upstream


def failed(call: Call, failure: Failure) -> actors.CallOutcome:
    """A call that ended so."""
    return actors.CallOutcome(call.id, call.session, call.name, None, failure)


def size_of(outcome: actors.CallOutcome) -> int:
    """Bytes that it takes in a transaction, about."""
    size = 100
    if outcome.result is not None and outcome.result.inline is not None:
        size += len(outcome.result.inline)
    if outcome.failure is not None:
        size += len(outcome.failure.payload) + len(outcome.failure.traceback)
    return size


def _carried(reason: str, text: str, error: BaseException, chain: tuple[bytes, ...] = ()) -> Failure:
    """A failure that carries an exception; the first frame of its traceback is this module's."""
    carried = dump_exception(error, skip_frames=1)
    return Failure(reason, text, carried.untraced().to_bytes(), carried.traceback, chain)
