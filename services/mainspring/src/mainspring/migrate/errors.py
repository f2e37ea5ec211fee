"""Why a database isn't copied."""

from __future__ import annotations

from typing import ClassVar

from fdb_schema import MainspringError
from fdb_schema.errors import EXIT_USAGE


class MigrationError(MainspringError):
    """The copy can't be made, or isn't equal."""


class SourceInUseError(MigrationError):
    """The source is written to: a copy would hold one part from before and one from after."""


class SnapshotBrokenError(MigrationError):
    """Two pages were read so long after each other that nobody can tell whether anything was written between them."""


class TargetNotEmptyError(MigrationError):
    """The target holds something that no unfinished copy of this source put there."""

    exit_code: ClassVar[int] = EXIT_USAGE


class TargetInUseError(MigrationError):
    """Another migration writes to the target, or has finished it meanwhile."""
