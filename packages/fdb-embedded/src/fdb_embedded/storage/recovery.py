"""Recovery of a durable database after the restart of the machine: its store anew, of the checkpoint and the journal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lmdb

from ..errors import DamagedDatabase, PathUnusable
from ..pure import idempotency, keys
from ..pure.versions import last_version
from ..sharing import private
from ..sharing.shared import flushed_before
from . import disk, journal
from .checkpoints import copy_checkpoint, flush_path, seal_checkpoint
from .clock import UNKNOWN, boot_id, same_cache
from .durability import ATTACHED, BOOT, CHECKPOINT, DATA, note_boot
from .formats import FORMAT, convert, format_of
from .seal import SEAL, is_alone


def needs_recovery(directory: Path) -> bool:
    """Whether the machine has restarted, or the disk was mounted anew, since the files were last known to be whole."""
    try:
        noted = private.read_text(directory / BOOT)
        # Of a boot that isn't known nobody can say whether it is this one, unless somebody is attached who saw the database open.
        return not same_cache(noted, directory) and (boot_id() != UNKNOWN or is_alone(directory / ATTACHED))
    except FileNotFoundError:
        return False
    except ValueError:  # damaged: what the files are is not known
        return True


def is_behind(directory: Path) -> bool:
    """Whether the data file has lost commits that the journal has. Under the lock of opening; nobody is attached.

    A killed writer may have appended one record and not committed it. A second one shows that the data file isn't as it was left: the disk
    has lost what the kernel had not yet written to it, or an earlier copy lies in its place.
    """
    try:
        with lmdb.open(os.fsencode(directory), readonly=True, lock=False, max_dbs=0) as env, env.begin() as txn:
            at, version = journal.place(txn), last_version(txn)
    except lmdb.Error:
        return False  # who opens it next tells of it
    return at is None or journal.goes_on(directory, version, *at)


def renew(directory: Path) -> None:
    """Recover, and note that the files are whole now. Under the lock of opening. Raises as `recover`."""
    recover(directory)
    note_boot(directory)
    (directory / SEAL).unlink(missing_ok=True)


def recover(directory: Path) -> int:
    """Build the store anew from the checkpoint and the journal; returns the version reached. Under the lock of opening.

    Raises `DamagedDatabase`, also where somebody is attached. What was recovered becomes the next checkpoint, so that no journal that ends in a crash is ever continued.
    """
    if not is_alone(directory / ATTACHED):  # who is attached under this boot wouldn't be, if the machine had restarted
        raise DamagedDatabase(
            f"{directory}: {BOOT} is damaged, and other processes have the database open: stop them, then open it again"
        )
    fresh = directory / "recovered"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(mode=private.PRIVATE_DIRECTORY)
        return _recover_by(fresh, directory)
    except (OSError, lmdb.Error) as error:
        if not disk.is_lack(error):
            raise
        raise PathUnusable(
            f"{directory}: the machine has restarted, or its disk has lost what wasn't flushed, and the database can't be recovered now "
            f"({error}): nothing is lost; make room for two more copies of it, and open it again"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # it is to take nobody's room


def _recover_by(fresh: Path, directory: Path) -> int:
    checkpoint = directory / CHECKPOINT
    if not checkpoint.exists():
        raise DamagedDatabase(
            f"{directory}: {CHECKPOINT} is missing, so the database can't be recovered after the restart of the machine"
        )
    copy_checkpoint(checkpoint, fresh / DATA)
    try:
        version = _replay(directory, fresh, flushed_before(directory / "shared"))
    except lmdb.Error as error:
        if disk.is_lack(error):
            raise
        raise DamagedDatabase(f"{directory}: {CHECKPOINT} can't be read ({error}); restore a dump or a copy") from error
    shutil.copyfile(fresh / DATA, fresh / CHECKPOINT)
    for path in (fresh / DATA, fresh / CHECKPOINT):
        if path.name == CHECKPOINT:
            seal_checkpoint(path)
        flush_path(path)
    for name in ("lock.mdb", "shared"):
        disk.remove(directory / name)
    disk.replace(fresh / DATA, directory / DATA)
    disk.flush_directory(directory)
    disk.replace(fresh / CHECKPOINT, checkpoint)
    disk.flush_directory(directory)
    for _, path in journal.segments(directory):
        disk.remove(path)
    disk.flush_directory(directory)
    return version


def _replay(directory: Path, fresh: Path, flushed: int) -> int:
    size = (fresh / DATA).stat().st_size + sum(path.stat().st_size for _, path in journal.segments(directory)) * 4
    env = lmdb.open(os.fsencode(fresh), map_size=max(1 << 30, size * 4), max_dbs=0, sync=False)
    try:
        with env.begin(write=True) as txn:
            if format_of(txn, directory / CHECKPOINT) < FORMAT:
                convert(txn, directory / CHECKPOINT)
            version = last_version(txn)
            _, position = journal.place(txn) or (0, 0)
        replay = journal.Replay(directory, version, position)
        for reached, (steps, record) in replay.records(flushed):
            with env.begin(write=True) as txn:
                for cleared, rows, spills in steps:
                    if spills:
                        idempotency.take_from_log(txn, [*cleared, *((key, key + b"\0") for key, _ in rows)])
                    for begin, end in cleared:
                        keys.delete_range(txn, begin, end)
                    for key, value in rows:
                        if value is None:
                            keys.delete(txn, key)
                        else:
                            keys.put(txn, key, value)
                txn.put(keys.log_key(reached), record, append=True)
        with env.begin(write=True) as txn:
            # the journal goes on in a new segment behind all that exist
            ends = (start + path.stat().st_size for start, path in journal.segments(directory))
            end = max(replay.end, *ends, 0)
            journal.set_place(txn, end, end)
        env.sync(True)
    finally:
        env.close()
    return replay.version
