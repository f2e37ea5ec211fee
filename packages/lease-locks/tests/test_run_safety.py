"""`lease-locks run`: the command never outlives its lease, by whatever signal any of the processes ends or stops."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lease_processes import DEADLINE, eventually

from lease_locks import AcquireTimeout, LeaseManager


@pytest.fixture
def locks(shared_url: str) -> Iterator[LeaseManager]:
    with LeaseManager(shared_url) as manager:
        yield manager


Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def lease_run(shared_url: str) -> Iterator[Run]:
    """Starts `lease-locks run ARGS…`; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, before: str = "", stdin: int | None = None) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MAINSPRING_DB": shared_url}
        main = before + "from lease_locks.cli import main; main()"
        command = [sys.executable, "-c", main, "run", *args]
        # A group of its own in this session, as a shell makes for a job: a group of no session's can't be stopped.
        process = subprocess.Popen(command, env=env, text=True, stdin=stdin, stdout=-1, stderr=-1, process_group=0)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()  # its keeper kills the rest
        process.communicate(timeout=DEADLINE)


FAMILY = """
import os, subprocess, sys
# A child, one that outlives its parent, and one that left the session: what a process group doesn't hold together.
sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
first = subprocess.Popen(sleep, stdout=-1)
inner = "import subprocess, sys; p = subprocess.Popen(SLEEP, stdout=-1, start_new_session=True); p.stdout.readline(); print(p.pid, flush=True)"
second = int(subprocess.run([sys.executable, "-c", inner.replace("SLEEP", repr(sleep))], stdout=-1).stdout)
first.stdout.readline()
print(os.getpid(), first.pid, second, flush=True)
WAIT
"""
FOR_EVER = "import time; time.sleep(1000)"


def family(run: Run, *options: str, wait: str = FOR_EVER) -> tuple[subprocess.Popen[str], list[int]]:
    """The command under a lease on "a", and the pids of its processes."""
    process = run("a", *options, "--", sys.executable, "-c", FAMILY.replace("WAIT", wait))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return process, [int(pid) for pid in line.split()]


def state(pid: int) -> str:
    """R, S, T (stopped), Z, …; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if state(pid) not in ("", "Z")]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def keeper_of(process: subprocess.Popen[str]) -> int:
    [keeper] = children(process.pid)
    return keeper


def test_nothing_of_the_command_is_left_when_the_lease_of_a_killed_run_is_had(
    locks: LeaseManager, lease_run: Run
) -> None:
    process, pids = family(lease_run, "--ttl", "600")
    process.kill()
    locks.acquire("a", timeout=DEADLINE)
    assert living(pids) == []


def test_nothing_of_the_command_is_left_when_its_keeper_was_killed(locks: LeaseManager, lease_run: Run) -> None:
    process, pids = family(lease_run, "--ttl", "600")
    os.kill(keeper_of(process), signal.SIGKILL)
    locks.acquire("a", timeout=DEADLINE)
    assert living(pids) == []
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "was killed" in errors


@pytest.mark.parametrize("killed", ["both", "neither", "the keeper", "the run"])
def test_what_is_left_of_a_command_keeps_its_lease_where_run_and_keeper_are_killed_or_stopped_at_once(
    locks: LeaseManager, lease_run: Run, killed: str
) -> None:
    process, pids = family(lease_run, "--ttl", "0.5")
    both = {"the keeper": keeper_of(process), "the run": process.pid}
    # A command ends with its keeper, what it started does not.
    left = pids if killed in ("neither", "the run") else pids[1:]
    try:
        for pid in both.values():
            os.kill(pid, signal.SIGSTOP)
        for name, pid in both.items():
            if killed in ("both", name):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: living(pids) == left, "what can end by that ends")
        assert locks.try_acquire("a") is None
        with pytest.raises(AcquireTimeout):
            locks.acquire("a", timeout=1.0)
        assert locks.read("a") is not None
    finally:
        for pid in living([*pids, *both.values()]):
            os.kill(pid, signal.SIGKILL)
    locks.acquire("a", timeout=DEADLINE).release()


LATE = """
import signal, time
from lease_locks import LeaseManager
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the command as well
acquire = LeaseManager.acquire
def late(self, name, **options):
    lease = acquire(self, name, **options)
    assert self.force_release(name, reason="test")
    assert lease.lost.wait(20)
    return lease
LeaseManager.acquire = late
"""
ASLEEP = """
import time
from lease_locks.cli import running
order = running._Kept.order
def late(self, **what):
    if "env" in what:
        what["by"] = time.clock_gettime(time.CLOCK_BOOTTIME)  # as if the keeper read it so late
    order(self, **what)
running._Kept.order = late
"""


def test_a_lease_that_was_lost_before_its_command_began_begins_none(lease_run: Run) -> None:
    process = lease_run("a", "--grace", "0.5", "--", "echo", "begun", before=LATE)
    output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (47, ""), errors


def test_a_keeper_that_is_told_too_late_begins_no_command(locks: LeaseManager, lease_run: Run) -> None:
    process = lease_run("a", "--", "echo", "begun", before=ASLEEP)
    output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (1, ""), errors
    assert locks.read("a") is None


def test_a_command_whose_keeper_was_killed_before_it_began_does_not_begin() -> None:
    """Killed with its run between fork and exec, it would leave a process of which nobody knows that it is of a lease."""
    begun = "import sys; from lease_locks.cli import keeper; keeper.die_with(int(sys.argv[1])); print('begun')"
    for parent, expected in ((os.getpid(), (0, "begun\n")), (1, (1, ""))):
        done = subprocess.run([sys.executable, "-c", begun, str(parent)], stdout=-1, text=True, timeout=DEADLINE)
        assert (done.returncode, done.stdout) == expected


DEAF = """
import os, signal, sys
# One that hears nothing, twice forked out of its session, and started anew by exec.
out, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for name in ("TERM", "INT", "HUP", "QUIT"):
            signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
        os.write(told, str(os.getpid()).encode())
        os.execvp("sleep", ["sleep", "1000"])
    os._exit(0)
os.wait()
print(os.getpid(), int(os.read(out, 20)), flush=True)
os.execvp("sleep", ["sleep", "1000"])
"""


@pytest.mark.parametrize(
    ("whom", "name"),
    [
        *(("the run", name) for name in ("TERM", "HUP", "INT", "QUIT", "ABRT")),
        *(("the keeper", "TERM"), ("the command", "KILL"), ("the run's group", "KILL")),
    ],
    ids=lambda what: what.replace(" ", "_"),
)
def test_nothing_of_the_command_is_left_when_the_lease_is_had_whoever_got_which_signal(
    locks: LeaseManager, lease_run: Run, whom: str, name: str
) -> None:
    process = lease_run("a", "--ttl", "600", "--", sys.executable, "-S", "-c", DEAF)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    number = getattr(signal, f"SIG{name}")
    if whom == "the run's group":
        os.killpg(process.pid, number)
    else:
        os.kill({"the run": process.pid, "the keeper": keeper_of(process), "the command": pids[0]}[whom], number)
    locks.acquire("a", timeout=DEADLINE)
    assert len(pids) == 2
    assert living(pids) == []


@pytest.mark.parametrize("whom", ["the run", "the keeper"])
def test_nothing_of_the_command_is_left_when_a_stopped_run_is_succeeded(
    locks: LeaseManager, lease_run: Run, whom: str
) -> None:
    process, pids = family(lease_run, "--ttl", "2", "--grace", "0.1")
    os.kill(process.pid if whom == "the run" else keeper_of(process), signal.SIGSTOP)
    if whom == "the keeper":
        assert locks.force_release("a", reason="test")  # it stops its command without the keeper's help
        _, errors = process.communicate(timeout=DEADLINE)
    else:
        locks.acquire("a", timeout=DEADLINE)
        assert living(pids) == []
        os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=DEADLINE)
    assert living(pids) == []
    assert process.returncode == 47
    assert "was lost" in errors


def test_control_z_stops_the_command_too_and_going_on_goes_on(lease_run: Run) -> None:
    process, pids = family(lease_run, "--ttl", "600", wait="import sys; first.wait(); sys.exit(5)")
    process.send_signal(signal.SIGTSTP)
    eventually(lambda: state(process.pid) == "T", "the run is stopped")
    eventually(lambda: [state(pid) for pid in pids] == ["T", "T", "T"], "and so is all of its command")
    process.send_signal(signal.SIGCONT)
    eventually(lambda: not {state(pid) for pid in [process.pid, *pids]} & {"T"}, "all go on")
    os.kill(pids[1], signal.SIGKILL)  # what the command waits for
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 5
    assert living(pids) == []


def test_a_command_stopped_for_longer_than_its_lease_lives_does_not_go_on(locks: LeaseManager, lease_run: Run) -> None:
    process, pids = family(lease_run, "--ttl", "1")
    process.send_signal(signal.SIGTSTP)
    locks.acquire("a", timeout=DEADLINE)
    assert living(pids) == []
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 47


SIGNALLED = """
import signal, sys, threading
heard = threading.Event()
def told(number, frame):
    print("heard", number, flush=True)
    sys.exit(9)
for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "WINCH"):
    signal.signal(getattr(signal, "SIG" + name), told)
signal.signal(signal.SIGRTMIN, told)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("name", ["INT", "QUIT", "USR1", "USR2", "RTMIN"])
def test_signals_are_the_commands(lease_run: Run, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    process = lease_run("a", "--", sys.executable, "-c", SIGNALLED)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=DEADLINE)
    assert output == f"heard {int(number)}\n"
    assert process.returncode == 9


def test_a_command_that_dies_of_a_signal_is_told_as_shells_tell_it(lease_run: Run) -> None:
    process = lease_run("a", "--", "sh", "-c", "kill -ABRT $$")
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGABRT


def test_what_the_command_leaves_in_the_background_ends_before_the_lease_is_free(
    locks: LeaseManager, lease_run: Run
) -> None:
    process, pids = family(lease_run, "--ttl", "600", wait="")
    locks.acquire("a", timeout=DEADLINE)
    assert living(pids) == []
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0


def test_nobody_has_the_lease_while_a_command_held_for_too_long_still_ends(locks: LeaseManager, lease_run: Run) -> None:
    process, pids = family(
        lease_run, "--max-hold", "2", wait="import signal; signal.signal(15, signal.SIG_IGN); " + FOR_EVER
    )
    locks.acquire("a", timeout=DEADLINE)
    assert living(pids) == []
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 47


OTHERS = """
import subprocess, sys
others = subprocess.Popen(["sh", "-c", "while :; do sleep 1000; done"], stdout=-3, stderr=-3)
print(others.pid, flush=True)
"""


def test_what_was_there_before_it_became_the_run_is_left_alone(lease_run: Run) -> None:
    """As of a script that ends with `exec lease-locks run`: a run that kills what such processes go on to start never ends."""
    wait = "import sys; sys.stdin.read()"
    process = lease_run("a", "--", sys.executable, "-c", f"print('begun', flush=True); {wait}", before=OTHERS, stdin=-1)
    assert process.stdout is not None
    others = int(process.stdout.readline())
    try:
        assert process.stdout.readline() == "begun\n"
        eventually(lambda: children(others) != [], "they started one")
        first = children(others)
        os.kill(first[0], signal.SIGKILL)
        eventually(lambda: bool(children(others)) and children(others) != first, "and another one")
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
        assert living(children(others)) == children(others) != first
    finally:
        for pid in (others, *children(others)):
            os.kill(pid, signal.SIGKILL)


# --- exit codes


def test_a_command_may_have_arguments_that_are_no_text(lease_run: Run) -> None:
    process = lease_run("a", "--", "test", "-n", os.fsdecode(b"\xff"))
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [(["/no/such"], 127, "/no/such"), (["PLAIN"], 126, "Permission denied"), (["--"], 2, "no command")],
    ids=["not found", "not executable", "nothing"],
)
def test_what_can_not_be_run_is_told_as_shells_tell_it(
    lease_run: Run, locks: LeaseManager, tmp_path: Path, command: list[str], code: int, said: str
) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    plain.chmod(stat.S_IRUSR)
    process = lease_run("a", "--", *(str(plain) if word == "PLAIN" else word for word in command))
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == code
    assert said in errors
    assert "Traceback" not in errors
    assert locks.read("a") is None


def test_the_commands_own_exit_codes_can_be_told_from_those_of_the_lease(lease_run: Run, locks: LeaseManager) -> None:
    lost = lease_run("a", "--lost-exit-code", "90", "--", "sh", "-c", "echo; exec sleep 1000")
    assert lost.stdout is not None
    assert lost.stdout.readline()
    late = lease_run("a", "--timeout", "0", "-E", "91", "--", "true")
    late.communicate(timeout=DEADLINE)
    assert late.returncode == 91
    assert locks.force_release("a", reason="test")
    lost.communicate(timeout=DEADLINE)
    assert lost.returncode == 90


SILENT = """
from fdb_schema import open_database
from lease_locks.cli import running
from silent_database import Hanging
class Manager(running.LeaseManager):
    def __init__(self, db, cluster, ttl):
        super().__init__(Hanging(open_database(db)), cluster, ttl)
        self.session.close_seconds = 0.3
running.LeaseManager = Manager
run = running._Supervision.run
def ended(self):
    code = run(self)
    self._lease._session.db.hangs = lambda: WHEN
    return code
running._Supervision.run = ended
"""
CLOSING = "self._lease._session.upkeep.stopping"


@pytest.mark.parametrize(("when", "code"), [("True", 5), ("True", 127), (CLOSING, 5)])
def test_the_exit_code_is_the_commands_also_where_the_database_is_silent_afterwards(
    lease_run: Run, when: str, code: int
) -> None:
    command = ["/no/such"] if code == 127 else ["sh", "-c", f"exit {code}"]
    process = lease_run("a", "--ttl", "600", "--", *command, before=SILENT.replace("WHEN", when))
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == code, errors
    assert ("lease 'a' wasn't given back, it runs out by itself" in errors) == (when == "True"), errors
    assert "as soon as the database answers" not in errors, "nobody is there to release it then"
    assert "Traceback" not in errors


def test_a_database_that_is_silent_from_the_start_is_waited_for_as_long_as_the_lease(lease_run: Run) -> None:
    silent = "Hanging(open_database(db)), cluster, ttl)"
    before = SILENT.replace(silent, silent + "\n        self.db.hangs = lambda: True")
    process = lease_run("a", "--timeout", "0.2", "--", "true", before=before)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75, errors
    assert "did not answer" in errors


@pytest.mark.parametrize("timeout", ["inf", "1e12"])
def test_a_timeout_beyond_all_measure_is_none(lease_run: Run, timeout: str) -> None:
    process = lease_run("a", "--timeout", timeout, "--", "true")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors


def test_acquire_takes_a_timeout_beyond_all_measure(any_db: Any) -> None:
    with LeaseManager(any_db) as manager:
        for timeout in (float("inf"), 3e6, 1e12, 1e300):
            manager.acquire("a", timeout=timeout).release()
        with pytest.raises(ValueError, match="timeout"):
            manager.acquire("a", timeout=float("nan"))
