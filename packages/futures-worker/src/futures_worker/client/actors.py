"""Actors: objects that live in a worker's process and whose methods are called from anywhere."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from fdb_datamodel import (
    CodeDigest,
    Failure,
    FutureSpec,
    actors,
    cancel_future,
    hold_futures,
    new_future_id,
    put_code,
    session_referrer,
)
from fdb_schema import ClusterSpace, put_blob, unpin_blob
from futures_worker.client.actor_call import Call
from futures_worker.client.basis import processes
from futures_worker.client.basis.intake import MAX_BATCH_BYTES
from futures_worker.client.basis.options import DEFAULT_OPTIONS, SubmitOptions
from futures_worker.client.basis.program import refuse_in_program
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.basis.spelling import check_call
from futures_worker.client.context import ClientContext, Home, home_of
from futures_worker.client.submits.locality import locality_of
from futures_worker.database import ask
from futures_worker.payload import AsItself, Code, dump_args, dump_args_and_names, dump_code, dump_retry_on
from futures_worker.worker.actor_host import run_actor
from futures_worker.worker.concurrent_actor import run_concurrent_actor
from idempotent_txn import run

if TYPE_CHECKING:
    from collections.abc import Mapping

A = TypeVar("A")

FOREVER: Final = 1_000_000_000
MOST_CONCURRENT: Final = 10_000
ACTOR_OPTIONS: Final = frozenset(
    {"name", "max_restarts", "concurrency", "resources", "priority", "locality", "unschedulable_timeout"}
)
"""The keywords that `Client.actor` keeps for itself; every other keyword goes to the constructor."""


class Actor(Generic[A]):
    """A handle of an actor: `actor.method(*args)` calls the method of that name and returns its future.

    Made by `Client.actor` or `get_actor`. It can be passed to tasks and other actors, anywhere inside arguments.
    """

    def __init__(self, home: Home, actor: bytes, label: str, methods: frozenset[str]) -> None:
        self._home = home
        self._id = actor
        self._label = label
        self._methods = methods

    def __getattr__(self, method: str) -> _Method:
        if method.startswith("_") or (self._methods and method not in self._methods):
            raise AttributeError(f"actor {self._label} has no public method {method!r}")
        bound = _Method(self, method)
        self.__dict__[method] = bound
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Call[Any]:
        return call_actor(self, "__call__", args, kwargs)

    def __dir__(self) -> list[str]:
        """The methods that can be called, where the class is known."""
        return sorted({*super().__dir__(), *self._methods})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actor) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __reduce__(self) -> tuple[Any, ...]:
        origin = self._home.origin
        return _attach, (self._id, self._label, self._methods, None if origin is None else tuple(origin))

    def __repr__(self) -> str:
        return f"<Actor {self._label} {UUID(bytes=self._id)}>"


class _Method:
    """A method of an actor, to be called."""

    __slots__ = ("_actor", "_name")

    def __init__(self, actor: Actor[Any], name: str) -> None:
        self._actor = actor
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Call[Any]:
        return call_actor(self._actor, self._name, args, kwargs)

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._actor!r}>"


def call_actor(actor: Actor[Any], method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
    """Call a method: sent at once, run after all earlier calls of this client."""
    refuse_in_program("a call of an actor")
    context = actor._home.context()
    session = context()
    data, dependencies = dump_args(args, kwargs, context.origin)
    if dependencies:
        session.flush_before(dependencies)
        processes.flush_others(context, dependencies)
    link = session.calls.link(actor._id, actor._label)
    call = CallRecord(new_future_id(), f"{actor._label}.{method}", link, (method, data, dependencies))
    session.submit_call(call)
    return Call(context, call)


def make_actor(
    context: ClientContext, kind: type[A], args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: dict[str, Any]
) -> Actor[A]:
    """See `Client.actor`."""
    refuse_in_program("an actor that is made")
    name = settings.pop("name", None)
    max_restarts = settings.pop("max_restarts", 0)
    if not isinstance(kind, type):
        raise TypeError(f"an actor is made from a class, found {kind!r}")
    check_call(kind, args, kwargs, ACTOR_OPTIONS, "client.actor")
    name = DEFAULT_OPTIONS.changed(name=name).name or None  # a text of 1 to 500 characters
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < -1:
        raise ValueError(f"max_restarts is a whole number, -1 for any number of restarts, found {max_restarts!r}")
    concurrency = settings.pop("concurrency", 1)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_CONCURRENT:
        raise ValueError(
            f"concurrency is a whole number, the calls that run at a time, 1 to {MOST_CONCURRENT:,}, found {concurrency!r}"
        )
    options = DEFAULT_OPTIONS.changed(**settings)
    if name:
        found = ask(context().db, actors.named_actor, context.space, name, strategy="off")
        if found is not None:
            return Actor(context, found, kind.__name__, methods_of(kind))
    restarts = FOREVER if max_restarts < 0 else min(max_restarts, FOREVER)
    resident = options.requirements is None or not options.requirements.shape[0]
    context().life.begin()
    owner = context().id if name is None else b""
    spec, blobs, code, holds = _host_spec(context, owner, kind, args, kwargs, options, resident, restarts, concurrency)
    spec.locality = locality_of(context, options.locality)
    folder = context().keep_folder(code)

    def body(tr: Any, space: ClusterSpace) -> bytes:
        put_code(tr, space, code.data, folder=folder)
        made = actors.create_actor(tr, space, spec, name or "")
        hold_futures(tr, space, holds, outer=made)
        for digest in blobs:
            unpin_blob(tr, space, digest, session_referrer(context().id))
        return made

    actor = ask(context.db, body, context.space)
    if name is None:
        context.own_actors.append(actor)
        processes.has_actors(context)
    return Actor(context, actor, kind.__name__, methods_of(kind))


def _host_spec(
    context: ClientContext,
    owner: bytes,
    kind: type,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: SubmitOptions,
    resident: bool,
    restarts: int,
    concurrency: int,
) -> tuple[FutureSpec, list[bytes], Code, tuple[bytes, ...]]:
    """The actor's own future, what was uploaded for it, its code, and the futures that its class refers to."""
    session = context()
    itself = AsItself(kind, context.origin.identity)
    call = itself.value, args, dict(kwargs), resident, owner, *([concurrency] if concurrency > 1 else [])
    data, dependencies, names = dump_args_and_names(call, {}, context.origin)
    runs: Any = run_actor if concurrency == 1 else run_concurrent_actor
    code = context.code.within(dump_code(runs, names | itself.names), context.setting.of(context.options.env))
    if dependencies:
        session.flush_before(dependencies)
        processes.flush_others(context, dependencies)
    spec = FutureSpec(
        CodeDigest(code.digest),
        data,
        session=session.id,
        dependencies=dependencies,
        requirements=options.requirements,
        max_retries=restarts,
        max_worker_losses=restarts,
        max_oom=restarts,
        max_restarts=restarts,
        allow_reconstruction=False,
        priority=options.priority,
        unschedulable_timeout=options.unschedulable_timeout,
        name=f"actor {kind.__name__}",
        call_options=dump_retry_on(()),  # what its constructor raises ends it
    )
    blobs: list[bytes] = []
    if len(data) > MAX_BATCH_BYTES:
        what = f"the arguments of actor {kind.__name__}"
        blobs = [put_blob(run, session.db, session.space, data, session=session_referrer(session.id), what=what)]
        spec.args = CodeDigest(blobs[0])
    return spec, blobs, code, itself.holds


def get_actor(context: ClientContext, name: str) -> Actor[Any]:
    """See `Client.get_actor`."""
    found = ask(context().db, actors.named_actor, context.space, name, strategy="off")
    if found is None:
        raise LookupError(f"cluster {context.cluster!r} has no actor named {name!r}: make it with client.actor")
    return Actor(context, found, name, frozenset())


def end_actor(context: ClientContext, actor: Actor[Any]) -> None:
    """See `Client.kill_actor`."""
    gone = Failure("cancelled", f"actor {actor._label} was ended by kill_actor")
    ask(context().db, cancel_future, context.space, actor._id, gone)
    with contextlib.suppress(ValueError):
        context.own_actors.remove(actor._id)


def actor_id(actor: Actor[Any]) -> bytes:
    """The id of the future that the actor's process runs."""
    return actor._id


def methods_of(kind: type) -> frozenset[str]:
    """Names of what can be called."""
    return frozenset(name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None)))


def _attach(
    actor: bytes, label: str, methods: frozenset[str], origin: tuple[str, bytes, str | None] | None = None
) -> Actor[Any]:
    return Actor(home_of(origin), actor, label, methods)
