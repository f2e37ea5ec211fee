"""Every benchmark of tools/ beside its peers, and curves of growth, as one page: `nox -s report`, for hours; `-- --quick`, minutes.

One after another, each as a process of its own. What fails, or a peer that isn't here, is named on the page with the reason,
and the rest goes on. The numbers are beside the page as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from report_figures import parsed
from report_page import Section, page

TOOLS: Final = Path(__file__).resolve().parent
LIMIT: Final = 4 * 3600.0
"""Seconds after which a benchmark is ended."""


@dataclass(frozen=True)
class Need:
    """What a peer needs: a module of this Python or of the one that MAINSPRING_{python}_PYTHON names, one of some commands, a variable."""

    module: str = ""
    python: str = ""
    commands: tuple[str, ...] = ()
    variable: str = ""

    def missing(self) -> str:
        """Why a peer is left out; empty where it isn't."""
        if self.commands and not any(map(shutil.which, self.commands)):
            return f"no {' nor '.join(self.commands)} on the PATH"
        if self.variable and not os.environ.get(self.variable):
            return f"{self.variable} isn't set"
        if not self.module or (not self.python and _installed(self.module)):
            return ""
        variable = f"MAINSPRING_{self.python}_PYTHON"
        python = os.environ.get(variable) if self.python else None
        if not python:
            return f"{variable} isn't set" if self.python else f"{self.module} isn't installed"
        try:
            command = [python, "-c", f"import {self.module}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{python} of {variable} doesn't run: {error}"
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"{python} of {variable} can't import it: {why}" if done.returncode else ""


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


RAY, DASK = Need("ray", "RAY"), Need("distributed", "DASK")
REDIS: Final = ("redis-server", "valkey-server")


@dataclass(frozen=True)
class Bench:
    """One run of a benchmark: its arguments at full size and at the quick one, and its peers, as its figures call them."""

    script: str
    full: str = ""
    quick: str = ""
    peers: dict[str, tuple[Need, ...]] = field(default_factory=dict)


GROWTH: Final = "--workers 4 --calls 500 --only "
BENCHES: Final = {
    "futures": Bench(
        "futures", "--backlog 1000000 --queued 1000000",
        "--tasks 500 --round-trips 60 --chain 60 --backlog 1000 --queued 1000 --rounds 1", {"ray": (RAY,), "dask": (DASK,)},
    ),
    "programs": Bench(
        "programs", "", "--rounds 1 --steps 200 --programs 50 --sleepers 0 --peer-steps 50 --peer-programs 20",
        {"DBOS SQLite": (Need("dbos", "DBOS"),), "Celery Redis": (Need("celery", "CELERY"), Need(commands=("redis-server",)))},
    ),
    "adapters": Bench("adapters", "", "--calls 200 --nodes 64 --rounds 1", {"Dask.distributed": (DASK,)}),
    "objects": Bench("objects", "", "--megabytes 8 --rounds 2"),
    "data model": Bench("datamodel", "", "--futures 2000 --chain 200 --backlog 1000"),
    "leases": Bench(
        "leases", "", "--rounds 2 --only acquire,memo,takeover,orphan",
        {
            "joblib.Memory": (Need("joblib"),), "SoftFileLease": (Need("filelock"),), "thds.mops": (Need("thds.mops", "MOPS"),),
            "redis-py Lock": (Need("redis", "MOPS"), Need(commands=REDIS)), "etcd lock": (Need(commands=("etcd",)),),
        },
    ),
    "heap": Bench(
        "heap", "--only put,push,latency,live,idle,scan",
        "--only put,push,latency,live,idle,scan --seconds 0.5 --partitions 4 --writes 4 --live 2000 --idle 2000",
    ),
    "heap on a slow store": Bench("heap", "--only slow", "--only slow --partitions 4 --writes 4 --ahead 50"),
    "requests of the heap": Bench("heap_requests", "", "--tasks 1000"),
    "idempotency": Bench("idempotency", "", "--rounds 2 --transactions 48"),
    "engine": Bench("engine", "", "--rounds 1 --seconds 0.02", {"cluster": (Need(variable="FDB_CLUSTER_FILE"),)}),
    "a transaction": Bench("transaction", "", "--rounds 2"),
    **{f"growth: {one}": Bench("growth", f"--only {one}", GROWTH + one) for one in ("futures", "workers", "tasks", "rows", "leases")},
}  # fmt: skip
"""Title → benchmark."""


def measured(title: str, bench: Bench, quick: bool, most: int, limit: float = LIMIT) -> tuple[Section, Any]:
    """A benchmark's section, and the JSON that it printed; None where it failed."""
    missing = {peer: why for peer, needs in bench.peers.items() for need in needs if (why := need.missing())}
    blank = {
        f"MAINSPRING_{need.python}_PYTHON": ""
        for peer in missing
        for need in bench.peers[peer]
        if need.python and need.missing()
    }
    arguments = [*(bench.quick if quick else bench.full).split(), "--json"]
    if bench.script == "growth":
        arguments += ["--most", str(most), "--least", str(min(1_000, most))]
    command = [sys.executable, str(TOOLS / f"bench_{bench.script}.py"), *arguments]
    shown = " ".join(["python", f"tools/bench_{bench.script}.py", *arguments])
    began = time.monotonic()
    code, printed, said = run_apart(command, {**os.environ, **blank}, limit)
    seconds = time.monotonic() - began
    try:
        figures, found = parsed(bench.script, printed)
    except ValueError as error:
        last = (said.strip().splitlines() or [str(error)])[-1]
        ended = f"ended after {limit:,.0f} s" if code is None else f"exit code {code}"
        return Section(title, shown, seconds, absent=missing, failed=f"{ended}: {last}"), None
    told = {peer: line for line in said.splitlines() for peer in bench.peers if line.startswith(f"{peer}: ")}
    given = {figure.system for figure in figures}
    absent = {
        peer: missing.get(peer) or told.get(peer, "it gave no figures").removeprefix(f"{peer}: ")
        for peer in bench.peers
        if not any(peer in system for system in given)
    }
    if quick:  # targets are for full sizes
        figures = [replace(figure, met=None) for figure in figures]
    curves = found if bench.script == "growth" else {}
    return Section(title, shown, seconds, figures, curves, absent), found


def run_apart(command: list[str], environment: dict[str, str], limit: float) -> tuple[int | None, str, str]:
    """Exit code (None: it took too long and was ended, with all that it had started), output and errors of a process."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        printed, said = process.communicate(timeout=limit)
        return process.returncode, printed, said
    except subprocess.TimeoutExpired:
        return None, *_ended(process)
    except BaseException:
        _ended(process)
        raise


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def about() -> dict[str, str]:
    """The machine, the commit, the date and the load."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:")) / 2**20
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(" ", "minutes"),
        "cpus": f"{os.cpu_count()}: {', '.join(sorted(models)) or platform.machine()}",
        "memory": f"{memory:.1f} GiB",
        "kernel": platform.platform(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "load at the start": " ".join(f"{one:.1f}" for one in os.getloadavg()),
    }  # fmt: skip


def commit() -> str:
    """Of the checkout, and whether it has changes."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=TOOLS, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: this is no checkout of git"


def main(given: list[str] | None = None) -> int:
    """0, also where a target is missed or a benchmark failed: the page says so; 1 where none has figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether everything runs")
    parser.add_argument("--most", type=int, help="the largest size of the curves of growth; 1,000,000, quick: 10,000")
    parser.add_argument("--only", help="benchmarks, separated by commas: " + ", ".join(BENCHES))
    parser.add_argument("--output", type=Path, default=TOOLS.parent / "build" / "report" / "index.html")
    options = parser.parse_args(given)
    chosen = options.only.split(",") if options.only else list(BENCHES)
    if unknown := [one for one in chosen if one not in BENCHES]:
        parser.error(f"there is no benchmark {unknown[0]!r} in the report: {', '.join(BENCHES)}")
    most = options.most or (10_000 if options.quick else 1_000_000)
    facts, sections, numbers = about(), [], {}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for title in chosen:
        section, numbers[title] = measured(title, BENCHES[title], options.quick, most)
        sections.append(section)
        print(
            f"{title}: {section.failed or f'{len(section.figures)} figures'} in {section.seconds:,.0f} s",
            file=sys.stderr,
        )
        for peer, why in section.absent.items():
            print(f"  without {peer}: {why}", file=sys.stderr)
        options.output.write_text(
            page(facts, sections, options.quick), encoding="utf-8"
        )  # what there is, if it's interrupted
        written = {"about": facts, "quick": options.quick, "sections": list(map(asdict, sections)), "printed": numbers}
        options.output.with_suffix(".json").write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
    print(f"open {options.output}")
    return 0 if any(section.figures for section in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
