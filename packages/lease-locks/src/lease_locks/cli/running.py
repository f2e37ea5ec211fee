"""`lease-locks run NAME -- COMMAND`: a command that runs only while a lease is held."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, fail
from fdb_schema.errors import EXIT_LOCK_STOLEN
from lease_locks.lease import Lease
from lease_locks.locks import MOST_SECONDS, LeaseManager
from lease_locks.observer import FENCE, UNCHANGED

_PR_SET_PDEATHSIG: Final = 1
_GRACE_SECONDS: Final = 5.0


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run")(run_under)


def run_under(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lease's name.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds to wait for the lease; exit code 75 afterwards.")
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds without a heartbeat after which another may take over."),
    ] = 15.0,
    shared: Annotated[bool, typer.Option("--shared", help="Beside other shared holders.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="How many may run at once.")] = 1,
    max_hold: Annotated[
        float | None, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds after which the lease is lost.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds between TERM and KILL when the lease is lost; 5, but when the database is out of reach no longer "
            "than nobody can have taken over.",
            show_default=False,
        ),
    ] = None,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a command while a lease is held; its exit code is the command's.

    If the lease is lost the command is stopped (TERM, then KILL) and the exit code is 47. The command finds the fencing
    token in MAINSPRING_LEASE_TOKEN, to hand to what it writes to.
    """
    if command and command[0] == "--":
        command = command[1:]
    with LeaseManager(db, cluster, ttl) as locks:
        lease = locks.acquire(
            name,
            timeout=timeout,
            mode="shared" if shared else "exclusive",
            slots=slots,
            max_hold=max_hold,
            meta={"command": " ".join(command)[:200]},
        )
        env = {**os.environ, "MAINSPRING_LEASE_NAME": name, "MAINSPRING_LEASE_TOKEN": lease.token.hex}
        try:
            process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=_die_with_parent())
        except OSError as error:
            fail(f"{command[0]!r} can't be run: {error.strerror}", 127)
        stopped = threading.Event()

        def stop(lost: Lease) -> None:
            seconds = _grace(lost) if grace is None else grace
            threading.Thread(target=_stop, args=(process, seconds, stopped), daemon=True).start()

        lease.on_lost(stop)
        restore = _forward(process)
        try:
            code = process.wait()
        finally:
            restore()
            _signal_group(process, signal.SIGKILL)  # nothing of the command outlives its lease
        if lease.lost.is_set():
            fail(f"lease {name!r} was lost ({lease.lost_reason}), {command[0]!r} was stopped", EXIT_LOCK_STOLEN)
        lease.release()
    raise typer.Exit(code if code >= 0 else 128 - code)


def _grace(lease: Lease) -> float:
    """Between TERM and KILL. Where the holder only fenced itself, until the earliest moment at which another may hold it:
    UNCHANGED × ttl after the last renewal by a clock that runs 10 % fast, if this one runs 10 % slow."""
    if lease.lost_reason != "unreachable":
        return _GRACE_SECONDS
    return min(_GRACE_SECONDS, (UNCHANGED / 1.1 - FENCE / 0.9) * lease.ttl)


def _die_with_parent() -> Callable[[], Any] | None:
    """For the child, between fork and exec: be killed when this process is, whose lease then expires. Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return functools.partial(prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # it ended by itself


def _stop(process: subprocess.Popen[bytes], grace: float, stopped: threading.Event) -> None:
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)
    stopped.set()


def _forward(process: subprocess.Popen[bytes]) -> Any:
    """Pass this command's signals on to the one it runs; a function that undoes it."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        before[number] = signal.signal(number, lambda n, _frame: _signal_group(process, n))

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
