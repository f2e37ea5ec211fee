"""What the body of a program asks for. Outside of a program each does the plain thing, so that a body can be tried and tested."""

from __future__ import annotations

import functools
import random as chance
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from fdb_schema import MainspringError
from futures_worker.client.basis.options import check_name, submit_options
from futures_worker.client.basis.program import current_program, refuse_in_other_thread
from futures_worker.programs.running import Program
from futures_worker.programs.steps import Step
from futures_worker.worker.child.coroutines import finished

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@overload
def durable(function: F, /) -> F: ...
@overload
def durable(**options: Any) -> Callable[[F], F]: ...
def durable(function: Any = None, /, **options: Any) -> Any:
    """A decorator: what is submitted of this function is a program, as by `client.submit(fn, durable=True)`.

    What a program asks for is recorded, so that its next attempt, after its process or worker died, goes on from there:
    submits, maps and puts of a client, waits for their results, and `step`, `sleep`, `now`, `random`, `wait_for_event`,
    `publish`. All else in its body is done again by each attempt, and has to come to the same: what may differ, and what has
    effects outside, belongs into steps. While it waits for longer than a moment it has no process and no slot.

    `options`: of `submit`. Called directly, it is the plain function.
    """
    mark = submit_options(durable=True, **options)
    return mark if function is None else mark(function)


@overload
def step(
    function: Callable[..., Coroutine[Any, Any, T]],
    /,
    *args: Any,
    tr: Any = None,
    retries: int = 0,
    backoff: float = 0.1,
    name: str | None = None,
    **kwargs: Any,
) -> T: ...
@overload
def step(
    function: Callable[..., T],
    /,
    *args: Any,
    tr: Any = None,
    retries: int = 0,
    backoff: float = 0.1,
    name: str | None = None,
    **kwargs: Any,
) -> T: ...
def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    tr: Any = None,
    retries: int = 0,
    backoff: float = 0.1,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Run `function(*args, **kwargs)` in the program's own process, once: later attempts get what it returned, or raised.

    A process that dies in the middle leaves no record: the step then runs again, so what it does outside should bear that.
    A coroutine function has an event loop of its own meanwhile.

    Args:
        tr: True: the step is `function(tr, *args, **kwargs)` in a transaction of the program's database, which also records
            it: its writes happen exactly once.
        retries: further tries after an exception, before that is recorded and raised.
        backoff: seconds before the first of them, doubled for each further one, at most 60.
        name: what the step is called in the history; by default the function's name.

    Raises what the function raises; ResultPickleError.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is a whole number, 0 or more, found {retries!r}")
    if isinstance(backoff, bool) or not isinstance(backoff, (int, float)) or not 0 <= backoff < float("inf"):
        raise ValueError(f"backoff is a number of seconds, 0 or more, found {backoff!r}")
    if tr not in (None, False, True):
        raise TypeError(
            f"tr of a step is True: it gets a transaction of the program's database, found {type(tr).__name__}"
        )
    program = _program("step")
    if program is None:
        if tr:
            raise MainspringError("a step with tr=True needs a program, which has the transaction that records it")
        return finished(function(*args, **kwargs))
    label = check_name(name or _name_of(function), "a step")
    return program.step(Step(label, function, args, kwargs, bool(tr), retries, float(backoff)))


def sleep(seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
    """Go on so much later, by the cluster's clock, wherever the program runs then. It holds no process meanwhile."""
    total = seconds + 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    if not 0 <= total <= MOST_SECONDS:
        raise ValueError(f"sleep takes 0 to {MOST_SECONDS:g} seconds, found {total!r}")
    program = _program("sleep")
    if program is None:
        time.sleep(total)
    else:
        program.sleep(total)


MOST_SECONDS = 1e10
"""Three hundred years: of a sleep, or a timeout."""


def now() -> float:
    """Seconds since 1970 as `time.time()` has them, the same for every attempt."""
    program = _program("now")
    return time.time() if program is None else program.now()


def random() -> float:
    """A random number of [0, 1), the same for every attempt: seed `random.Random` with it for more."""
    program = _program("random")
    return chance.random() if program is None else program.random()


def wait_for_event(name: str, timeout: float | None = None) -> Any:
    """The oldest event of that name that was sent to this program (`future.send`) and not taken yet; waits for one.

    Raises TimeoutError after `timeout` seconds of the cluster's clock; MainspringError outside of a program.
    """
    if timeout is not None and not 0 <= timeout <= MOST_SECONDS:
        raise ValueError(f"timeout is a number of seconds, 0 or more, found {timeout!r}")
    return _inside("wait_for_event").wait_for_event(check_name(name, "an event"), timeout)


def publish(name: str, value: Any) -> None:
    """Let others read `value` under `name` (`future.published(name)`), in the place of what was published before.

    Raises OversizeError over 60 kB; MainspringError outside of a program.
    """
    _inside("publish").publish(check_name(name, "what is published"), value)


def patched(name: str) -> bool:
    """Whether to run changed code: True, but for programs that passed this place before the change.

    `if patched("vat"): new() else: old()`: programs that are under way keep to what they began with. Outside of a program: True.
    """
    program = _program("patched")
    return True if program is None else program.patched(check_name(name, "a patch"))


def _program(what: str) -> Program | None:
    refuse_in_other_thread(what)
    program = current_program()
    return program if isinstance(program, Program) else None


def _inside(what: str) -> Program:
    program = _program(what)
    if program is None:
        raise MainspringError(f"{what} is asked for by a program: submit the function with durable=True, or @durable")
    return program


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")[-500:]
