"""Whether this child process may load code, or has an older version of a file that the code needs.

What code needs comes with it (`code_files`). A module can't be loaded twice in one process, so a child that has loaded one
whose file is another by now leaves, and a fresh one takes its tasks: what runs is never older than the worker's files.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from futures_worker.code_files import forget_older_cache, local_file, version_of

log = logging.getLogger("futures_worker")


class CodeVersions:
    """What this process has loaded since it was forked."""

    def __init__(self) -> None:
        self._at_start = frozenset(sys.modules)  # the template's: a fresh child has the same
        self._known: dict[str, tuple[bytes, bytes | None]] = {}  # module -> version the submitter has, version here

    def admits(self, needs: Iterable[tuple[str, bytes]]) -> bool:
        """Whether code that needs these files may be loaded; then they count as loaded."""
        fresh: dict[str, tuple[bytes, bytes | None]] = {}
        for name, version in needs:
            if not name or name in self._at_start:
                continue
            known = self._known.get(name)
            if known is None:
                if name in sys.modules:
                    return False  # loaded by code that didn't name it: who knows when
                forget_older_cache(name)
                fresh[name] = (version, version_of(name))
            elif known[0] != version:
                here = version_of(name)
                if here != known[1]:
                    return False
                fresh[name] = (version, here)
        for name, (version, here) in fresh.items():
            if here is not None and here != version:
                log.warning(
                    "the module %s of this worker (%s) differs from the submitter's: the worker's is run",
                    name,
                    local_file(name),
                )
        self._known.update(fresh)
        return True
