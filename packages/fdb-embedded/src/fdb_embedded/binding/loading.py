"""The official binding, loaded with the engine where it expects `libfdb_c`."""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from typing import Any

from ..errors import EngineConflict, InvalidOption
from ..transaction import handles
from .capi import CApi
from .hot_paths import override

DEFAULT_API_VERSION = 730
_loaded: types.ModuleType | None = None
_lock = threading.RLock()


def _begin_fork() -> None:
    _lock.acquire()  # no child is made amid a loading: the modules of this process are half made meanwhile


def _end_fork() -> None:
    _lock.release()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_renew_lock)


def load(private: bool = False, api_version: int | None = DEFAULT_API_VERSION) -> types.ModuleType:
    """The official `fdb` package over this engine, with an API version selected.

    It is registered as the module `fdb`, so that every `import fdb` of the process gets it; raises `EngineConflict`
    when the real client already serves that name. With `private` it is a second copy that nobody else sees. With
    `api_version` None the program selects one itself.
    """
    global _loaded
    with _lock:
        if private:
            return _load_copy(register=False, api_version=api_version)
        if _loaded is None:
            served = sys.modules.get("fdb.impl")
            if served is not None:
                raise EngineConflict(
                    "the module fdb already serves another engine in this process; "
                    "call fdb_embedded.load() before fdb.api_version(), or use fdb_embedded.load(private=True)"
                )
            _loaded = _load_copy(register=True, api_version=None)
        if api_version is not None and not _loaded.is_api_version_selected():
            _loaded.api_version(api_version)
        return _loaded


def _load_copy(register: bool, api_version: int | None) -> types.ModuleType:
    spec = importlib.util.find_spec("fdb")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("the package `foundationdb` isn't installed: pip install foundationdb")
    copy = _Copy(spec)
    if register:
        # Who said `import fdb` before this call keeps its module: the engine appears in it.
        copy.modules.update((name, sys.modules[name]) for name in list(sys.modules) if name.split(".")[0] == "fdb")
    package = copy.load("fdb")
    impl = copy.load("fdb.impl")
    for name in ("fdb.tuple", "fdb.subspace_impl", "fdb.directory_impl", "fdb.locality"):
        copy.load(name)
    if register:
        for name, module in copy.modules.items():
            sys.modules[name] = module
    package.__dict__["_fdb_embedded"] = copy.capi
    override(impl, copy.capi)
    if api_version is not None:
        package.api_version(api_version)
    return package


class _Copy:
    """One set of the binding's modules, importing each other and nobody else's `fdb`."""

    def __init__(self, spec: Any) -> None:
        self.locations = list(spec.submodule_search_locations)
        self.modules: dict[str, types.ModuleType] = {}
        self.capi = CApi(self._open)
        self.builtins = dict(vars(builtins))
        self.builtins["__import__"] = self._import

    def _open(self, name: str | None) -> handles.Database:
        return open_handle(name, self.capi)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        if level:
            package = (globals or {}).get("__package__") or "fdb"
            name = f"{package}.{name}" if name else package
            level = 0
        if name != "fdb" and not name.startswith("fdb."):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = self.load(name)
        if not fromlist:
            return self.modules["fdb"]
        for item in fromlist:
            if not hasattr(module, item) and self._find(f"{name}.{item}") is not None:
                self.load(f"{name}.{item}")
        return module

    def _find(self, name: str) -> Any:
        if name == "fdb":
            return importlib.util.find_spec("fdb") or None
        return importlib.machinery.PathFinder.find_spec(name, self.locations)

    def load(self, name: str) -> types.ModuleType:
        module = self.modules.get(name)
        if module is not None:
            return module
        if name == "fdb":
            spec = importlib.machinery.PathFinder.find_spec(name, [_parent(self.locations[0])])
        else:
            spec = self._find(name)
        if spec is None or spec.loader is None:
            raise ImportError(f"no module {name} in the installed foundationdb package")
        module = types.ModuleType(name)
        module.__file__ = spec.origin
        module.__spec__ = spec
        module.__loader__ = spec.loader
        module.__package__ = "fdb"
        if name == "fdb":
            module.__path__ = self.locations
        module.__dict__["__builtins__"] = self.builtins
        self.modules[name] = module
        if name != "fdb":
            parent, _, leaf = name.rpartition(".")
            setattr(self.load(parent), leaf, module)
        source = spec.loader.get_source(name)  # type: ignore[attr-defined]
        code = compile(source, spec.origin or name, "exec")
        # fdb.impl reads its own entry of sys.modules while it is being executed
        before = sys.modules.get(name)
        real = ctypes.CDLL
        if name == "fdb.impl":
            sys.modules[name] = module
            ctypes.CDLL = lambda *_, **__: self.capi  # type: ignore[assignment,misc]
        try:
            exec(code, module.__dict__)
        finally:
            ctypes.CDLL = real  # type: ignore[misc]
            if name == "fdb.impl":
                if before is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = before
        return module


def _parent(location: str) -> str:
    return os.path.dirname(location)


URL_VARIABLE = "MAINSPRING_DB"
DEFAULT_PATH = ".mainspring"
_everything: str | None = None


def default_name() -> str:
    """What is opened when no name is given: what MAINSPRING_DB names, else ./.mainspring.

    Raises `InvalidOption` where MAINSPRING_DB names a cluster, or nothing: another database than the one that is meant isn't opened.
    """
    url = os.environ.get(URL_VARIABLE, "")
    if url.startswith("fdb:"):
        raise InvalidOption(
            f"{URL_VARIABLE}={url} is a FoundationDB cluster: this is for embedded databases (embedded:PATH); give one, or unset it"
        )
    if url and not url.startswith(("embedded:", "memory:")):
        raise InvalidOption(f"{URL_VARIABLE}={url} names no database: use embedded:PATH, memory: or memory:NAME")
    return url.removeprefix("embedded:") or DEFAULT_PATH


def serve_everything_from(name: str) -> None:
    """From now on `fdb.open` opens the database `name` whatever it is asked for."""
    global _everything
    _everything = name.removeprefix("embedded:")


def open_handle(name: str | None, capi: CApi) -> handles.Database:
    """A handle for what a program passes to `fdb.open`."""
    return handles.open_database(_everything or name or default_name(), capi.api_version or DEFAULT_API_VERSION)
