"""The values of the lease rows, as records that grow (msgpack, never pickle)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import Record, pack

META_BYTES: Final = 16_384


def storable(text: str) -> str:
    """Text that a row takes: half a surrogate pair, as of a file's name that isn't UTF-8, is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class SessionRecord(Record):
    """One process's part: who it is, so that its end can be proved on the same host."""

    ttl_ms: int  # the manager's default ttl
    host: str  # for people
    boot_id: str = ""  # "" where the platform has none: rule 3 never applies
    pid_ns: str = ""
    pid: int = 0
    pid_start: int = 0  # clock ticks after boot; tells a reused pid
    started_us: int = 0  # wall clock, for people
    command: str = ""
    helpers: tuple[tuple[int, int], ...] = ()  # (pid, start) of processes that must be gone as well


@dataclass(frozen=True, slots=True)
class HolderRecord(Record):
    """A grant. Its token is in its key."""

    owner: bytes  # 16 bytes drawn by the acquirer: a retry finds its own grant
    session: bytes
    ttl_ms: int
    mode: str = "exclusive"
    slots: int = 1
    max_hold_ms: int = 0  # 0: none
    maintained: bool = True  # whether the holder's own session counts as a maintainer
    acquired_us: int = 0  # wall clock, for people
    adopts: tuple[bytes, ...] = ()  # tokens whose pending remotes this grant took on
    meta: dict[str, Any] | None = None
    host: str = ""  # for people, after the session is gone
    pid: int = 0
    left: bool = False  # the holder believes in it no more, and has left it to who joined


def check_meta(meta: dict[str, Any] | None) -> None:
    """Raises `ValueError` for what can't be shown to whoever reads the lease: plain values, not much of them."""
    if meta is None:
        return
    if not isinstance(meta, dict) or not all(isinstance(name, str) for name in meta):
        raise ValueError(f"meta must be a dict with texts as keys, not {meta!r:.80}")
    try:
        size = len(pack(meta))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"meta takes plain values (numbers, texts, bytes, lists, dicts): {error}") from error
    if size > META_BYTES:
        raise ValueError(f"meta may take {META_BYTES:,} bytes, found {size:,}: store it elsewhere and name it here")


@dataclass(frozen=True, slots=True)
class MaintainerRecord(Record):
    """A process, beside the holder's own, that keeps a grant alive."""

    role: str = "remote"
    joined_us: int = 0  # wall clock, for people
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class WaiterRecord(Record):
    """A place in a name's queue."""

    owner: bytes
    session: bytes
    mode: str = "exclusive"
    slots: int = 1
    since_us: int = 0  # wall clock, for people
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class EventRecord(Record):
    """A line of a name's history."""

    kind: str
    token: bytes = b""  # b"": the grant made by this very transaction, whose stamp is in the key
    epoch: int = 0
    by: str = ""  # host:pid of who did it
    session: bytes = b""
    why: str = ""
    wall_us: int = 0  # for people
