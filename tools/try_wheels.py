"""Installs built distributions in clean environments, each package and service alone and then all together, and tries them.

python tools/try_wheels.py DIST [--versions FILE]      FILE: constraints, one `name==version` a line

Several environments are made at once. What an environment said is printed where something failed in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from workspace import PROJECTS, ROOT, closure, extras

TRY: Final = str(ROOT / "tools" / "try_release.py")


class Refused(Exception):
    """A command failed; the message is what it was and what it said."""


def run(command: list[str], folder: Path) -> None:
    """Run a command outside the checkout. Raises `Refused`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"{' '.join(command)}\n{done.stdout}\nexit code {done.returncode}")


def built(dist: Path, names: tuple[str, ...], suffix: str) -> list[str]:
    """The distributions in `dist` of some packages and their siblings: never somebody else's of the same name."""
    known = {folder: name for name, folder in PROJECTS.items()}
    wanted = [known[folder].replace("-", "_") for folder in closure(names)]
    found = [path for name in wanted for path in dist.glob(f"{name}-*.{suffix}")]
    if len(found) != len(wanted):
        raise Refused(f"{suffix}: of {wanted} there is only {found}")
    return [str(path) for path in found]


def tried(what: str, names: tuple[str, ...], dist: Path, versions: tuple[str, ...]) -> float:
    """One environment: its wheels, and what they are to do; then with the command line; seconds. Raises `Refused`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        # Nothing but the distributions: pip works on it from outside. Modules are compiled as they are imported.
        run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], folder)
        python = str(folder / "env" / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "--no-compile", *versions]
        wheels = built(dist, names, "whl")
        run([*install, *wheels], folder)
        run([python, TRY, what], folder)
        if "cli" in extras(what):
            run([*install, f"{wheels[-1]}[cli]", *wheels[:-1]], folder)
            run([python, TRY, f"{what}[cli]"], folder)
        if what == "all":
            run([*install, "hatchling"], folder)
            again = ["--no-deps", "--no-build-isolation", "--force-reinstall", *built(dist, names, "tar.gz")]
            run([*install, *again], folder)
            run([python, TRY, what], folder)
    return time.monotonic() - began


def main() -> int:
    """The command; exit code 1 where an environment failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--versions", type=Path)
    options = parser.parse_args()
    dist = options.dist.resolve()
    versions = () if options.versions is None else ("-c", str(options.versions.resolve()))
    # The one that takes longest first.
    environments = [("all", tuple(PROJECTS)), *((name, (name,)) for name in PROJECTS)]
    failed = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = [(what, pool.submit(tried, what, names, dist, versions)) for what, names in environments]
        for what, one in running:
            try:
                print(f"{what}: installed alone and tried in {one.result():.0f} s", flush=True)
            except Refused as error:
                failed += 1
                print(f"{what}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
