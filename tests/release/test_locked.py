"""What sessions install is locked: exact versions with checksums, no host, in step with what is asked for; an audit is never silent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT))

import noxfile  # noqa: E402

FILES = sorted(noxfile.LOCKED.glob("*.txt"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def entries(file: Path) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a locked file, with the checksums of its files."""
    lines = [line for line in file.read_text().replace("\\\n", " ").splitlines() if not line.startswith("#")]
    return [
        (Requirement(line.split(" --hash=")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})", line)) for line in lines
    ]


def pins(file: Path, python: str) -> dict[str, Version]:
    """Distribution → its version on Linux with a Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found: dict[str, Version] = {}
    for requirement, _ in entries(file):
        (exact,) = requirement.specifier
        assert exact.operator == "=="
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} has two versions on Python {python}"
            found[name] = Version(exact.version)
    return found


def test_every_group_has_its_file_and_no_file_is_left_over() -> None:
    assert {file.stem for file in FILES} == set(noxfile.GROUPS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_version_is_exact_and_has_checksums_and_names_no_host(file: Path) -> None:
    found = entries(file)
    assert found
    assert all(checksums for _, checksums in found)
    assert "://" not in file.read_text()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("group", noxfile.GROUPS)
def test_what_is_locked_is_what_is_asked_for(group: str, python: str) -> None:
    found = pins(noxfile.LOCKED / f"{group}.txt", python)
    wanted = [Requirement(text) for text in noxfile.GROUPS[group]]
    wrong = [
        str(one) for one in wanted
        if not one.specifier.contains(found.get(canonicalize_name(one.name), Version("0")), prereleases=True)
    ]  # fmt: skip
    assert wrong == [], "run `nox -s lock`"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_packages_run_with_the_versions_that_were_tested(python: str) -> None:
    tested = pins(noxfile.LOCKED / "development.txt", python)
    for name, version in pins(noxfile.LOCKED / "packages.txt", python).items():
        assert tested.get(name) == version


@pytest.mark.parametrize("group", ["development", "packages", "docs", "build"])
def test_what_builds_our_packages_in_place_is_there_since_nothing_is_fetched_for_it(group: str) -> None:
    assert {"hatchling", "editables"} <= set(pins(noxfile.LOCKED / f"{group}.txt", "3.11"))


def test_continuous_integration_installs_nothing_by_name_alone() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "pip install" in line]
    assert commands
    assert all("--require-hashes" in command for command in commands)


PIP_AUDIT = """
import os, pathlib, sys
file = pathlib.Path(sys.argv[sys.argv.index("-r") + 1])
bad = os.environ["BAD"].split()
print("service:", os.environ["SAYS"], file=sys.stderr)
found = [line for line in file.read_text().split() if line in bad]
for one in found:
    name, version = one.split("==")
    print(name, version, "PYSEC-1", "9.9")
raise SystemExit(1 if found or os.environ["SAYS"] == "unreachable" else 0)
"""


def audit(folder: Path, bad: str, says: str = "fine") -> subprocess.CompletedProcess[str]:
    """`tools/audit.py` over a file with harmless==1.0 and other==2.0, beside a pip-audit that knows what is `bad`."""
    (folder / "pip_audit.py").write_text(PIP_AUDIT)
    (folder / "some.txt").write_text("harmless==1.0\nother==2.0\n")
    return subprocess.run(
        [sys.executable, "-S", str(ROOT / "tools" / "audit.py"), str(folder / "some.txt"), "--"],
        env={**os.environ, "PYTHONPATH": str(folder), "BAD": bad, "SAYS": says},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "says", "code", "text"),
    [
        ("jinja2==2.4.1", "fine", 0, "some.txt: nothing is known"),
        ("jinja2==2.4.1 other==2.0", "fine", 1, "other 2.0 PYSEC-1"),
        ("", "unreachable", 2, "nothing was audited"),
        ("", "fine", 2, "nothing was audited"),
    ],
    ids=["clean", "a hole", "no service", "a service that knows nothing"],
)
def test_an_audit_is_green_only_after_a_service_that_knows_holes_has_named_none(
    tmp_path: Path, bad: str, says: str, code: int, text: str
) -> None:
    done = audit(tmp_path, bad, says)
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
