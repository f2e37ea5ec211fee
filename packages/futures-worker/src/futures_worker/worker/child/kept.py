"""What the worker keeps in files for a task of this process."""

from __future__ import annotations

from pathlib import Path

from fdb_schema.serving.private_files import read_own
from futures_worker.errors import MainspringError
from futures_worker.objects.arena import map_shared


class RemovedError(MainspringError):
    """What the worker kept for a task isn't there any more."""


def kept(path: Path) -> bytes:
    """What the worker has put into a file for a task."""
    try:
        return read_own(path)
    except FileNotFoundError as error:
        raise removed(path) from error


def mapped(path: str) -> memoryview:
    """The same of a large one."""
    try:
        return map_shared(path, own=True)
    except FileNotFoundError as error:
        raise removed(path) from error


def removed(path: Path | str) -> RemovedError:
    """What is said of a file or folder that is gone."""
    return RemovedError(f"somebody removed {path}, which this worker needs: it is tried again")
