"""`python -m simulation --seeds A:B`: one process per seed, each seed one history."""

from __future__ import annotations

import argparse
import os
import sys

from simulation import stand_ins

if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})

stand_ins.install()

from simulation import runs  # noqa: E402

sys.exit(runs.main(argparse.ArgumentParser(prog="simulation", description=__doc__)))
