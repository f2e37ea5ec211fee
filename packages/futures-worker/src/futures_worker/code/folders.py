"""A folder that travels: its files packed into bytes that are the same for the same files, and unpacked elsewhere.

**Packed** are regular files (content, and whether they may be executed), directories, and links that lead to something within the folder.
Left out are what the rules say (`ignoring`), links that lead nowhere, and what is no file: sockets, pipes, devices. Times, owners
and other modes don't count. A link that leads out of the folder is refused: it would mean something else on another host.

    zlib of msgpack [1, [[path, kind, data], ...]] in the order of the paths: kind "d" (data: b""), "f" or "x" (executable): the
    content, "l": the link's text; paths and texts as bytes, relative, with "/"

**Unpacked**, every path is checked first: whatever the bytes say, nothing is written outside the target, or through a link.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from fdb_datamodel.rows.requirements import format_size
from fdb_schema.blobs import MAX_BLOB_BYTES
from futures_worker.code.ignoring import IGNORE_FILE, NEVER_NEEDED, Rule, ignored, read_rules
from futures_worker.errors import MainspringError, OversizeError

MOST_BYTES: Final = 64 << 20
"""Of all files together, unpacked."""
MOST_ENTRIES: Final = 10_000
"""Files, directories and links."""
_FORMAT: Final = 1
_MOST_UNPACKED: Final = MOST_BYTES + MOST_ENTRIES * 8192
_LARGEST_NAMED: Final = 3


class FolderDamagedError(MainspringError):
    """Bytes that are no packed folder, or not one that may be unpacked."""


class Entry(NamedTuple):
    """What was found in a folder. look: what changes with it, of its `stat`."""

    path: bytes
    kind: str
    text: bytes  # of a link
    size: int
    look: tuple[int, ...]


def scan(root: Path, without: Path | None = None) -> list[Entry]:
    """What of a folder travels, in order; nothing is read but the rules. `without`: a directory that doesn't.

    Raises ValueError for what can't travel, OversizeError where it is too much.
    """
    if not root.is_dir():
        raise ValueError(
            f"working_dir is a folder, found {str(root)!r}, which {'is none' if root.exists() else 'is not there'}"
        )
    found: list[Entry] = []
    sizes: Counter[str] = Counter()
    for entry in _walk(root, _rules(root), without):
        found.append(entry)
        sizes[os.fsdecode(entry.path)] = entry.size
        if len(found) > MOST_ENTRIES or sizes.total() > MOST_BYTES:
            _refuse(root, found, sizes)
    found.sort()
    return found


def pack(root: Path, entries: list[Entry]) -> bytes:
    """The bytes of what `scan` found. Raises ValueError for what can't be read, OversizeError for what has grown."""
    rows: list[tuple[bytes, str, bytes]] = []
    size = 0
    for entry in entries:
        data = entry.text
        if entry.kind in "fx":
            try:
                data = Path(root, os.fsdecode(entry.path)).read_bytes()
            except FileNotFoundError:
                continue  # an editor's, perhaps
            except OSError as error:
                raise ValueError(
                    f"{_named(root, entry.path)} can't be read, so working_dir can't travel: {error}"
                ) from error
        size += len(data)
        if size > MOST_BYTES:
            _refuse(root, entries, Counter({os.fsdecode(one.path): one.size for one in entries}))
        rows.append((entry.path, entry.kind, data))
    packed = zlib.compress(msgpack.packb((_FORMAT, rows)), 1)
    if len(packed) > MAX_BLOB_BYTES:
        _refuse(root, entries, Counter({os.fsdecode(one.path): one.size for one in entries}))
    return packed


def unpack(data: bytes, target: Path) -> None:
    """Write what was packed into `target`, an empty directory. Raises FolderDamagedError before anything is written, OSError."""
    rows = _checked(data)
    for path, kind, _ in rows:
        if kind == "d":
            os.mkdir(_inside(target, path), 0o700)
    for path, kind, content in rows:
        if kind in ("f", "x"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(_inside(target, path), flags, 0o500 if kind == "x" else 0o400)
            with open(descriptor, "wb") as file:
                file.write(content)
    for path, kind, content in rows:
        if kind == "l":
            os.symlink(content, _inside(target, path))


def _inside(target: Path, path: bytes) -> bytes:
    return os.path.join(os.fsencode(target), path)


def _rules(root: Path) -> list[Rule]:
    own = root / IGNORE_FILE
    try:
        lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
        return read_rules((*NEVER_NEEDED, *lines))
    except (OSError, ValueError, re.error) as error:
        raise ValueError(f"{own} can't be read: {error}") from error


def _walk(root: Path, rules: list[Rule], without: Path | None, prefix: str = "") -> Iterator[Entry]:
    try:
        listed = sorted(os.scandir(root / prefix), key=lambda one: one.name)
    except OSError as error:
        raise ValueError(f"{root / prefix} can't be read, so working_dir can't travel: {error}") from error
    for one in listed:
        path = prefix + one.name
        try:
            found = one.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        folder = stat.S_ISDIR(found.st_mode)
        if ignored(rules, path, folder):
            continue
        look = found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
        if folder:
            if os.path.exists(os.path.join(one.path, "pyvenv.cfg")) or (
                without is not None and one.path == str(without)
            ):
                continue
            yield Entry(os.fsencode(path), "d", b"", 0, look[2:])
            yield from _walk(root, rules, without, path + "/")
        elif stat.S_ISREG(found.st_mode):
            yield Entry(os.fsencode(path), "x" if found.st_mode & 0o100 else "f", b"", found.st_size, look)
        elif stat.S_ISLNK(found.st_mode) and (text := _link(root, path)) is not None:
            yield Entry(os.fsencode(path), "l", os.fsencode(text), 0, look)


def _link(root: Path, path: str) -> str | None:
    """What a link says in the folder's own terms; None if it leads nowhere."""
    where = root / path
    try:
        real = where.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    base = root.resolve()
    if not real.is_relative_to(base):
        raise ValueError(
            f"the link {where} leads out of working_dir, to {real}, which other hosts don't have: copy it into the folder, or list "
            f"it in {root / IGNORE_FILE}"
        )
    return os.path.relpath(real, where.parent.resolve())


def _refuse(root: Path, found: list[Entry], sizes: Counter[str]) -> None:
    tops: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for entry in found:
        top = os.fsdecode(entry.path).partition("/")[0]
        tops[top] += entry.size
        counts[top] += 1
    many = len(found) > MOST_ENTRIES
    ranked = counts.most_common(_LARGEST_NAMED) if many else tops.most_common(_LARGEST_NAMED)
    named = ", ".join(f"{top} ({count:,})" if many else f"{top} ({format_size(count)})" for top, count in ranked)
    what = f"over {MOST_ENTRIES:,} files" if many else f"over {format_size(MOST_BYTES)}"
    raise OversizeError(
        f"working_dir {root} has {what}, most of them in {named}: list what tasks don't need in {root / IGNORE_FILE}, or pass large "
        f"data as futures (client.put)"
    )


def _named(root: Path, path: bytes) -> Path:
    return root / os.fsdecode(path)


def _checked(data: bytes) -> list[tuple[bytes, str, bytes]]:
    """The rows of packed bytes, if all of them may be written. Raises FolderDamagedError."""
    try:
        unzip = zlib.decompressobj()
        raw = unzip.decompress(data, _MOST_UNPACKED)
        if unzip.unconsumed_tail or not unzip.eof:
            raise ValueError("it doesn't end where it should")
        found: Any = msgpack.unpackb(raw, use_list=False)
        form, rows = found
        if form != _FORMAT:
            raise FolderDamagedError(
                f"it is packed in format {form!r:.20}, this worker reads {_FORMAT}: upgrade the worker"
            )
        kinds: dict[bytes, str] = {}
        for path, kind, content in rows:
            if (
                type(path) is not bytes
                or type(content) is not bytes
                or kind not in ("d", "f", "x", "l")
                or path in kinds
            ):
                raise ValueError(f"{path!r:.80} is no entry")
            if not _plain(path.split(b"/")):
                raise ValueError(f"{path!r:.80} is no path within it")
            kinds[path] = kind
        for path, kind, content in rows:
            above = path.rpartition(b"/")[0]
            if above and kinds.get(above) != "d":
                raise ValueError(f"{path!r:.80} is in no directory")
            if kind == "l" and not _leads_inside(path, content, kinds):
                raise ValueError(f"the link {path!r:.80} leads out of it")
    except FolderDamagedError:
        raise
    except Exception as error:
        raise FolderDamagedError(f"it isn't what was packed: {type(error).__name__}: {error}"[:300]) from error
    checked: list[tuple[bytes, str, bytes]] = sorted(rows)
    return checked


def _plain(parts: list[bytes]) -> bool:
    return all(part not in (b"", b".", b"..") and b"\0" not in part for part in parts)


def _leads_inside(path: bytes, text: bytes, kinds: dict[bytes, str]) -> bool:
    """Whether a link leads to a place within the folder, on no way through another link."""
    at = path.split(b"/")[:-1]
    parts = [part for part in text.split(b"/") if part != b"."]
    if text.startswith(b"/") or b"\0" in text:
        return False
    while parts and parts[0] == b"..":
        if not at:
            return False
        at.pop()
        parts.pop(0)
    if not _plain(parts):
        return False
    whole = [*at, *parts]
    return all(kinds.get(b"/".join(whole[:depth])) != "l" for depth in range(1, len(whole)))
