"""What is done with a database before it is used: its format is checked, and what the machine's restart may have left is looked through."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DamagedDatabase, NotADatabase, PathUnusable
from ..pure import conflict, keys
from ..pure.versions import last_version
from ..sharing.shared import SharedPage
from ..sharing.slots import LAYOUT
from . import checking, journal
from .clock import Clock
from .files import DATA
from .formats import FORMAT, convert, format_of, note_format

log = logging.getLogger("fdb_embedded")


def look_through(read: Callable[[Callable[[Any], object]], object], path: Path) -> None:
    """Read everything: the machine has restarted since the file was used, or its disk was mounted anew, and some of it may be lost."""
    problems: list[str] = []
    read(lambda txn: checking.check_rows(txn, problems))
    if problems:
        raise DamagedDatabase(
            f"{path}: {DATA} is damaged, probably by the restart of the machine while it was open: {problems[0]}; restore it "
            "from a dump or a copy"
        )
    log.warning(
        "%s was open in durability `process` when the machine restarted, or its disk went: its pages and records are whole, but commits "
        "of the last seconds may be missing",
        path,
    )


def prepare(
    txn: Any, path: Path | None, page: SharedPage, alone: Callable[[], bool], forked: bool, waits_for_flushes: bool
) -> Clock:
    """Check the format, create what a new database has, and let the page say what the data does; returns the clock.

    `alone` tells whether no other process is attached; where this one is `forked`, its parent may be, of a database in memory.
    """
    found = format_of(txn, path)
    if not found:
        if txn.stat()["entries"]:
            raise NotADatabase(f"{path}: an LMDB environment of another program, not a database")
        note_format(txn)
        txn.put(keys.IDENTITY, os.urandom(16))
        txn.put(b"\xff/keyServers/", b"")  # one shard: what `locality.get_boundary_keys` reads
    elif found < FORMAT:
        if not alone():
            raise PathUnusable(f"{path} is open in a process of an earlier release of fdb-embedded: stop that first")
        log.info("%s is converted from format %d to %d", path, found, FORMAT)
        convert(txn, path)
    clock = Clock.open(txn)
    if not found:
        txn.put(keys.log_key(clock.now()), conflict.pack_record((), [], [], 0))
    if not forked and (path is None or alone()):
        page.slots.start_afresh()
    elif page.slots.layout() != LAYOUT:
        raise PathUnusable(f"{path} is open in a process of another release of fdb-embedded: stop that first")
    # The page may be older, or another's: this is the writer section, where all is known.
    page.take_back_version(txn.id())
    page.give_version(last_version(txn))
    if keys.has_rows(txn, keys.STEMS):
        page.set_long_keys()
    at = journal.place(txn)
    if at is not None:
        page.set_journaled()
        if not waits_for_flushes:
            page.set_acknowledged(at[1])  # it sees all of this from now on
    return clock
