"""Makes futures of calls: the way from `Client.submit` to the session's batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from fdb_datamodel import CodeDigest, FutureSpec, id_for_key, new_future_id
from fdb_schema.serving import tracing
from futures_worker.client.basis import processes
from futures_worker.client.basis.options import DEFAULT_OPTIONS, SubmitOptions, options_of
from futures_worker.client.basis.program import current_program
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future, record_of
from futures_worker.client.inputs import MOST_INPUTS, join, joined
from futures_worker.client.submits.large_arguments import LARGE, note_large
from futures_worker.client.submits.limiting import known_limits
from futures_worker.client.submits.locality import locality_of
from futures_worker.failure import PROGRAM
from futures_worker.payload import Code, arguments_digest, dump_args_and_names, dump_function
from futures_worker.worker.child.task_context import current_task
from futures_worker.worker.child.task_logging import with_log_level
from futures_worker.worker.soft_timeout import with_soft_timeout

CALLS_PER_REQUEST: Final = 100
BYTES_PER_REQUEST: Final = 300_000
"""Calls of one request of a program, and bytes of their arguments: one transaction each."""


class Call(NamedTuple):
    """A call that is about to be submitted. stored: it is there for sure, by a key that was submitted before. joints: futures in
    between that it depends on, which are held until it is submitted."""

    record: FutureRecord
    spec: FutureSpec
    code: Code
    holds: tuple[bytes, ...]
    stored: bool = False
    joints: tuple[Future[Any], ...] = ()


def submit(
    context: ClientContext,
    options: SubmitOptions,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Future[Any]:
    """The future of `fn(*args, **kwargs)`; see `Client.submit`."""
    call = _prepare(context, options, fn, args, kwargs)
    if options.tr is not None:
        context().submit_within(options.tr, call.record, call.spec, call.code, call.holds)
        return Future(context, call.record)
    program = current_program()
    if program is not None:
        return program.submit(context, [call])[0]  # type: ignore[no-any-return]
    if call.stored:
        return Future(context, call.record)
    return Future(context, context().submit(call.record, call.spec, call.code, call.holds))


def _prepare(
    context: ClientContext,
    options: SubmitOptions,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    session = context()
    defaults = options_of(fn)
    if defaults:
        options = options.with_defaults(defaults)
    data, dependencies, names = dump_args_and_names(args, kwargs, context.origin)
    code, holds = dump_function(fn, names, context.code, context.origin.identity)
    code = context.code.within(code, context.setting.of(options.env))
    if len(data) >= LARGE:
        note_large(args, kwargs, options.name or code.name)
    if dependencies:
        session.calls.record(dependencies)
        processes.flush_others(context, dependencies)
    name = options.name or code.name
    future_id = new_future_id() if options.key is None else id_for_key(context.cluster, options.key)
    joints: tuple[Future[Any], ...] = ()
    if len(dependencies) > MOST_INPUTS and options.tr is None:
        joints = _join(context, dependencies, name, options)
        dependencies = tuple(record_of(joint).id for joint in joints)
    spec = FutureSpec(
        code=CodeDigest(code.digest),
        args=data,
        id=future_id,
        session=session.id,
        dependencies=dependencies,
        name=name,
    )
    task = current_task()
    if task is not None and not task.actor:
        spec.parent = task.id
    if options is not DEFAULT_OPTIONS:
        apply_options(context, options, spec)
        if options.key is not None and options.tr is None:  # a transaction has to hold it, whoever else may
            known = session.pending.get(future_id)
            if known is not None and known.subscribed:  # it is there for sure
                return Call(known, spec, code, tuple(holds), stored=True)
    if tracing.enabled():
        spec.call_options = tracing.with_trace(spec.call_options)
    if context.log_level is not None:
        spec.call_options = with_log_level(spec.call_options, context.log_level)
    limit_softly(options, spec)
    own = options.key is None and options.tr is None  # its rows are this session's, and are sure to be
    record = FutureRecord(future_id, name, stored=False, subscribed=own)
    record.streams = code.streams
    if spec.durable and code.coroutine:
        raise TypeError(f"{name} is a coroutine function, which can't be a program: write it as a plain function")
    if spec.durable and record.streams:
        raise TypeError(
            f"{name} is a generator, which can't be a program: let a program publish, or submit a generator"
        )
    return Call(record, spec, code, tuple(holds), joints=joints)


def submit_each(
    context: ClientContext,
    options: SubmitOptions,
    fn: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    batch: int | None,
    kwargs: dict[str, Any],
    keys: Sequence[Any] | None = None,
) -> list[Future[Any]]:
    """One future per item; see `Client.map`. `keys`: one per item."""
    items: Iterable[tuple[Any, ...]] = zip(*iterables, strict=False)
    if keys is not None:
        items = list(items)
        if len(items) != len(keys):
            raise ValueError(f"key has {len(keys)} keys for {len(items)} items: give one per item, or a prefix")
    futures: list[Future[Any]] = []
    program = current_program()
    if program is not None and options.tr is None:
        return _ask_for_each(context, options, fn, items, kwargs, keys)
    for number, args in enumerate(items, start=1):
        futures.append(submit(context, _of_item(options, keys, number - 1, args, kwargs), fn, args, kwargs))
        if batch is not None and number % batch == 0:
            context().flush()
    return futures


def _of_item(
    options: SubmitOptions, keys: Sequence[Any] | None, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SubmitOptions:
    if keys is not None:
        return options.changed(key=keys[number])
    if options.key is not None:
        return replace(options, key=f"{options.key}-{arguments_digest(args, kwargs)}")
    return options


def _ask_for_each(
    context: ClientContext,
    options: SubmitOptions,
    fn: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    kwargs: dict[str, Any],
    keys: Sequence[Any] | None,
) -> list[Future[Any]]:
    """`submit_each` inside a program: many calls are one request."""
    program = current_program()
    futures: list[Future[Any]] = []
    page: list[Call] = []
    size = 0
    for number, args in enumerate(items):
        call = _prepare(context, _of_item(options, keys, number, args, kwargs), fn, args, kwargs)
        if page and (len(page) == CALLS_PER_REQUEST or size + len(call.spec.args) > BYTES_PER_REQUEST):
            futures += program.submit(context, page) if program is not None else ()
            page, size = [], 0
        page.append(call)
        size += len(call.spec.args)
    if page and program is not None:
        futures += program.submit(context, page)
    return futures


def _join(
    context: ClientContext, dependencies: tuple[bytes, ...], name: str, options: SubmitOptions
) -> tuple[Future[Any], ...]:
    """Futures in between, of at most `MOST_INPUTS` each."""

    def submit_joint(inputs: tuple[Future[Any], ...], number: int) -> Future[Any]:
        key = None if options.key is None else f"{options.key}/inputs-{number}"
        chosen = replace(
            DEFAULT_OPTIONS, name=f"inputs of {name}"[:500], keep=False, key=key, priority=options.priority
        )
        return submit(context, chosen, joined, inputs, {})

    return join(dependencies, context, submit_joint)


def apply_options(context: ClientContext, options: SubmitOptions, spec: FutureSpec) -> None:
    """Put options into a spec, in the data model's terms."""
    spec.requirements = options.requirements
    spec.max_retries = options.max_retries
    spec.max_worker_losses = options.max_worker_losses
    spec.max_oom = options.max_oom
    spec.priority = options.priority
    spec.queue_timeout = options.queue_timeout
    spec.run_timeout = options.run_timeout
    spec.total_timeout = options.total_timeout
    spec.unschedulable_timeout = options.unschedulable_timeout
    spec.allow_reconstruction = options.allow_reconstruction
    spec.call_options = options.call_options
    spec.backoff = options.backoff
    spec.locality = locality_of(context, options.locality)
    spec.keep, spec.ttl, spec.dataset = options.kept, options.ttl, options.dataset
    spec.after = options.after if options.at is None else max(0.0, options.at - time.time()) or None
    if options.limits:
        spec.limits = known_limits(context, options.limits)
    if options.durable:
        if options.call_options:
            raise ValueError(
                "retry_on is of tasks: what a program raises ends it; retry its steps, `step(fn, retries=3)`"
            )
        spec.durable, spec.call_options = True, PROGRAM


def limit_softly(options: SubmitOptions, spec: FutureSpec) -> None:
    """Put the soft limit into a spec whose other options are there. Raises ValueError where it can't be one."""
    soft, hard = options.soft_timeout, options.run_timeout
    if soft is None:
        return
    if options.durable:
        raise ValueError("soft_timeout is of tasks: a program is interrupted at no other place than its requests")
    if hard is not None and soft >= hard:
        raise ValueError(f"soft_timeout is to be less than the timeout of an attempt, found {soft} and {hard} s")
    spec.call_options = with_soft_timeout(spec.call_options, soft)
