"""`lease-locks run NAME -- COMMAND`: a command that runs only while a lease is held."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, fail, printable
from fdb_schema.errors import EXIT_ACQUIRE_TIMED_OUT, EXIT_FAILED, EXIT_LOCK_STOLEN
from fdb_schema.serving.logs import redacted
from lease_locks.cli import keeper
from lease_locks.cli.keeper import boottime, say
from lease_locks.errors import AcquireTimeout
from lease_locks.grants.observer import FENCE, OVERHOLD, UNCHANGED
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.session.host import MARK, mark, process_start
from lease_locks.session.session import Session
from lease_locks.session.upkeep import of_database
from lease_locks.waiting.claims import MOST_SECONDS

_GRACE_SECONDS: Final = 5.0
_ORDERS_PER_TTL: Final = 10
_END_SECONDS: Final = 1.0
_PATIENCE_AFTERWARDS: Final = 1.0
"""Seconds for what is left to be done, where the database didn't answer the release."""
_NOT_FORWARDED: Final = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
}
"""Of this process alone: what nobody can catch, what says something of it, and what its own defects cause."""


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
    conflict_exit_code: Annotated[
        int, typer.Option("--conflict-exit-code", "-E", min=0, max=255, help="Where the lease isn't had in time.")
    ] = EXIT_ACQUIRE_TIMED_OUT,
    lost_exit_code: Annotated[
        int, typer.Option("--lost-exit-code", min=0, max=255, help="Where the lease was lost and the command stopped.")
    ] = EXIT_LOCK_STOLEN,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
) -> None:
    """Run a command while a lease is held; its exit code is the command's, also where the lease can't be given back.

    If the lease is lost the command is stopped (TERM, then KILL) and the exit code is 47. Whatever the command started ends
    with it, before the lease is free. Signals are passed on to it; Ctrl-Z stops it as well, and for longer than 0.8 ttl loses
    the lease. The command finds the fencing token in MAINSPRING_LEASE_TOKEN, to hand to what it writes to.
    """
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise typer.BadParameter("there is no command to run", param_hint="COMMAND")
    locks = LeaseManager(db, cluster, ttl)
    with _kept(command) as kept:
        # Only when both processes are gone may another take over at once: each kills the command where the other ended.
        session = locks.session
        session.record = replace(session.record, helpers=(kept.helper,))
        with _bounded(kept), _closed(locks):
            try:
                lease = locks.acquire(  # which also begins the session, within its timeout
                    name,
                    timeout=timeout,
                    mode="shared" if shared else "exclusive",
                    slots=slots,
                    max_hold=max_hold,
                    meta={
                        "command": " ".join(command)[:200].encode(errors="replace").decode()
                    },  # any bytes may be an argument
                )
            except AcquireTimeout as error:
                fail(str(error), conflict_exit_code)
            lease.part.lingers = True  # nobody gets it while the command still ends
            code = _Supervision(lease, kept, grace, max_hold).run()
            if not lease.held:
                if lease.part.leave is not None:
                    session.owe(lease.part.leave)
                fail(f"lease {name!r} was lost ({lease.lost_reason}), {command[0]!r} was stopped", lost_exit_code)
            _give_back(session, lease)
    if kept.failed:
        missing = kept.failed in (errno.ENOENT, errno.ENOTDIR)
        fail(f"{command[0]!r} can't be run: {os.strerror(kept.failed)}", 127 if missing else 126)
    if code is None:
        fail(f"the process that kept {command[0]!r} was killed, so the command was, too", EXIT_FAILED)
    raise typer.Exit(code)


def _give_back(session: Session, lease: Lease) -> None:
    """Release the lease; where the database doesn't answer, say what becomes of it."""
    session.exiting = True  # what is owed then, nobody pays
    try:
        lease.release()
    except Exception as error:
        if not of_database(error):
            raise
        session.close_seconds = _PATIENCE_AFTERWARDS
        text = f"warning: lease {lease.name!r} wasn't given back, it runs out by itself after about {lease.ttl:g} s: {error}"
        print(printable(redacted(text)), file=sys.stderr)


@contextlib.contextmanager
def _closed(locks: LeaseManager) -> Iterator[None]:
    """Left as `with locks`, but entered without a word with the database."""
    with contextlib.ExitStack() as stack:
        stack.push(locks)
        yield


@contextlib.contextmanager
def _bounded(kept: _Kept) -> Iterator[None]:
    """Once the command has ended, a database that doesn't answer changes nothing of what it came to."""
    try:
        yield
    except Exception as error:
        if not (kept.over and of_database(error)):
            raise


class _Kept:
    """The keeper process, and what is known of its command."""

    def __init__(self, command: list[str]) -> None:
        orders, self._orders = os.pipe()
        self.reports, reports = os.pipe()
        self._others = keeper.descendants()  # of whoever became this process by exec
        arguments = [sys.executable, "-I", "-S", keeper.__file__, str(orders), str(reports), *command]
        os.set_blocking(self._orders, False)  # a keeper that is stopped holds up nobody
        self.process = subprocess.Popen(arguments, pass_fds=(orders, reports), start_new_session=True)
        os.close(orders)
        os.close(reports)
        self.pid = self.process.pid
        start = process_start(self.pid)
        self.helper = self.pid, start[0] if start else 0
        self.command: int | None = None  # its pid while it may be signalled
        self.code: int | None = None
        self.failed = 0
        self.over = False  # the keeper has ended, and nothing of the command is left
        self._lines = keeper.Lines(self.reports)
        self._waiting: list[int] = []  # signals that came before the command was there

    def order(self, **what: Any) -> None:
        say(self._orders, **what)

    def hear(self) -> None:
        """Take in what the keeper reported."""
        reports = self._lines.read()
        if reports is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)
            self.kill()
            return
        for report in reports:
            self.command = report.get("started", self.command)
            self.failed = report.get("failed", self.failed)
            if "exit" in report:
                self.code, self.command = report["exit"], None
                os.close(self._orders)  # it kills what the command left behind, and ends
                self._orders = -1
        while self.command is not None and self._waiting:
            self.signal(self._waiting.pop(0))

    def signal(self, number: int) -> None:
        """Pass a signal on to the command's process group."""
        if self.command is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.command, number)
        elif self.code is None:
            self._waiting.append(number)

    def stop_or_go_on(self, number: int) -> None:
        """SIGSTOP or SIGCONT for all that came of the command, what it starts meanwhile included."""
        told: set[int] = set()
        while new := set(keeper.descendants(self._others)) - told - {self.pid}:
            keeper.signal_all(new, number)
            told |= new

    def kill(self) -> None:
        """The keeper, the command and all that came of it; nothing where the keeper has done so, and ended."""
        if self.process.poll() != 0:
            keeper.kill_descendants(self._others)
        self.command, self.over = None, True


@contextlib.contextmanager
def _kept(command: list[str]) -> Iterator[_Kept]:
    keeper.adopt_orphans()
    kept = _Kept(command)
    try:
        yield kept
    finally:
        kept.kill()
        keeper.adopt_orphans(False)


class _Supervision:
    """The lease's process while the command runs: signals, the lease's loss, and the keeper's deadline."""

    def __init__(self, lease: Lease, kept: _Kept, grace: float | None, max_hold: float | None = None) -> None:
        self._lease = lease
        self._kept = kept
        self._grace = grace
        self._max_hold = max_hold
        self._kill_at: float | None = None  # once the lease is lost
        self._wake = -1

    def run(self) -> int | None:
        """Until nothing of the command is left; its exit code, None where there is none."""
        kept, lease = self._kept, self._lease
        woken, self._wake = os.pipe()
        for end in (woken, self._wake):
            os.set_blocking(end, False)
        before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers = {n: signal.signal(n, _noted) for n in signal.valid_signals() - _NOT_FORWARDED if _handled(n)}
        try:
            lease.on_lost(self._lost)
            marks = f"{os.environ.get(MARK, '')} {mark(kept.helper)}".strip()
            env = {"MAINSPRING_LEASE_NAME": lease.name, "MAINSPRING_LEASE_TOKEN": lease.token.hex, MARK: marks}
            if lease.held:
                kept.order(env=env, by=boottime() + lease.remaining(), until=self._until())
            else:  # this process was stopped since it was had: nothing is begun
                kept.kill()
            while not kept.over:
                ready, _, _ = select.select([kept.reports, woken], [], [], self._pause())
                if woken in ready:
                    for number in os.read(woken, 4_096):
                        self._signalled(number)
                if kept.reports in ready:
                    kept.hear()
                if not lease.held and not kept.over:
                    self._stop()
                elif self._kill_at is None:
                    kept.order(until=self._until())
            return kept.code
        finally:
            kept.kill()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            wake, self._wake = self._wake, -1
            os.close(wake)
            os.close(woken)

    def _lost(self, lease: Lease) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\x00")

    def _pause(self) -> float:
        pause = min(1.0, self._lease.ttl / _ORDERS_PER_TTL)
        return pause if self._kill_at is None else max(0.0, min(pause, self._kill_at - boottime()))

    def _until(self) -> float:
        """When the keeper is to kill the command unless it is told otherwise: this process may be stopped until then."""
        grace = _own_grace(self._lease, self._max_hold) if self._grace is None else self._grace
        return boottime() + self._lease.remaining() + grace

    def _signalled(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._kept.stop_or_go_on(signal.SIGSTOP)
            ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # and is stopped here
            signal.signal(signal.SIGTSTP, ours)
            if self._lease.held:
                self._kept.order(until=self._until())
                self._kept.stop_or_go_on(signal.SIGCONT)
            else:
                self._kept.kill()
        elif number:
            self._kept.signal(number)

    def _stop(self) -> None:
        """The lease is lost: TERM, and KILL after the grace."""
        if self._kill_at is None:
            self._kill_at = boottime() + (_grace(self._lease, self._max_hold) if self._grace is None else self._grace)
            self._kept.order(until=self._kill_at + 1.0)
            self._kept.signal(signal.SIGTERM)
        elif boottime() >= self._kill_at:
            self._kept.kill()


def _noted(number: int, frame: Any) -> None:
    """Its number comes through the wakeup descriptor."""


def _handled(number: int) -> bool:
    """Whether the signal has its usual effect here: what was ignored (nohup) stays so."""
    return signal.getsignal(number) not in (signal.SIG_IGN, None)


def _grace(lease: Lease, max_hold: float | None) -> float:
    """Between TERM and KILL."""
    own = lease.lost_reason in ("unreachable", "max_hold")
    return _own_grace(lease, max_hold) if own else _GRACE_SECONDS


def _own_grace(lease: Lease, max_hold: float | None) -> float:
    """Where the holder only fenced itself: until the earliest moment at which another may hold the lease, UNCHANGED × ttl
    after the last renewal, or OVERHOLD × max_hold after it was had, by a clock that runs 10 % fast, if this one runs 10 % slow."""
    grace = min(_GRACE_SECONDS, (UNCHANGED / 1.1 - FENCE / 0.9) * lease.ttl)
    return grace if max_hold is None else min(grace, (OVERHOLD / 1.1 - 1 / 0.9) * max_hold)
