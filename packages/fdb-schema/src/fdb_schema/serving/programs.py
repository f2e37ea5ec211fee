"""How a program of a package starts where a library was installed without what its command line needs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

from fdb_schema.errors import EXIT_FAILED

_BROUGHT: Final = ("typer", "rich")
"""What the extra `cli` of every package brings."""


def start(distribution: str, module: str) -> None:
    """Run `main` of the module with a package's command line; where its extra isn't installed, say how to install it."""
    try:
        for name in _BROUGHT:  # also what is imported where it is used alone
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        commands = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _BROUGHT:
            raise
        wanted = f"'{distribution}[cli]'"
        print(
            f"error: this command needs {error.name}, which isn't installed: pip install {wanted}, "
            f"or in a checkout: python tools/install.py {wanted}",
            file=sys.stderr,
        )
        raise SystemExit(EXIT_FAILED) from None
    commands.main()
