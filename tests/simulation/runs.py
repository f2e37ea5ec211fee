"""Runs of seeds: each in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

import fdb_embedded

fdb_embedded.load()
# ruff: noqa: E402
import fdb
from fdb_embedded.engine.housekeeping import Housekeeper
from simulation import descriptors, network, stand_ins, workers
from simulation.futures import Futures
from simulation.heaps import Heaps
from simulation.leases import Leases
from simulation.machine import waiting
from simulation.world import Plan, World

SCENES: Final[dict[str, Callable[[World], Any]]] = {"leases": Leases, "heaps": Heaps, "futures": Futures}

_MACHINE_SECONDS: Final = 120.0
_PATIENCE: Final = float(os.environ.get("SIMULATION_PATIENCE", "900"))

workers.install()
stand_ins.take_over({select: descriptors.select_of_machine()}, descriptors.add_to)
network.call_back_in_process(fdb.impl)
network.call_by_own_clock(Housekeeper)


def one(seed: int, scene: str) -> dict[str, Any]:
    """Play a seed in this process."""
    world = World(seed, Plan.drawn(seed))
    if os.environ.get("SIMULATION_TICKS"):
        _tick(world)
    played = SCENES[scene](world)
    found = ""
    try:
        world.run(_MACHINE_SECONDS, _PATIENCE, played.settled)
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
        "seconds": round(here.now - 1000, 3),
        "story": world.story,
        "plan": repr(world.plan),
    }


def _tick(world: World) -> None:
    """Tell now and then how far it is."""
    here = world.machine
    print(f"{here.now - 1000:.0f} s, {here.switches} switches", file=sys.stderr, flush=True)
    here.after(10.0, lambda: _tick(world))


def forked(seed: int, scene: str) -> dict[str, Any]:
    """`one` in a child, whose state is that of no other seed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        gc.disable()
        try:
            result = json.dumps(one(seed, scene))
        except BaseException:
            result = json.dumps({"seed": seed, "scene": scene, "found": traceback.format_exc(), "hash": "", "story": []})
        with os.fdopen(writing, "w") as out:
            out.write(result)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        return {"seed": seed, "scene": scene, "found": "the process that played it died", "hash": "", "story": []}
    return json.loads(text)  # type: ignore[no-any-return]


def main(parser: argparse.ArgumentParser) -> int:
    parser.add_argument("--seeds", default="0:10", help="FIRST:END")
    parser.add_argument("--scene", default="leases", choices=[*SCENES])
    parser.add_argument("--story", action="store_true", help="print what befell whom")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    gc.freeze()
    failed = 0
    for seed in range(first, end):
        result = forked(seed, options.scene)
        failed += bool(result["found"])
        print(f"{seed} {result['hash']} {result.get('switches')} switches, {result.get('seconds')} s", flush=True)
        if result["found"] or options.story:
            print(result.get("plan"), *result["story"], result["found"], sep="\n", flush=True)
    return 1 if failed else 0
