"""Install packages from this checkout with pip, their siblings with them.

    python tools/install.py futures-worker            into the environment of this interpreter
    python tools/install.py --editable futures-worker lease-locks
    python tools/install.py                           every package

Other options go to pip; write their values with `=`, as in --index-url=URL.
"""

from __future__ import annotations

import subprocess
import sys

from workspace import PROJECTS, closure


def main(arguments: list[str]) -> int:
    """pip's exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    names = [argument for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-") and argument not in {"-e", "--editable"}]
    editable = ["-e"] if len(names) + len(options) < len(arguments) else []
    paths: list[str] = []
    for folder in closure(names or list(PROJECTS)):
        paths += [*editable, str(folder)]
    return subprocess.call([sys.executable, "-m", "pip", "install", *options, *paths])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
