"""Licences of everything that Mainspring's packages need, from the metadata of what is installed.

python tools/licences.py            a table; exit code 1 where one is missing or not allowed
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from workspace import PROJECTS

ALLOWED: Final = (
    "MIT", "BSD", "Apache", "ISC", "PSF", "Python Software Foundation", "Python-2.0", "MPL-2.0", "MPL 2.0",
    "Mozilla Public License", "OLDAP", "OpenLDAP", "Unlicense", "0BSD", "CNRI-Python", "Zlib",
)  # fmt: skip
"""Words of licences that ask nothing of who uses the package beyond naming it."""
FORBIDDEN: Final = re.compile(r"\b(A?GPL|GNU (Affero )?General|SSPL|BUSL|Commons Clause|proprietary)\b", re.IGNORECASE)
KNOWN: Final = {"foundationdb": "Apache-2.0"}
"""Licences of distributions whose metadata say none; looked up in their sources."""


@dataclass(frozen=True, slots=True)
class Licence:
    """One distribution and what its metadata say."""

    name: str
    version: str
    licence: str

    @property
    def allowed(self) -> bool:
        return any(word.lower() in self.licence.lower() for word in ALLOWED) and not FORBIDDEN.search(self.licence)


def needed() -> list[Licence]:
    """Every third-party distribution that some package here needs, however indirectly; those not installed say so."""
    pending: list[tuple[Requirement, frozenset[str]]] = []
    for folder in PROJECTS.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        listed = list(project.get("dependencies", []))
        for extra in project.get("optional-dependencies", {}).values():
            listed += extra
        pending += [(Requirement(text), frozenset()) for text in listed]
    found: dict[str, Licence] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement, wanted = pending.pop()
        name = normal(requirement.name)
        key = (name, frozenset(requirement.extras))
        environment = {key: str(value) for key, value in default_environment().items()}
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in (wanted or {""})
        )
        if name in map(normal, PROJECTS) or key in seen or not applies:
            continue
        seen.add(key)
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            found.setdefault(name, Licence(name, "", "not installed"))
            continue
        found[name] = Licence(name, installed.version, _licence(name, installed))
        pending += [(Requirement(text), frozenset(requirement.extras)) for text in installed.requires or ()]
    return sorted(found.values(), key=lambda one: one.name)


def normal(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(name: str, installed: Distribution) -> str:
    metadata = installed.metadata
    for expression in metadata.get_all("License-Expression") or ():
        return str(expression)
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if "License ::" in line]
    named = [line for line in classifiers if line != "OSI Approved"]
    first_line = "".join(metadata.get_all("License") or ()).strip().partition("\n")[0]
    return "; ".join(named) or first_line or KNOWN.get(name, "")


def main() -> int:
    """Print the table; the exit code."""
    bad = 0
    for one in needed():
        bad += not one.allowed
        print(f"{one.name:<28} {one.version:<12} {one.licence or 'UNKNOWN'}{'' if one.allowed else '   NOT ALLOWED'}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
