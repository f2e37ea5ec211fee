"""Which modules go by value and which by reference, and which of the latter are followed by their files."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterable
from typing import Final

import cloudpickle

from futures_worker.code.code_files import is_installed, is_own, local_file

_IMPORT_SYSTEM: Final = ("_frozen_importlib_external", "_frozen_importlib", "zipimport")


class _Modules:
    """Which modules go by value, and which by reference are followed by their files. Both change while a process runs.

    By value goes what every module defines that the import system of Python didn't load, since its name means nothing to
    another process, as a script's doesn't in a process of multiprocessing (`__mp_main__`); cloudpickle is told of them; and
    what the user has registered with cloudpickle.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._looked_at: tuple[int, str] | None = None  # how many there were, and which was the newest
        self.by_value: set[str] = set()
        self.markers: tuple[bytes, ...] = (b"__main__",)  # the former's names, as in a pickle that refers to them
        self.followed: set[str] = set()  # loaded from files outside the installation

    def refresh(self) -> None:
        """Look for modules and registrations that are new since the last call."""
        registered = cloudpickle.list_registry_pickle_by_value()
        there = len(sys.modules), next(reversed(sys.modules))
        if there != self._looked_at:
            self._looked_at = there
            self._look_at_modules()
            registered = cloudpickle.list_registry_pickle_by_value()
        if registered != self.by_value:
            self.by_value = registered
            self.markers = (b"__main__", *(name.encode() for name in sorted(registered)))

    def goes_by_value(self, name: str) -> bool:
        """Whether what the module defines goes by value: it or a package above it is registered."""
        while name:
            if name in self.by_value:
                return True
            name = name.rpartition(".")[0]
        return False

    def _look_at_modules(self) -> None:
        for name, module in list(sys.modules.items()):
            if name in self._seen or module is None:
                continue
            if name == "__main__" or is_own(name):  # which pytest loads by itself, since a plugin of it comes with them
                pass
            elif name == "__mp_main__" or made_outside_the_import_system(module):
                cloudpickle.register_pickle_by_value(module)
            elif local_file(name) is not None:
                self.followed.add(name)
            self._seen.add(name)


def made_outside_the_import_system(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if not isinstance(module, types.ModuleType) or file is None or loader is None or is_installed(file):
        return False
    kind = loader if isinstance(loader, type) else type(loader)
    return not any(base.__module__ in _IMPORT_SYSTEM for base in kind.__mro__)


modules: Final = _Modules()


def send_along(wanted: Iterable[str | types.ModuleType]) -> None:
    """From now on, what these modules (and packages, with all in them) define goes by value: workers need not have them.

    Raises TypeError for what is no module, ModuleNotFoundError.
    """
    if isinstance(wanted, str | types.ModuleType):
        raise TypeError(f"modules are several: give [{wanted!r:.80}]")
    for one in wanted:
        module = importlib.import_module(one) if isinstance(one, str) else one
        if not isinstance(module, types.ModuleType):
            raise TypeError(f"modules are modules, or their names, found {one!r:.80}")
        cloudpickle.register_pickle_by_value(module)


def refers_to_local_module(data: bytes) -> bool:
    """Whether a plain pickle may name a module that only this process has (a false alarm is harmless)."""
    modules.refresh()
    return any(marker in data for marker in modules.markers)


def follows_files() -> bool:
    """Whether this process has loaded modules that are followed by their files."""
    modules.refresh()
    return bool(modules.followed)


def followed(names: Iterable[str]) -> frozenset[str]:
    """Those of the modules that are sent by reference and lie outside the installation, or may."""
    return frozenset(name for name in names if not modules.goes_by_value(name) and local_file(name) is not None)
