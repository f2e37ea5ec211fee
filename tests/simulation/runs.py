"""Runs of seeds: each in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import resource
import select
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import fdb_embedded

fdb_embedded.load()
# ruff: noqa: E402
import fdb

from fdb_embedded.engine.housekeeping import Housekeeper
from futures_worker.objects import work_directory
from futures_worker.objects.work_directory import memory_root
from simulation import descriptors, memos, network, stand_ins, workers
from simulation.machine import START, waiting
from simulation.together import SCENES, Together
from simulation.world import Plan, World

ALL: Final[dict[str, Callable[[World], Any]]] = {"together": Together, **SCENES}
TROUBLED_SECONDS: Final = 120.0
PATIENCE: Final = 1200.0
"""Seconds of calm in which all has to come to its end."""
STUCK_SECONDS: Final = 240.0
"""Of real time, after which a seed is given up: one of its strands runs and never waits. Where is printed."""
MOST_MEMORY: Final = 8 << 30
"""Bytes of address space of a seed's process: what runs and never waits may take all there is."""
Result = dict[str, Any]

workers.install()
memos.install()
stand_ins.take_over({select: descriptors.select_of_machine()}, descriptors.add_to)
network.call_back_in_process(fdb.impl)
network.call_by_own_clock(Housekeeper)


def play(seed: int, scene: str, plan: Plan) -> Result:
    """A seed's history, in this process."""
    world = World(seed, plan)
    played = ALL[scene](world)
    found = ""
    try:
        world.run(TROUBLED_SECONDS, PATIENCE, played.settled)
        rows = world.witness(lambda: [played.end(), list(world.db.get_range(b"", b"\xff"))])
        world.machine.note(repr(rows).encode())
    except BaseException as error:
        found = "".join([*traceback.format_exception(error), "\n".join(["where they wait:", *waiting(world.machine)])])
    here = world.machine
    return {
        "seed": seed,
        "scene": scene,
        "found": found,
        "hash": f"{here.trace:08x}",
        "switches": here.switches,
        "seconds": round(here.now - START, 3),
        "befallen": world.befallen,
        "story": world.story,
    }


class Run(NamedTuple):
    """A seed that a child process plays."""

    child: int
    reading: int
    """Where its result can be read."""
    folder: str
    """For the files of its workers, whose processes are none that others on this host could ask for."""


def forked(seed: int, scene: str, plan: Plan) -> Run:
    """`play` in a child, whose state is that of no other seed."""
    reading, writing = os.pipe()
    folder = tempfile.mkdtemp(prefix="mainspring-simulation-", dir=memory_root())
    child = os.fork()
    if child:
        os.close(writing)
        return Run(child, reading, folder)
    tempfile.tempdir = folder
    work_directory.__dict__["memory_root"] = lambda: Path(folder)
    os.close(reading)
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    gc.disable()  # it collects at the same places in each run
    try:
        result = play(seed, scene, plan)
    except BaseException:
        result = {"seed": seed, "scene": scene, "found": traceback.format_exc(), "hash": "", "story": []}
    with os.fdopen(writing, "w") as out:
        json.dump(result, out)
    sys.stderr.flush()
    os._exit(0)


def result_of(run: Run, seed: int, scene: str) -> Result:
    """What a child found."""
    with os.fdopen(run.reading) as answer:
        text = answer.read()
    os.waitpid(run.child, 0)
    shutil.rmtree(run.folder, ignore_errors=True)
    if not text:
        return {"seed": seed, "scene": scene, "found": "the process that played it died", "hash": "", "story": []}
    found: Result = json.loads(text)
    return found


def results(seeds: range, scene: str, jobs: int) -> Iterator[Result]:
    """Of each seed, `jobs` at a time, in the order of the seeds."""
    under_way: list[tuple[Run, int]] = []
    for seed in seeds:
        under_way.append((forked(seed, scene, Plan.drawn(seed)), seed))
        if len(under_way) == jobs:
            yield result_of(*under_way.pop(0), scene)
    for run, of in under_way:
        yield result_of(run, of, scene)


def shrunk(result: Result) -> tuple[Plan, Result]:
    """A plan with as little in it as the failure needs, and what came of it. What fails may differ: it is told."""
    seed, scene = result["seed"], result["scene"]
    plan = Plan.drawn(seed)

    def fails(tried: Plan) -> Result | None:
        found = result_of(forked(seed, scene, tried), seed, scene)
        return found if found["found"] else None

    smaller = True
    while smaller:
        smaller = False
        for tried in plan.simpler():
            found = fails(tried)
            if found is not None:
                plan, result, smaller = tried, found, True
                break
    least, most = 0, result.get("befallen", 0)
    while least < most:
        tried = replace(plan, most=(least + most) // 2)
        found = fails(tried)
        if found is None:
            least = (least + most) // 2 + 1
        else:
            plan, result, most = tried, found, (least + most) // 2
    return plan, result


def main(parser: argparse.ArgumentParser) -> int:
    """The command; 1 where a seed failed."""
    parser.add_argument("--seeds", default="0:20", help="FIRST:END")
    parser.add_argument("--scene", default="together", choices=[*ALL])
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--twice", action="store_true", help="play each seed twice, and compare the two histories")
    parser.add_argument("--shrink", action="store_true", help="look for the shortest story of a seed that fails")
    parser.add_argument("--story", action="store_true", help="print what befell whom")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    gc.freeze()
    failed = 0
    for result in results(range(first, end), options.scene, options.jobs):
        seed, told = result["seed"], f"{result.get('switches', 0):,} turns in {result.get('seconds', 0):.0f} s"
        if options.twice and not result["found"]:
            again = result_of(forked(seed, options.scene, Plan.drawn(seed)), seed, options.scene)
            if again["hash"] != result["hash"]:
                result["found"] = f"a second run has another history: {again['hash']}"
        print(f"seed {seed}: {'FAILED' if result['found'] else 'ok'}, {result['hash']}, {told}", flush=True)
        plan = Plan.drawn(seed)
        failed += bool(result["found"])
        if result["found"] and options.shrink:
            plan, result = shrunk(result)
        if result["found"] or options.story:
            print(plan, *result["story"], result["found"], sep="\n", flush=True)
    print(f"{end - first} seeds, {failed} failed", flush=True)
    return 1 if failed else 0
