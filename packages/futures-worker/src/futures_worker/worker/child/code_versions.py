"""Whether this child process may load code, or has an older version of a file that the code needs.

What code needs comes with it (`code_files`). A module can't be loaded twice in one process, so a child that has loaded one
whose file is another by now leaves, and a fresh one takes its tasks: what runs is never older than the worker's files.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Final

from futures_worker.code.code_files import forget_older_cache, local_file, version_of

LOOK_SECONDS: Final = 0.05
"""Between two looks: each asks the file system once per file, of which there may be a thousand."""

log = logging.getLogger("futures_worker")


class CodeVersions:
    """What this process has loaded since it was forked."""

    def __init__(self) -> None:
        self._at_start = frozenset(sys.modules)  # the template's: a fresh child has the same
        self._known: dict[str, tuple[bytes, bytes | None]] = {}  # module -> version the submitter has, version here
        self._look_at = 0.0

    def hold(self, now: float) -> bool:
        """Whether the files that were loaded are as they were: looked at before a task, but not before each of many short ones."""
        if now < self._look_at:
            return True
        self._look_at = now + LOOK_SECONDS
        return all(version_of(name) == here for name, (_, here) in self._known.items())

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
