"""Whether the laboratories bite: guards are taken out of the sources one at a time, and each time one of them has to fail.

`nox -s mutants`, or `python tools/mutants.py`. `mutants.toml` has the mutants: a name, what is dropped, the file, the text that is there
exactly once, what stands there instead, and the laboratories that are to find it. A package's sources are copied, changed, and put before the
others; a laboratory is run with more and more seeds until a test of it fails. What comes of it is written into `docs/mutants.md`, line by line.

`--only NAME` takes some; `--laboratory NAME` those of some laboratories; `--list` runs nothing; `--seeds N` runs no more than so many.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workspace import PROJECTS, ROOT

TABLE: Final = ROOT / "tools" / "mutants.toml"
PAGE: Final = ROOT / "docs" / "mutants.md"
LEAST_FOUND: Final = 0.95
SECONDS: Final = 300
"""A run of a laboratory may take; a mutant may make it wait for ever."""
FRESH_SEED: Final = "1"
"""So that a second run has the same seeds."""


class TableError(Exception):
    """A mutant that can't be made, and why."""


@dataclass(frozen=True)
class Laboratory:
    """Tests that are to find mutants. seeds: as many are tried, one number after the other."""

    name: str
    run: tuple[str, ...]
    seeds: tuple[int, ...] = (30, 200, 1000)


@dataclass(frozen=True)
class Mutant:
    name: str
    drops: str
    file: str
    text: str
    instead: str
    laboratories: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Of the source, from the root on."""
        package, _, rest = self.file.partition("/")
        return Path("packages", package, "src", rest)

    def apply(self) -> str:
        """The source with the guard dropped. Raises `TableError`."""
        if not (ROOT / self.path).is_file():
            raise TableError(
                f"mutant {self.name}: there is no {self.path} any more: name the file that has the guard now"
            )
        source = (ROOT / self.path).read_text(encoding="utf-8")
        count = source.count(self.text)
        if count != 1:
            raise TableError(
                f"mutant {self.name}: its text is {count} times in {self.path}, not once: bring tools/mutants.toml up to date\n{self.text}"
            )
        return source.replace(self.text, self.instead)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: found by a check, or it survived them all."""

    found: bool
    check: str
    seeds: str
    seconds: float


def read_table(path: Path = TABLE) -> tuple[dict[str, Laboratory], list[Mutant]]:
    """The laboratories by name, and the mutants in order. Raises `TableError`."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    laboratories = {
        name: Laboratory(name, tuple(one["run"]), tuple(one.get("seeds", Laboratory.seeds)))
        for name, one in table["laboratory"].items()
    }
    mutants: list[Mutant] = []
    for one in table["mutant"]:
        mutant = Mutant(one["name"], one["drops"], one["file"], one["text"], one["instead"], tuple(one["laboratories"]))
        if unknown := set(mutant.laboratories) - laboratories.keys():
            raise TableError(f"mutant {mutant.name}: there is no laboratory {', '.join(sorted(unknown))}")
        if any(mutant.name == other.name for other in mutants):
            raise TableError(f"mutant {mutant.name} is there twice")
        mutants.append(mutant)
    return laboratories, mutants


# --- running


def environment(changed: Path, seeds: int) -> dict[str, str]:
    """Of a laboratory: the changed sources come before those that are installed."""
    sources = [str(changed), *(str(project / "src") for project in PROJECTS.values())]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MAINSPRING_SEEDS": str(seeds),
        "MAINSPRING_FRESH_SEED": FRESH_SEED,
        "COLUMNS": "400",
    }


def run_laboratory(laboratory: Laboratory, changed: Path, seeds: int) -> tuple[str, str]:
    """The first check that fails, and what the run printed; "" where all pass. Raises `TableError` where there was no run."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"),
        *("--timeout", str(SECONDS // 3), "-o", "faulthandler_timeout=0", *laboratory.run),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(changed, seeds), text=True, errors="replace", start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=SECONDS if seeds <= 200 else 4 * SECONDS)
    except subprocess.TimeoutExpired:
        return "the run comes to no end", ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return "", printed
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.*)$", printed, re.MULTILINE)
    if process.returncode != 1 or not failed:
        raise TableError(f"laboratory {laboratory.name} did not run (code {process.returncode}):\n{printed[-3000:]}")
    return failed[0], printed


def judge(mutant: Mutant, laboratories: dict[str, Laboratory], most: int, *, verbose: bool = False) -> Verdict:
    """Run the mutant's laboratories with more and more seeds, until one finds it."""
    began = time.monotonic()
    source = mutant.apply()
    package = mutant.path.parts[3]
    tried = 0
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        changed = Path(folder)
        original = ROOT / Path(*mutant.path.parts[:4])
        shutil.copytree(original, changed / package, ignore=shutil.ignore_patterns("__pycache__"))
        changed.joinpath(*mutant.path.parts[3:]).write_text(source, encoding="utf-8")
        plan = sorted(
            (
                (seeds, at, one)
                for at, one in enumerate(mutant.laboratories)
                for seeds in laboratories[one].seeds
                if seeds <= most
            )
        )
        for seeds, _, name in plan:
            check, printed = run_laboratory(laboratories[name], changed, seeds)
            tried = max(tried, seeds)
            if check:
                if verbose:
                    print(printed)
                return Verdict(True, check, needed(check, seeds), time.monotonic() - began)
    return Verdict(False, "", str(tried), time.monotonic() - began)


def needed(check: str, seeds: int) -> str:
    """How many seeds it took: the number of the one that failed, or how many were tried."""
    number = re.search(r"seed-(\d+)", check)
    if number is None:
        return "-"
    return str(int(number[1]) + 1) if int(number[1]) < seeds else f"up to {seeds}"


# --- the page


def read_page(path: Path = PAGE) -> dict[str, str]:
    """The page's lines of mutants, by name."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {found[1]: line for line in lines if (found := re.match(r"\| `([\w-]+)` \|", line))}


def line_of(mutant: Mutant, verdict: Verdict) -> str:
    check, _, error = verdict.check.partition(" - ")
    test = re.sub(r"\[.*", "", check).replace("packages/", "").replace("/tests/", "/")
    said = error.removeprefix("AssertionError").removeprefix(":").strip()[:90]
    if not re.fullmatch(r"[\w ,.:;'()/-]+", said) or said.startswith("assert"):
        said = ""  # values, which say nothing here
    found = (f"`{test}`" + (f": {said}" if said else "")) if verdict.found else "**nothing**"
    return f"| `{mutant.name}` | {mutant.drops} | {found} | {verdict.seeds} |"


def write_page(mutants: Sequence[Mutant], lines: dict[str, str], path: Path = PAGE) -> None:
    """Put the lines in the place of those that are there, in the order of the table; the rest of the page stays."""
    head, _, rest = path.read_text(encoding="utf-8").partition("<!-- mutants -->\n")
    _, _, tail = rest.partition("<!-- end -->\n")
    kept = [lines[one.name] for one in mutants if one.name in lines]
    found = sum("**nothing**" not in line for line in kept)
    body = [
        f"{found} of {len(kept)} are found.", "", "| Mutant | What is dropped | Found by | Seeds |", "|---|---|---|---|", *kept, "",
    ]  # fmt: skip
    path.write_text(f"{head}<!-- mutants -->\n" + "\n".join(body) + f"<!-- end -->\n{tail}", encoding="utf-8")


def check_sound(laboratory: Laboratory) -> None:
    """It passes where nothing is changed: else it finds nothing by failing. Raises `TableError`."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as nothing:
        check, _ = run_laboratory(laboratory, Path(nothing), laboratory.seeds[0])
    if check:
        raise TableError(f"laboratory {laboratory.name} fails where nothing is changed: {check}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--laboratory", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N")
    parser.add_argument("--new", action="store_true", help="only those that the page doesn't have, or not as found")
    parser.add_argument("--verbose", action="store_true", help="print the run that finds it")
    options = parser.parse_args(arguments)
    try:
        laboratories, mutants = read_table()
        lines = read_page()
        if unknown := set(options.only) - {one.name for one in mutants}:
            raise TableError(f"there is no mutant {', '.join(sorted(unknown))}")
        chosen = [
            one
            for one in mutants
            if (not options.only or one.name in options.only)
            and (not options.laboratory or set(one.laboratories) & set(options.laboratory))
            and not (options.new and "**nothing**" not in lines.get(one.name, "**nothing**"))
        ]
        if options.list:
            for one in chosen:
                print(f"{one.name:36} {one.file:58} {', '.join(one.laboratories)}")
            return 0
        for one in chosen:
            one.apply()
        survived = 0
        sound: set[str] = set()
        for one in chosen:
            for name in one.laboratories:
                if name not in sound:
                    check_sound(laboratories[name])
                    sound.add(name)
            verdict = judge(one, laboratories, options.seeds, verbose=options.verbose)
            survived += not verdict.found
            said = f"found by {verdict.check}" if verdict.found else "SURVIVED"
            print(f"{one.name}: {said} (seeds: {verdict.seeds}; {verdict.seconds:.0f} s)", flush=True)
            lines = {**read_page(), one.name: line_of(one, verdict)}
            write_page(mutants, lines)
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(chosen) - survived} of {len(chosen)} are found")
    return 0 if survived <= (1 - LEAST_FOUND) * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
