"""Runs of seeds: each in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

import fdb_embedded

fdb_embedded.load()
# ruff: noqa: E402
import fdb
import lease_locks.session.host
from simulation import network, stand_ins
from simulation.heaps import Heaps
from simulation.leases import Leases
from simulation.world import Plan, World

SCENES: Final[dict[str, Callable[[World], Any]]] = {"leases": Leases, "heaps": Heaps}

_MACHINE_SECONDS: Final = 120.0
_PATIENCE: Final = 900.0

stand_ins.take_over()
network.call_back_in_process(fdb.impl)


def one(seed: int, scene: str) -> dict[str, Any]:
    """Play a seed in this process."""
    world = World(seed, Plan.drawn(seed))
    played = SCENES[scene](world)
    found = ""
    try:
        world.run(_MACHINE_SECONDS, _PATIENCE, played.settled)
        rows = world.witness(lambda: [played.end(), list(world.db.get_range(b"", b"\xff"))])
        world.machine.note(repr(rows).encode())
    except BaseException as error:
        found = "".join(traceback.format_exception(error))
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
