"""The process dies at each named failpoint, restarts, drains: every guarantee holds. None of the names is forgotten."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fdb_schema import open_database
from s3heap_tender import TaskNotFoundError, TransitionError, failpoints
from s3heap_tender.errors import SimulatedCrash

COMMITS = (
    "backfill",
    "begin",
    "boundary",
    "claim",
    "clear",
    "create",
    "delete",
    "fail",
    "finish",
    "forget",
    "mark_dirty",
    "pause",
    "quarantine",
    "reconcile",
    "redrive",
    "resume",
    "run_now",
    "stats",
    "sweep",
)
SEED = 3  # whose processes write more than one item to an object, so that the script meets a lost condition
STORE = ("delete", "get", "list", "put", "put_aside", "remove")
NAMES = [f"sysdb.{name}.{side}" for name in COMMITS for side in ("before", "after")] + [
    f"heap.{name}.{side}" for name in STORE for side in ("before", "after")
]


def script(world: Any) -> list[Callable[[], Any]]:
    """Every operation at least once."""
    partition = world.partitions[0]
    one, two, three = (uuid.UUID(int=n) for n in (1, 2, 3))
    world.tasks.extend((one, two, three))

    def sysdb() -> Any:
        return world.processes[0].sysdb

    def create(id: uuid.UUID, **settings: Any) -> Callable[[], Any]:
        return lambda: sysdb().create_task(partition, id.hex, id=id, backoff=0.0, **settings)

    def write(offset: int) -> Callable[[], Any]:
        return lambda: sysdb().mark_dirty(partition, offset)

    def tend() -> None:
        world.processes[0].tender.turn(prune=False, reconcile=False)

    def start() -> None:
        world.processes[0].scheduler.turn()

    def mend() -> None:
        world.processes[0].tender.turn(prune=True, reconcile=True)

    def prune() -> None:
        world.processes[0].heap.prune()

    def wait() -> None:
        world.clock.sleep(61)

    def slowly() -> None:
        """The commit of a claim takes longer than two ticks of the clock, so the run's later start is stored."""

        def observed(name: str) -> None:
            world._at_failpoint(name)
            if name == "sysdb.claim.after":
                world.clock.sleep(0.7)

        failpoints.observe(observed)
        try:
            start()
        finally:
            failpoints.observe(world._at_failpoint)

    def failing(rate: float) -> Callable[[], Any]:
        return lambda: setattr(world, "fail_rate", rate)

    def disturb() -> None:
        """Another process writes where this one knows what is there: the next push meets a conflict."""
        world.processes[1].heap.push(sysdb().get(one))

    def damage() -> None:
        for listed in list(world.memory.list("")):
            if listed.key[0].isdigit():
                world.memory.put(listed.key, b"damaged", if_match=listed.etag)

    return [
        create(one, cadence=2.0),
        create(two, cadence=0.0, max_attempts=1, overlap="buffer_one"),
        create(three, cadence=0.0),
        *(tend, disturb, write(1), slowly, tend, write(5), tend, start, wait, start),
        *(failing(1.0), write(9), tend, wait, start, tend, start, failing(0.0)),
        lambda: sysdb().redrive(two, sysdb().get(two).gen),
        lambda: sysdb().pause(one),
        *(write(12), tend, start),
        lambda: sysdb().resume(one),
        lambda: sysdb().run_now(two),
        lambda: sysdb().backfill(three, 2),
        *(tend, start, wait, tend, start, wait, prune),
        # The heap's objects are damaged: they are moved aside, and what the sysdb needs comes back.
        lambda: sysdb().run_now(one),
        *(tend, damage, mend, mend, start, wait),
        lambda: sysdb().delete(three),
        *(tend, start, wait, prune),
        lambda: world.clock.sleep(7200),
        mend,
    ]


def play(world: Any, name: str | None, arrival: int) -> None:
    """The script, with a crash at the `arrival`-th arrival at the failpoint `name`: a new process takes the next step."""

    def crash(at: str) -> None:
        world.crashes.append(at)
        raise SimulatedCrash(at)

    if name is not None:
        failpoints.arm(name, crash, arrival=arrival)
    for step in script(world):
        try:
            step()
        except SimulatedCrash:
            world.restart(0)
        except (TransitionError, TaskNotFoundError):
            assert world.crashes, "only a crash before may leave something for a later step to stumble over"


def new_world(seed: int) -> Any:
    world = sys.modules["s3heap_tender_tests_world"]
    virtual = sys.modules["s3heap_tender_tests_virtual"]
    return world.World(open_database(f"memory:points-{uuid.uuid4().hex}"), virtual.VirtualClock, seed)


def settle(world: Any) -> None:
    for _ in range(3):
        world.processes[0].tender.turn(prune=True, reconcile=True)
    world.drain()


def test_the_script_passes_every_failpoint() -> None:
    world = new_world(SEED)
    play(world, None, 1)
    assert world.hit == set(NAMES)
    settle(world)
    world.check()


@pytest.mark.parametrize("arrival", [1, 2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_crash_at_a_failpoint_breaks_no_guarantee(name: str, arrival: int) -> None:
    world = new_world(SEED)
    play(world, name, arrival)
    assert world.crashes == [name] or arrival > 1
    failpoints.disarm()
    settle(world)
    world.check()


def test_a_failpoint_of_the_environment_kills_the_process() -> None:
    code = "from s3heap_tender import failpoints; [failpoints.hit('x') for _ in range(2)]; print('alive', flush=True); failpoints.hit('x')"
    died = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MAINSPRING_FAILPOINTS": "x=kill@3"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (died.returncode, died.stdout) == (-9, b"alive\n")


@pytest.mark.parametrize("text", ["x", "x=boom", "x=kill@two"])
def test_a_failpoint_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=kill"):
        failpoints.arm_from_environment(text)
