"""Install packages from this checkout with pip, their siblings with them.

    python tools/install.py futures-worker            into the environment of this interpreter
    python tools/install.py --editable futures-worker lease-locks
    python tools/install.py 's3heap-tender[s3]'        with an extra: what a heap on S3 needs
    python tools/install.py                           every package, with every extra

Other options go to pip; write their values with `=`, as in --index-url=URL.
"""

from __future__ import annotations

import subprocess
import sys

from workspace import PROJECTS, closure, extras


def main(arguments: list[str]) -> int:
    """pip's exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    names = [argument for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-") and argument not in {"-e", "--editable"}]
    editable = ["-e"] if len(names) + len(options) < len(arguments) else []
    return subprocess.call([sys.executable, "-m", "pip", "install", *options, *paths(names, editable)])


def paths(names: list[str], editable: list[str]) -> list[str]:
    """What pip is to install: the folders of the packages and their siblings, with the extras asked for."""
    wanted = dict(name.rstrip("]").partition("[")[::2] for name in names)
    if not names:
        wanted = {name: ",".join(extras(name)) for name in PROJECTS}
    found: list[str] = []
    asked = {PROJECTS[name]: chosen for name, chosen in wanted.items() if chosen and name in PROJECTS}
    for folder in closure(list(wanted)):
        found += [*editable, f"{folder}[{asked[folder]}]" if folder in asked else str(folder)]
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
