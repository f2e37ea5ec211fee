"""FoundationDB's Python API on one machine, with nothing to install: an embedded engine over LMDB."""

from __future__ import annotations

from .aio import aio
from .binding.loading import load
from .errors import (
    DamagedDatabase,
    EmbeddedError,
    EngineClosed,
    EngineConflict,
    InvalidOption,
    NewerFormat,
    NotADatabase,
    PathUnusable,
)
from .faults import Faults
from .opening import close, open

__version__ = "0.1.0"
__all__ = [
    "DamagedDatabase",
    "EmbeddedError",
    "EngineClosed",
    "EngineConflict",
    "Faults",
    "InvalidOption",
    "NewerFormat",
    "NotADatabase",
    "PathUnusable",
    "__version__",
    "aio",
    "close",
    "load",
    "open",
]
