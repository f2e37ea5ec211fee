"""The source files that code sent by reference needs, by their content. Nothing is imported to find them.

**Rule.** Needed are the modules that the code names, and every module that an import statement in one of these files
names, and so on, as far as their files lie outside the installation (the standard library, site-packages, Mainspring's own
packages). A module imported by a name that is computed isn't seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 1.0  # within which a changed file is seen by a process that goes on
MOST_NAMED: Final = 1000  # files whose versions are sent one by one
_VERSION_BYTES: Final = 8
_REMEMBERED: Final = 512

_OWN: Final = frozenset(
    ("fdb", "fdb_datamodel", "fdb_embedded", "fdb_schema", "futures_worker", "idempotent_txn", "lease_locks")
)
_INSTALLED: Final = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    | {path + os.sep for path in (*site.getsitepackages(), site.getusersitepackages())}
)
_IMPORT: Final = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\((?:[^)#]|#[^\n]*\n)*\)|[^\n;]*)|import[ \t]+([^\n;]+))",
    re.MULTILINE,
)


class SourceFile(NamedTuple):
    """What is known of a file."""

    signature: tuple[int, int, int]  # of its stat, when it was read
    version: bytes  # of its content
    imports: tuple[tuple[str, tuple[str, ...]], ...]  # (module as written, names imported from it)


_read: Final[dict[str, SourceFile]] = {}


class _Needed(NamedTuple):
    """What was found to be needed, and when it is looked for anew: if one of the files changes, or after a while."""

    looked: float
    files: tuple[tuple[str, SourceFile], ...]
    versions: tuple[tuple[str, bytes], ...]

    def holds(self) -> bool:
        """Whether it is still so, as far as the files that were found tell."""
        return time.monotonic() - self.looked < LOOK_SECONDS and all(
            _source(path) is source for path, source in self.files
        )


_needed: Final[dict[frozenset[str], _Needed]] = {}


def is_installed(file: str) -> bool:
    """Whether a file is part of the installation: it changes with what is installed, not while people work."""
    return file.startswith(_INSTALLED) or "/site-packages/" in file or "/dist-packages/" in file


def is_own(name: str) -> bool:
    """Whether a module is Mainspring's own: every process that runs tasks has it."""
    return name.partition(".")[0] in _OWN


def local_file(name: str) -> str | None:
    """The file of a module, loaded or not, if it has one and that lies outside the installation."""
    if is_own(name) or name == "__main__":
        return None
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
    else:
        spec = _find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    return file if isinstance(file, str) and not is_installed(file) else None


def needed_files(names: Iterable[str]) -> tuple[tuple[str, bytes], ...]:
    """(module, version of its file) of all that code which names these modules needs, sorted."""
    roots = frozenset(names)
    known = _needed.get(roots)
    if known is None or not known.holds():
        if len(_needed) >= _REMEMBERED:
            _needed.clear()
        now = time.monotonic()
        found = _closure(roots)
        versions = _limited([(name, source.version) for name, (_, source) in sorted(found.items())])
        known = _needed[roots] = _Needed(now, tuple(found.values()), versions)
    return known.versions


def version_of(name: str) -> bytes | None:
    """The version that a module's file has now; None if it has none outside the installation."""
    file = local_file(name)
    source = _source(file) if file is not None else None
    return None if source is None else source.version


def forget_older_cache(name: str) -> None:
    """Remove a module's compiled file if it is older than its source.

    Python tells them apart by the second and the size: two edits within one second would leave the first one's.
    """
    file = local_file(name)
    if file is None or not file.endswith(".py"):
        return
    with contextlib.suppress(OSError, NotImplementedError):
        compiled = importlib.util.cache_from_source(file)
        if os.stat(compiled).st_mtime_ns < os.stat(file).st_mtime_ns:
            os.unlink(compiled)


def _closure(roots: Iterable[str]) -> dict[str, tuple[str, SourceFile]]:
    found: dict[str, tuple[str, SourceFile]] = {}
    left = list(roots)
    met = set(left)
    while left:
        name = left.pop()
        file = local_file(name)
        source = _source(file) if file is not None else None
        if file is None or source is None:
            continue
        found[name] = file, source
        package = name if os.path.basename(file).startswith("__init__.") else name.rpartition(".")[0]
        for one in (name.rpartition(".")[0], *_absolute_names(source.imports, package)):
            if one and one not in met:
                met.add(one)
                left.append(one)
    return found


def _absolute_names(imports: Sequence[tuple[str, tuple[str, ...]]], package: str) -> Iterator[str]:
    for written, members in imports:
        base = written.lstrip(".")
        dots = len(written) - len(base)
        if dots:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - dots + 1], *([base] if base else [])])
        yield base
        for member in members:  # a submodule, perhaps
            yield f"{base}.{member}"


def _limited(files: list[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """The first ones, and one version of all others together, so that a header stays small."""
    if len(files) <= MOST_NAMED:
        return tuple(files)
    rest = hashlib.sha256(b"".join(version for _, version in files[MOST_NAMED:])).digest()
    return (*files[:MOST_NAMED], ("", rest[:_VERSION_BYTES]))


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    parent = name.rpartition(".")[0]
    path: Sequence[str] | None = None
    if parent:
        module = sys.modules.get(parent)
        if module is not None:
            path = getattr(module, "__path__", None)
        else:
            above = _find_spec(parent)
            path = above.submodule_search_locations if above is not None else None
        if path is None:
            return None
    try:
        return PathFinder.find_spec(name, None if path is None else list(path))
    except (ImportError, ValueError, AttributeError, KeyError):  # the latter of a namespace package not loaded
        return None


def _source(file: str) -> SourceFile | None:
    try:
        stat = os.stat(file)
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = _read.get(file)
        if known is not None and known.signature == signature:
            return known
        with open(file, "rb") as stream:
            data = stream.read()
    except OSError:
        return None
    imports = tuple(_imports(data.decode("utf-8", "replace"))) if file.endswith(".py") else ()
    source = _read[file] = SourceFile(signature, hashlib.sha256(data).digest()[:_VERSION_BYTES], imports)
    return source


def _imports(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    text = re.sub(r"\\\r?\n", " ", text.removeprefix("\ufeff"))  # a statement goes on behind a backslash
    for origin, members, plain in _IMPORT.findall(text):
        if origin:
            yield origin, tuple(_first_words(re.sub(r"#[^\n]*", "", members).strip("() \t\n\\")))
        else:
            for name in _first_words(plain.partition("#")[0]):
                yield name, ()


def _first_words(listed: str) -> Iterator[str]:
    """`a` and `c.d` of "a as b, c.d"."""
    for item in listed.split(","):
        word = item.split()[:1]
        if word and all(part.isidentifier() for part in word[0].split(".")):
            yield word[0]
