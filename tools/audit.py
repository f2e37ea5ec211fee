"""Asks the advisory service about every locked version, by pip-audit, and never takes its silence for good news.

    python tools/audit.py FILE... [-- ARGUMENTS OF PIP-AUDIT]

A version that is known to have holes is asked about first: where the service can't be reached, or doesn't name that one, nothing
was audited, and that is an error. A mirror of packages alone is no advisory service. Exit codes: 0 nothing is known, 1 something is, 2 nothing was audited.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KNOWN_BAD: Final = "jinja2==2.4.1"
"""Has had advisories for years (CVE-2014-1402 and later ones), under every service's name for it."""
PIP_AUDIT: Final = (sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--progress-spinner", "off")
UNDECIDED: Final = 2


def asked(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What pip-audit answers about a file of exact versions."""
    return subprocess.run([*PIP_AUDIT, *options, "-r", str(file)], capture_output=True, text=True, check=False)


def listens(options: Sequence[str]) -> str:
    """Why the service can't be believed; "" where it names what is known to be bad."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "known.txt"
        file.write_text(KNOWN_BAD + "\n")
        done = asked(file, "--no-deps", *options)
    if done.returncode == 1 and any(line.split()[:2] == KNOWN_BAD.split("==") for line in done.stdout.splitlines()):
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"it names no hole in {KNOWN_BAD}, which has some; pip-audit says: {said[-1] if said else 'nothing'}"


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    before, _, after = "\0".join(arguments).partition("\0--")
    files, options = [Path(one) for one in before.split("\0") if one], [one for one in after.split("\0") if one]
    if not files:
        print(__doc__)
        return UNDECIDED
    if reason := listens(options):
        print(f"nothing was audited: the advisory service can't be reached, or is none: {reason}", file=sys.stderr)
        return UNDECIDED
    worst = 0
    for file in files:
        done = asked(file, "--require-hashes", *options)
        print(f"{file.name}: {'nothing is known' if done.returncode == 0 else 'see below'}")
        if done.returncode:
            print(done.stdout + done.stderr)
            # pip-audit ends with 1 for a hole and for a failure of its own; only a hole comes with a table.
            worst = max(worst, 1 if done.stdout.strip() else UNDECIDED)
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
