"""The only build tool a person needs: `nox -s demo`, `nox -s tests`, `nox -s ci`; `nox -l` lists the rest.

What sessions install from elsewhere is locked: exact versions, each with the checksums of its files, in `.ci/locked`, one file
for each of `GROUPS`. `nox -s lock` writes them anew. With MAINSPRING_UNLOCKED=1 the newest versions that the ranges allow
are installed instead.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
# Some containers forbid Python to keep what it has compiled. The tests start hundreds of processes, which would each compile it all.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.path.insert(0, str(ROOT / "tools"))

from workspace import PROJECTS, closure, requirements  # noqa: E402

LOCKED = ROOT / ".ci" / "locked"
UV = "uv==0.13.9"
RUFF = "ruff==0.17.6"
TEST_TOOLS = [
    "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "numpy>=1.26", "playwright>=1.50",
    "axe-playwright-python>=0.1.8", "httpx2>=2", "greenlet>=3",
    "scikit-learn>=1.6", "dask[array,dataframe]>=2025.4",
    "pyyaml>=6", "fastapi>=0.115", "coverage[toml]>=7.10", "mypy==2.4.1", "nox>=2025.5", "packaging>=24",
]  # fmt: skip
DOCS_TOOLS = ["sphinx>=8.2,<10", "furo>=2025.7", "myst-parser>=4", "sphinx-copybutton>=0.5"]
BACKEND = ["hatchling>=1.27", "editables>=0.5"]  # what builds our packages, which is done without isolation
BUILD_TOOLS = ["build>=1.2", *BACKEND, "twine>=6.1", "check-wheel-contents>=0.6"]
GROUPS = {
    "development": [*requirements(optional=True), *BACKEND, *TEST_TOOLS],
    "packages": [*requirements(optional=False), *BACKEND],
    "docs": [*requirements(optional=True), *BACKEND, *DOCS_TOOLS],
    "build": BUILD_TOOLS,
    "lint": [RUFF],
    "audit": ["pip-audit>=2.9"],
    "nox": ["nox>=2025.5"],
}
"""Group → what it asks for. The first is locked first, and the others take the versions that it has."""
RAY = "ray==2.60.0"
DASK = "distributed==2026.8.0"
DBOS = "dbos==3.4.0"
CELERY = "celery[redis]==5.7.0"
MOPS = "thds.mops==3.34.20261027022123"
REDIS = "redis==8.1.0"
PEERS = {  # benchmark -> what it is measured beside
    "adapters": ("dask",), "futures": ("ray", "dask"), "leases": ("mops",), "programs": ("dbos", "celery"),
}  # fmt: skip
SOAK_SEEDS = "10000"
SOAK_KILLS = "500"


def locked(session: nox.Session, group: str) -> None:
    """Install what a group asks for, as it is locked; pip shows what it does, since the first time takes a minute or two."""
    if os.environ.get("MAINSPRING_UNLOCKED"):
        session.install("--upgrade", *GROUPS[group], silent=False)
    else:
        session.install("--require-hashes", "-r", str(LOCKED / f"{group}.txt"), silent=False)


def install(session: nox.Session, *names: str, group: str = "development", editable: bool = True) -> None:
    """Install packages of this repository, their siblings with them, after what the group has for them."""
    locked(session, group)
    arguments: list[str] = []
    for project in closure(names or tuple(PROJECTS)):
        arguments += [*(["-e"] if editable else []), str(project)]
    session.install("--no-deps", "--no-build-isolation", *arguments)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job on a cluster on this machine; a worker is killed midway. `-- --files DIR` takes another folder.

    `-- heap` writes to 1,000 partitions while tender, scheduler and S3 server are killed in turn. `-- pipeline` shows
    writes that cause memoized runs of futures, while services are killed.
    """
    if session.posargs[:1] == ["heap"]:
        install(session, "s3heap-tender", editable=False)  # on S3, so with the SDK
        session.run("python", "-m", "s3heap_tender.demo", *session.posargs[1:])
        return
    group = "development" if "--s3" in session.posargs else "packages"
    install(session, "mainspring", group=group, editable=False)
    session.run("mainspring", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test of every package, on every engine found. `-- ARGS` go to pytest."""
    install(session)
    cpython_tests(session)
    if session.posargs:
        session.run("python", "-m", "pytest", "-q", *session.posargs)
        return
    session.env["MAINSPRING_FRESH_SEED"] = os.environ.get("MAINSPRING_FRESH_SEED") or str(secrets.randbelow(2**31))
    # Three on two cores: a third of the time tests wait, for processes, time limits and browsers.
    session.run(
        "python", "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "--durations", "30", success_codes=[0, 1]
    )
    # What failed beside others runs once more alone, fresh seeds too, which are those of before: on a machine that others load a deadline may be missed, while a
    # defect fails again. Both reports are printed; a test that needed this is a defect to be found.
    failed = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    if failed.is_file() and json.loads(failed.read_text(encoding="utf-8")):
        session.run("python", "-m", "pytest", "-q", "--last-failed", "--last-failed-no-failures", "none")


@nox.session
def quick(session: nox.Session) -> None:
    """Those tests that are pure or in memory, in a minute: the loop of a working day. `-- ARGS` go to pytest."""
    install(session)
    session.run("python", "-m", "pytest", "-q", "-n", "2", *session.posargs, env={"MAINSPRING_QUICK": "1"})


def cpython_tests(session: nox.Session) -> None:
    """Name CPython's own cases of executors for the test that runs them: Debian's package of them, unpacked, where the
    interpreter came without and packages can be had; elsewhere that test is skipped and says so."""
    if "CPYTHON_TESTS" in os.environ or not all(map(shutil.which, ("apt-get", "dpkg"))):
        return
    version = session.run("python", "-c", "import sys; print('{}.{}'.format(*sys.version_info))", silent=True)
    name = f"libpython{str(version).strip()}-testsuite"
    folder = ROOT / ".nox" / name
    if not folder.is_dir():
        with session.chdir(session.create_tmp()):
            session.run("apt-get", "download", name, external=True, silent=True, success_codes=range(256))
            for package in Path().glob(f"{name}_*.deb"):
                session.run("dpkg", "-x", str(package), str(folder), external=True)
    for found in folder.glob("usr/lib/python3*/test"):
        session.env["CPYTHON_TESTS"] = str(found)


@nox.session
def soak(session: nox.Session) -> None:
    """The seeded suites at full size (MAINSPRING_SEEDS, 10,000 unless set), and MAINSPRING_KILLS (500) SIGKILLs; hours."""
    install(session)
    session.run(
        "python", "-m", "pytest", "-q", "-k", "seed or sigkill or many_rounds", "--timeout", "0", "-o", "faulthandler_timeout=0", *session.posargs,
        env={
            "MAINSPRING_SEEDS": os.environ.get("MAINSPRING_SEEDS", SOAK_SEEDS),
            "MAINSPRING_KILLS": os.environ.get("MAINSPRING_KILLS", SOAK_KILLS),
            "MAINSPRING_SOAK_ROUNDS": os.environ.get("MAINSPRING_SOAK_ROUNDS", "200"),
        },
    )  # fmt: skip


@nox.session
def exact(session: nox.Session) -> None:
    """The engine beside a cluster (FDB_CLUSTER_FILE; all in it is erased, so MAINSPRING_DISPOSABLE_CLUSTER=1): 10,000 streams."""
    install(session)
    session.run(
        "python", "-m", "pytest", "-q", "--timeout", "0", "-o", "faulthandler_timeout=0", "tests/differential/test_api_streams.py", *session.posargs,
        env={"MAINSPRING_SEEDS": os.environ.get("MAINSPRING_SEEDS", SOAK_SEEDS)},
    )  # fmt: skip


@nox.session
def chaos(session: nox.Session) -> None:
    """Clusters of real processes that are killed, stopped and starved, seed by seed: `-- --seeds 0:1000 --jobs 2`; hours."""
    install(session)
    session.run(
        "python", "-m", "chaos", *(session.posargs or ("--seeds", "0:1000")), env={"PYTHONPATH": str(ROOT / "tests")}
    )


@nox.session
def simulate(session: nox.Session) -> None:
    """The whole system in one thread, with time, threads, processes and the network drawn from seeds: `-- --seeds 0:10000`; hours."""
    install(session)
    session.run(
        "python", "-m", "simulation", *(session.posargs or ("--seeds", "0:200")),
        env={"PYTHONPATH": str(ROOT / "tests"), "PYTHONHASHSEED": "0"},
    )  # fmt: skip


@nox.session
def histories(session: nox.Session) -> None:
    """Serializability and real-time order of what many processes saw, at length: `-- --seeds 0:100`; a cluster by `--url fdb:FILE`."""
    install(session, "fdb-embedded", "fdb-schema", group="packages")
    session.run("python", "-m", "histories", *session.posargs, env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def mutants(session: nox.Session) -> None:
    """Take guards out of the sources one at a time: a laboratory has to find each. Hours; `-- --only NAME` takes one."""
    install(session)
    session.run("python", "tools/mutants.py", *session.posargs)


@nox.session
def crashes(session: nox.Session) -> None:
    """The embedded engine's journal after crashes at thousands of points (MAINSPRING_CRASH_POINTS, 6,000 unless set); minutes."""
    install(session, "fdb-embedded")
    points = os.environ.get("MAINSPRING_CRASH_POINTS", "6000")
    session.run(
        "python", "-m", "pytest", "-q", "tests/crashes", *session.posargs, env={"MAINSPRING_CRASH_POINTS": points}
    )


@nox.session
@nox.parametrize("binding", ["7.3", "7.4", "8.0"])
def bindings(session: nox.Session, binding: str) -> None:
    """The conformance and differential suites and the engine's own tests over each official binding supported."""
    install(session, "fdb-embedded", "fdb-schema")
    session.install(f"foundationdb~={binding}.0")
    session.run(
        "python", "-m", "pytest", "-q", "tests/conformance", "tests/differential", "packages/fdb-embedded",
        *session.posargs,
    )  # fmt: skip


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """The tests on every Python that is found; `-p 3.12` takes one, `-- ARGS` go to pytest."""
    install(session)
    session.run("python", "-m", "pytest", "-q", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """The tests under coverage, subprocesses included, and the report."""
    install(session)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-q", *session.posargs)
    session.run("coverage", "combine", success_codes=[0, 1])
    session.run("coverage", "report", "--skip-covered")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and common mistakes."""
    locked(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over every package's sources and the tools."""
    install(session)
    sources = [str(path) for path in sorted(ROOT.glob("packages/*/src")) + sorted(ROOT.glob("services/*/src"))]
    session.run("mypy", *sources, "tools", "noxfile.py", "conftest.py")


@nox.session(venv_backend="none")
def house(session: nox.Session) -> None:
    """Layers, circles of imports, private access and sizes, none of which may become worse: `-- --list private` names the places."""
    session.run(sys.executable, "tools/house.py", *session.posargs, external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """A benchmark of tools/: `nox -s bench -- futures --help`. Peers are installed in environments of their own."""
    if not session.posargs:
        session.error("name one: " + ", ".join(sorted(p.stem[6:] for p in (ROOT / "tools").glob("bench_*.py"))))
    name, *rest = session.posargs
    script = ROOT / "tools" / f"bench_{name}.py"
    if not script.is_file():
        session.error(f"there is no benchmark {name!r}: {script} not found")
    environment = peers(session, *PEERS.get(name, ()))
    install(session)
    session.run("python", str(script), *rest, env=environment)


@nox.session
def report(session: nox.Session) -> None:
    """Every benchmark beside its peers, and curves of growth, as the page build/report/index.html; hours, `-- --quick` minutes."""
    environment = peers(session, *sorted({peer for of_one in PEERS.values() for peer in of_one}), needed=False)
    install(session)
    session.run("python", "tools/report.py", *session.posargs, env=environment)


def peers(session: nox.Session, *names: str, needed: bool = True) -> dict[str, str]:
    """Environments for peers, each named by a variable; one that can't be made is an error, or is left out and named."""
    made = {}
    for peer in names:
        try:
            session.run(sys.executable, "-m", "nox", "-s", f"peer-{peer}", external=True)
        except CommandFailed:
            if needed:
                raise
            session.warn(f"{peer} can't be installed: the report goes on without it")
        else:
            made[f"MAINSPRING_{peer.upper()}_PYTHON"] = str(ROOT / ".nox" / f"peer-{peer}" / "bin" / "python")
    return made


@nox.session(name="peer-ray")
def peer_ray(session: nox.Session) -> None:
    """Ray in an environment of its own, for the benchmarks."""
    session.install(RAY)


@nox.session(name="peer-dask")
def peer_dask(session: nox.Session) -> None:
    """Dask.distributed in an environment of its own, for the benchmarks."""
    session.install(DASK, "numpy")


@nox.session(name="peer-dbos")
def peer_dbos(session: nox.Session) -> None:
    """DBOS in an environment of its own, for the benchmarks."""
    session.install(DBOS)


@nox.session(name="peer-celery")
def peer_celery(session: nox.Session) -> None:
    """Celery in an environment of its own, for the benchmarks."""
    session.install(CELERY)


@nox.session(name="peer-mops")
def peer_mops(session: nox.Session) -> None:
    """thds.mops and the client of Redis in an environment of their own, for the benchmarks."""
    session.install(MOPS, REDIS)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of every package, in dist/, installed in clean environments without the checkout and tried."""
    locked(session, "build")
    session.run("python", "tools/release.py", "check")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    staged = Path(session.create_tmp()).resolve() / "staged"
    session.run("python", "tools/release.py", "stage", str(staged), silent=True)
    for project in closure(tuple(PROJECTS)):
        folder = str(staged / project.relative_to(ROOT))
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), folder, silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())), silent=True)
    # W009: a plugin of pytest is a package beside that which it comes with.
    session.run("check-wheel-contents", "--ignore", "W009", str(dist), silent=True)
    session.log(f"{len(list(dist.glob('*.whl')))} wheels and {len(list(dist.glob('*.tar.gz')))} sdists in {dist}")
    pins = () if os.environ.get("MAINSPRING_UNLOCKED") else ("--versions", str(versions_alone(session)))
    session.run("python", "tools/try_wheels.py", str(dist), *pins)


def versions_alone(session: nox.Session) -> Path:
    """The locked versions without checksums, as constraints: pip takes no wheel from a folder where it wants checksums."""
    lines = (LOCKED / "development.txt").read_text(encoding="utf-8").splitlines()
    file = Path(session.create_tmp()).resolve() / "versions.txt"
    file.write_text("\n".join(line.removesuffix(" \\") for line in lines if "==" in line and line[0].isalnum()) + "\n")
    return file


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, in build/site: references made from the code, every warning and broken link an error."""
    install(session, group="docs")
    sources, site = ROOT / "build" / "site-sources", ROOT / "build" / "site"
    session.run("python", "tools/make_site.py", str(sources))
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-E", "-b", "html", str(sources), str(site))
    session.log(f"open {site / 'index.html'}")


@nox.session
def lock(session: nox.Session) -> None:
    """Write `.ci/locked` anew, with the newest versions that the ranges allow for every Python from 3.11 on. uv, which does
    it, asks the index that UV_DEFAULT_INDEX names."""
    session.install(UV)
    first = LOCKED / f"{next(iter(GROUPS))}.txt"
    for group, wanted in GROUPS.items():
        asked, file = Path(session.create_tmp()).resolve() / f"{group}.in", LOCKED / f"{group}.txt"
        asked.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        session.run(
            "uv", "pip", "compile", "--quiet", "--upgrade", "--universal", "--python-version", "3.11", "--generate-hashes",
            "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--fork-strategy", "fewest",
            "--custom-compile-command", "nox -s lock", *(() if file == first else ("-c", str(first))),
            "-o", str(file), str(asked),
        )  # fmt: skip


@nox.session
def audit(session: nox.Session) -> None:
    """Known holes in what is locked, by pip-audit. It needs the network's advisories and fails where they can't be had, so
    it is no part of `ci`. `-- ARGS` go to pip-audit."""
    locked(session, "audit")
    session.run("python", "tools/audit.py", *map(str, sorted(LOCKED.glob("*.txt"))), "--", *session.posargs)


def have_browser(session: nox.Session) -> None:
    """The dashboard's tests open it in Chromium: install Debian's where there is none and this may be done."""
    if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))) or "MAINSPRING_BROWSER" in os.environ:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        session.run("apt-get", "update", "-q", external=True, silent=True)
        session.run("apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", external=True, silent=True)


@nox.session(venv_backend="none")
def ci(session: nox.Session) -> None:
    """What continuous integration runs: lint, types, what a release would be made of, and last the README's test command."""
    have_browser(session)
    for name in ("lint", "types", "house", "build", "tests"):
        session.run(sys.executable, "-m", "nox", "-s", name, external=True)
