"""The only build tool a person needs: `nox -s demo`, `nox -s tests`, `nox -s ci`; `nox -l` lists the rest."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from workspace import PROJECTS, closure  # noqa: E402

TEST_TOOLS = [
    "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "numpy>=1.26", "playwright>=1.50", "httpx2>=2",
    "obstore>=0.9", "pyarrow>=14", "pyyaml>=6", "opentelemetry-sdk>=1.20", "opentelemetry-exporter-otlp-proto-http>=1.20",
]  # fmt: skip
TYPE_TOOLS = ["mypy==2.4.1", "nox", "numpy>=1.26", *TEST_TOOLS]
DOCS_TOOLS = ["sphinx>=8.2,<10", "furo>=2025.7", "myst-parser>=4", "sphinx-copybutton>=0.5"]
RUFF = "ruff==0.17.6"
RAY = "ray==2.60.0"
DASK = "distributed==2026.8.0"
PEERS = {"futures": ("ray", "dask")}  # benchmark -> what it is measured beside
SOAK_SEEDS = "10000"
SOAK_KILLS = "500"


def install(session: nox.Session, *names: str, editable: bool = True) -> None:
    """Install packages of this repository, their siblings with them, in one pip command."""
    arguments: list[str] = []
    for project in closure(names or tuple(PROJECTS)):
        arguments += [*(["-e"] if editable else []), str(project)]
    session.install(*arguments)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job on a cluster on this machine; a worker is killed midway. `-- --files DIR` takes another folder.

    `-- heap` writes to 1,000 partitions while tender, scheduler and S3 server are killed in turn. `-- pipeline` shows
    writes that cause memoized runs of futures, while services are killed.
    """
    if session.posargs[:1] == ["heap"]:
        install(session, "s3heap-tender", editable=False)
        session.run("python", "-m", "s3heap_tender.demo", *session.posargs[1:])
        return
    install(session, "mainspring", editable=False)
    session.run("mainspring", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test of every package, on every engine found. `-- ARGS` go to pytest."""
    install(session)
    session.install(*TEST_TOOLS)
    cpython_tests(session)
    if session.posargs:
        session.run("python", "-m", "pytest", "-q", *session.posargs)
        return
    session.run("python", "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", success_codes=[0, 1])
    # What failed beside others runs once more alone: on a machine that others load a deadline may be missed, while a
    # defect fails again. Both reports are printed; a test that needed this is a defect to be found.
    failed = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    if failed.is_file() and json.loads(failed.read_text(encoding="utf-8")):
        session.run("python", "-m", "pytest", "-q", "--last-failed", "--last-failed-no-failures", "none")


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
    session.install(*TEST_TOOLS)
    session.run(
        "python", "-m", "pytest", "-q", "-k", "seed or sigkill or many_rounds", "--timeout", "0", *session.posargs,
        env={
            "MAINSPRING_SEEDS": os.environ.get("MAINSPRING_SEEDS", SOAK_SEEDS),
            "MAINSPRING_KILLS": os.environ.get("MAINSPRING_KILLS", SOAK_KILLS),
            "MAINSPRING_SOAK_ROUNDS": os.environ.get("MAINSPRING_SOAK_ROUNDS", "200"),
        },
    )  # fmt: skip


@nox.session
@nox.parametrize("binding", ["7.3", "7.4", "8.0"])
def bindings(session: nox.Session, binding: str) -> None:
    """The conformance and differential suites and the engine's own tests over each official binding supported."""
    install(session, "fdb-embedded", "fdb-schema")
    session.install(*TEST_TOOLS, f"foundationdb~={binding}.0")
    session.run(
        "python", "-m", "pytest", "-q", "tests/conformance", "tests/differential", "packages/fdb-embedded",
        *session.posargs,
    )  # fmt: skip


@nox.session
def coverage(session: nox.Session) -> None:
    """The tests under coverage, subprocesses included, and the report."""
    install(session)
    session.install("coverage[toml]>=7.10", *TEST_TOOLS)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-q", *session.posargs)
    session.run("coverage", "combine", success_codes=[0, 1])
    session.run("coverage", "report", "--skip-covered")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and common mistakes."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over every package's sources and the tools."""
    install(session)
    session.install(*TYPE_TOOLS)
    sources = [str(path) for path in sorted(ROOT.glob("packages/*/src")) + sorted(ROOT.glob("services/*/src"))]
    session.run("mypy", *sources, "tools", "noxfile.py", "conftest.py")


@nox.session
def bench(session: nox.Session) -> None:
    """A benchmark of tools/: `nox -s bench -- futures --help`. Peers are installed in environments of their own."""
    if not session.posargs:
        session.error("name one: " + ", ".join(sorted(p.stem[6:] for p in (ROOT / "tools").glob("bench_*.py"))))
    name, *rest = session.posargs
    script = ROOT / "tools" / f"bench_{name}.py"
    if not script.is_file():
        session.error(f"there is no benchmark {name!r}: {script} not found")
    environment = {}
    for peer in PEERS.get(name, ()):
        session.run(sys.executable, "-m", "nox", "-s", f"peer-{peer}", external=True)
        environment[f"MAINSPRING_{peer.upper()}_PYTHON"] = str(ROOT / ".nox" / f"peer-{peer}" / "bin" / "python")
    install(session)
    session.install("numpy>=1.26")
    session.run("python", str(script), *rest, env=environment)


@nox.session(name="peer-ray")
def peer_ray(session: nox.Session) -> None:
    """Ray in an environment of its own, for the benchmarks."""
    session.install(RAY)


@nox.session(name="peer-dask")
def peer_dask(session: nox.Session) -> None:
    """Dask.distributed in an environment of its own, for the benchmarks."""
    session.install(DASK)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of every package, in dist/, installed in clean environments without the checkout and tried."""
    session.install("build>=1.2", "hatchling>=1.24")
    session.run("python", "tools/release.py", "check")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for project in closure(tuple(PROJECTS)):
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), str(project), silent=True)
    session.log(f"{len(list(dist.glob('*.whl')))} wheels and {len(list(dist.glob('*.tar.gz')))} sdists in {dist}")
    try_release = str(ROOT / "tools" / "try_release.py")
    for what, names in (("futures-worker", ("futures-worker",)), ("all", tuple(PROJECTS))):
        clean = Path(session.create_tmp()).resolve() / what
        session.run("python", "-m", "venv", "--clear", str(clean))
        python = str(clean / "bin" / "python")
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        session.run(*pip, *built(dist, names, "whl"), external=True)
        session.chdir(session.create_tmp())
        session.run(python, try_release, what, external=True, env={"PYTHONPATH": ""})
        if what == "all":
            session.run(*pip, "hatchling>=1.24", external=True)
            again = ("--no-deps", "--no-build-isolation", "--force-reinstall", *built(dist, names, "tar.gz"))
            session.run(*pip, *again, external=True)
            session.run(python, try_release, what, external=True, env={"PYTHONPATH": ""})
        session.chdir(ROOT)


def built(dist: Path, names: tuple[str, ...], suffix: str) -> list[str]:
    """The distributions in `dist` of some packages and their siblings: never somebody else's of the same name."""
    known = {folder: name for name, folder in PROJECTS.items()}
    wanted = [known[folder].replace("-", "_") for folder in closure(names)]
    found = [path for name in wanted for path in dist.glob(f"{name}-*.{suffix}")]
    assert len(found) == len(wanted), f"{suffix}: of {wanted} there is only {found}"
    return [str(path) for path in found]


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, in build/site: references made from the code, every warning and broken link an error."""
    install(session)
    session.install(*DOCS_TOOLS)
    sources, site = ROOT / "build" / "site-sources", ROOT / "build" / "site"
    session.run("python", "tools/make_site.py", str(sources))
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-E", "-b", "html", str(sources), str(site))
    session.log(f"open {site / 'index.html'}")


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
    for name in ("lint", "types", "build", "tests"):
        session.run(sys.executable, "-m", "nox", "-s", name, external=True)
