"""Tries what was installed from built distributions, with no checkout in sight; run by the interpreter of that environment.

python try_release.py all              every package imports, is typed, and `mainspring demo` gives the right answer
python try_release.py PACKAGE          every module of the package imports, with its own requirements alone, and its
                                       program names the extra that it wants; a service's program answers --help
python try_release.py PACKAGE[cli]     its program answers --help; with futures-worker a worker runs futures
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distribution, distributions
from importlib.resources import files
from pathlib import Path

OURS = {
    "fdb-schema", "fdb-embedded", "idempotent-txn", "lease-locks", "fdb-datamodel", "futures-worker", "s3heap-tender",
}  # fmt: skip
TIMEOUT = 300


def installed() -> set[str]:
    """Distributions of Mainspring in this environment."""
    names = {(one.metadata["Name"] or "").lower().replace("_", "-") for one in distributions()}
    return {name for name in names if is_ours(name)}


def is_ours(name: str) -> bool:
    """Whether a distribution is one of Mainspring's."""
    return name in OURS or name.startswith("mainspring")


def check_modules(names: set[str]) -> None:
    """Each imports from this environment and carries its types."""
    for name in sorted(names):
        module = importlib.import_module(name.replace("-", "_"))
        place = Path(str(module.__file__))
        assert Path(sysconfig.get_paths()["purelib"]) in place.parents, f"{name} comes from {place}"
        assert (files(module) / "py.typed").is_file(), f"{name} has no py.typed"


def needs(name: str) -> set[str]:
    """A package of ours and those of ours that it requires, directly or not; without extras."""
    found = {name}
    for requirement in distribution(name).requires or []:
        other = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if is_ours(other) and "extra ==" not in requirement:
            found |= needs(other)
    return found


def check_every_module(name: str) -> None:
    """Each module of the package imports, but for programs and what an extra brings."""
    package = importlib.import_module(name.replace("-", "_"))
    extras = {re.split(r"[^A-Za-z0-9._-]", one)[0] for one in distribution(name).requires or [] if "extra ==" in one}
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in {extra.replace("-", "_") for extra in extras}:
                raise


def try_programs(name: str, folder: Path, lacks: str | None) -> None:
    """What the package puts on the path says how it is used, or the extra that it `lacks`."""
    for script in distribution(name).entry_points.select(group="console_scripts"):
        done = subprocess.run(
            [program(script.name), "--help"], check=False, timeout=TIMEOUT, cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == (1 if lacks else 0), done.stderr
        assert (lacks or "") in done.stderr, done.stderr


def check_description(name: str) -> None:
    """What an index shows of the package has no link to a file that it doesn't have, and its licence came along."""
    metadata = distribution(name).metadata
    text = str(metadata.json.get("description", ""))
    assert text.strip(), f"{name} has no description"
    assert not (found := re.findall(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)", text)), f"{name} has dead links: {found}"
    assert metadata["License-File"] == "LICENSE", f"{name} has no licence"
    assert any(str(file).endswith("licenses/LICENSE") for file in distribution(name).files or []), name


def program(name: str) -> str:
    """The path of a console script."""
    path = Path(sysconfig.get_paths()["scripts"]) / name
    assert path.exists(), f"the program {name} isn't installed"
    return str(path)


def try_worker(folder: Path) -> None:
    """One worker, one client, a thousand futures, a chain; the worker ends at SIGTERM."""
    from futures_worker import Client

    url = f"embedded:{folder / 'db'}"
    worker = subprocess.Popen(
        [program("futures-worker"), "run", "--db", url, "--slots", "2"], stdout=subprocess.PIPE, cwd=folder
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"ready")
        with Client(url) as client:
            total = client.submit(sum, client.map(pow, range(1000), [2] * 1000))
            assert total.result(timeout=TIMEOUT) == sum(n * n for n in range(1000))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()


def main(what: str) -> None:
    """Raises where something doesn't work."""
    names = installed()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for name in names:
            check_description(name)
        if what != "all":
            name, _, extra = what.partition("[")
            assert names == needs(name), f"beside its own needs, there is {names ^ needs(name)}"
            check_modules(names)
            check_every_module(name)
            try_programs(name, folder, None if extra or name not in OURS else f"pip install '{name}[cli]'")
            if what == "futures-worker[cli]":
                try_worker(folder)
        else:
            assert names >= OURS, f"missing: {OURS - names}"
            check_modules(names)
            for script in sorted(name for name in names if name.startswith("mainspring")):
                subprocess.run([program(script), "--version"], check=True, timeout=TIMEOUT, cwd=folder)
            small = Path(sysconfig.get_paths()["stdlib"]) / "json"
            command = [program("mainspring"), "demo", "--files", str(small), "--seed", "1", "--top", "3"]
            subprocess.run(command, check=True, timeout=TIMEOUT, cwd=folder)
    print(f"{what}: {len(names)} packages of {sys.prefix} work")


if __name__ == "__main__":
    main(sys.argv[1])
