"""Brings what a task needs to this host before its child is told: code, arguments, results of its dependencies."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from fdb_datamodel import CodeDigest, FutureResult, WorkerId, get_code, live_copies
from fdb_schema import BlobMissingError, ClusterSpace
from futures_worker.database import is_database_trouble
from futures_worker.errors import (
    AuthenticationError,
    FutureDeletedError,
    ObjectLostError,
    TaskUnpickleError,
    UnknownFutureError,
)
from futures_worker.objects.object_files import write_file
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectAbsentError, ObjectFetcher
from futures_worker.payload import code_setting
from futures_worker.worker.deciding.instructions import Event, InputsBroken, InputsLost, InputsReady, InputsShort
from futures_worker.worker.deciding.tasks import ANYWHERE, Home, Task
from futures_worker.worker.messages import PARCEL_BYTES, code_on_disk
from futures_worker.worker.running.copies import InputCopies
from futures_worker.worker.running.unpacked import FolderUnusableError, UnpackedFolders
from futures_worker.worker.shortage import shortage_of
from idempotent_txn import run

log = logging.getLogger("futures_worker")

MOST_CODES = 1000
"""Different functions whose code is kept as a file; a child keeps as many loaded."""
FETCH_THREADS = 8
"""Dependencies fetched from other workers at the same time."""


class Inputs:
    """Prepares tasks. What needs the network is done by threads, whose events arrive through `post`."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        store: ObjectStore,
        fetcher: ObjectFetcher,
        post: Callable[[Event], None],
        digests_in_hand: Callable[[], set[bytes]],
        folders_in_hand: Callable[[], set[bytes]] = set,
    ) -> None:
        self._digests_in_hand = digests_in_hand
        self._folders = UnpackedFolders(db, space, lambda: store.directory.spill, folders_in_hand)
        self._db = db
        self._space = space
        self._store = store
        self._fetcher = fetcher
        self._post = post
        self._copies = InputCopies(db, space, store, fetcher, self._live_copies)
        # claim.code -> digest, and what it runs in, of codes whose file is written
        self._codes: OrderedDict[bytes, tuple[bytes, Home]] = OrderedDict()
        self._made_anew = 0  # the directories that these lie in
        self._parcel_numbers = itertools.count()
        self._to_fetch: queue.SimpleQueue[tuple[Task, WorkerId] | None] = queue.SimpleQueue()
        self._threads = 0  # daemons: a fetch that hangs doesn't keep the process from ending
        self._closed = False

    def prepare(self, tasks: list[Task], me: WorkerId) -> list[Event]:
        """Events for what is ready at once; the others' events are posted when they are."""
        if self._made_anew != self._store.directory.made_anew:
            self._made_anew = self._store.directory.made_anew
            self._codes.clear()
        ready = []
        events: list[Event] = []
        for task in tasks:
            claim = task.claim
            known = self._codes.get(claim.code)
            digest = None
            if known is not None and (home := self._at_hand(known[1])) is not None:
                digest, task.home = known[0], home
            small = len(claim.args) <= PARCEL_BYTES and len(claim.call_options) <= PARCEL_BYTES
            if digest is not None and task.behind is not None and small and len(claim.dependencies) == 1:
                task.digest, task.args, task.dependencies = digest, claim.args, [None]
                ready.append(task)
            elif digest is None or claim.dependencies or type(claim.args) is not bytes or not small:
                event = self._prepare_one(task, me)
                if event is not None:
                    events.append(event)
            else:
                task.digest = digest
                task.args = claim.args
                ready.append(task)
        if ready:
            events.append(InputsReady(ready))
        return events

    def forget(self, task: Task) -> None:
        """Removes the parcels of a task that ended."""
        for path in task.parcels or ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Waits for no fetch that runs."""
        self._closed = True
        for _ in range(self._threads):
            self._to_fetch.put(None)
        self._folders.close()

    def _prepare_one(self, task: Task, me: WorkerId) -> Event | None:
        claim = task.claim
        if len(claim.call_options) > PARCEL_BYTES:
            size = len(claim.call_options)
            message = f"the options of {task.label} (retry_on) pickle to {size} bytes, over the limit of {PARCEL_BYTES}"
            return InputsBroken(task, "oversize", message)
        try:
            task.digest, task.home = self._codes.get(claim.code) or self._bring_code(claim.code)
            args: bytes = claim.args
            if isinstance(args, CodeDigest):  # too large for a row
                args = run(self._db, get_code, self._space, args, strategy="off")
            task.args = self._parcel(task, args) if len(args) > PARCEL_BYTES else args
        except BlobMissingError as exc:
            return InputsBroken(
                task, "unpickle", f"the code or arguments of {task.label} is not in the database: {exc}"
            )
        except TaskUnpickleError as exc:
            return InputsBroken(task, "unpickle", f"{task.label}: {exc}")
        except OSError as exc:
            return _refused(task, "the arguments", exc)
        except Exception as exc:
            if not is_database_trouble(exc):
                raise
            return _put_off(task, exc)
        home = self._at_hand(task.home)
        at_hand = home is not None
        task.home = home or task.home
        if at_hand and not claim.dependencies:
            return InputsReady([task])
        if not at_hand or any(
            self._takes_time(claim.inputs.get(i), me) for i in claim.dependencies
        ):  # None: of the task it is behind
            return None if self._hand_over(task, me) else InputsShort(task, "no thread can be started")
        return self._bring_dependencies(task, me)

    def _hand_over(self, task: Task, me: WorkerId) -> bool:
        """To a thread that brings the inputs; False if there is none and none can be started."""
        if self._threads < FETCH_THREADS:
            try:
                threading.Thread(target=self._fetch, name="fetch-inputs", daemon=True).start()
                self._threads += 1
            except RuntimeError:
                log.warning("no thread can be started to fetch inputs: %d do it", self._threads)
        if not self._threads:
            return False
        self._to_fetch.put((task, me))
        return True

    def _fetch(self) -> None:
        while not self._closed and (wanted := self._to_fetch.get()) is not None:
            self._post(self._bring_folder(wanted[0]) or self._bring_dependencies(*wanted))

    def _at_hand(self, home: Home) -> Home | None:
        """The home with the path of its folder; None where that isn't unpacked here, or somebody removed it."""
        if not home.folder:
            return home
        where = self._folders.at_hand(home.folder)
        return home._replace(where=where) if where is not None else None

    def _bring_folder(self, task: Task) -> Event | None:
        """The folder that a task's code runs in, unpacked on this host; why it can't be."""
        home = self._at_hand(task.home)
        try:
            task.home = home or task.home._replace(where=self._folders.bring(task.home.folder))
        except FolderUnusableError as exc:
            return InputsBroken(task, "unpickle", f"the folder that {task.label} runs in can't be unpacked: {exc}")
        except OSError as exc:
            return _refused(task, "the folder", exc)
        except Exception as exc:
            if is_database_trouble(exc):
                return _put_off(task, exc)
            return InputsBroken(task, "error", f"preparing {task.label} failed: {type(exc).__name__}: {exc}")
        return None

    def _bring_code(self, code: bytes) -> tuple[bytes, Home]:
        data: bytes = run(self._db, get_code, self._space, code, strategy="off")
        digest = hashlib.sha256(data).digest()
        path, spilled = self._store.directory.code / digest.hex(), self._spilled_code(digest)
        if not path.exists() and not spilled.exists():
            try:
                write_file(path, [data])
            except OSError:  # a full memory keeps no task from running
                write_file(spilled, [data])
        setting = code_setting(data)
        folder = setting.folder.digest if setting is not None and setting.folder is not None else b""
        home = ANYWHERE if setting is None else Home(setting.pack(), folder)
        self._codes[code] = digest, home
        if len(self._codes) > MOST_CODES:
            self._forget_codes()
        return digest, home

    def _forget_codes(self) -> None:
        """Removes the older half of the codes, but for what tasks in hand need."""
        needed = self._digests_in_hand()
        for code, (digest, _) in list(self._codes.items())[: MOST_CODES // 2]:
            if digest not in needed:
                del self._codes[code]
                for path in (self._store.directory.code / digest.hex(), self._spilled_code(digest)):
                    path.unlink(missing_ok=True)

    def _spilled_code(self, digest: bytes) -> Path:
        return self._store.directory.spill / code_on_disk(digest)

    def _bring_dependencies(self, task: Task, me: WorkerId) -> Event:
        claim = task.claim
        if not claim.dependencies:
            return InputsReady([task])
        found: list[bytes | str | None] = []
        behind = task.behind.claim.id if task.behind is not None else None
        lost: list[bytes] = []
        absent: list[tuple[bytes, WorkerId]] = []
        inline = 0
        try:
            for dependency in claim.dependencies:
                if dependency == behind:
                    found.append(None)
                    continue
                value = self._bring_any(task, dependency, me, absent)
                if value is None:
                    lost.append(dependency)
                    continue
                inline += len(value)
                found.append(value)
            if lost:
                return InputsLost(task, tuple(lost), tuple(absent))
            task.dependencies = found
            if inline + len(task.args) > PARCEL_BYTES and behind is not None:
                task.large = True
            elif inline + len(task.args) > PARCEL_BYTES:
                task.dependencies = self._parcel(task, msgpack.packb(found))
        except OSError as exc:
            return _refused(task, "the inputs", exc)
        except Exception as exc:  # a thread's exception would leave the task claimed for ever
            if is_database_trouble(exc):
                return _put_off(task, exc)
            return InputsBroken(task, "error", f"preparing {task.label} failed: {type(exc).__name__}: {exc}")
        return InputsReady([task])

    def _bring_any(
        self, task: Task, dependency: bytes, me: WorkerId, absent: list[tuple[bytes, WorkerId]]
    ) -> bytes | str | None:
        """A dependency's result from its latest holder, else from any live one; None if it can't be had."""
        latest = task.claim.inputs.get(dependency)
        if latest is not None and self._copies.applies(latest, me):
            path = self._parcel_path(task)
            try:
                if self._copies.bring(dependency, latest, me, path, absent):
                    return path
            except OSError as exc:
                if shortage_of(exc) is None:
                    raise
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        tried: set[WorkerId | None] = set()
        copies = [] if latest is None else [latest]
        for again in (False, True):
            for copy in copies:
                tried.add(copy.worker)
                try:
                    return self._bring(task, copy, me)
                except ObjectAbsentError:
                    if copy.worker is not None:
                        absent.append((dependency, copy.worker))
                except (ObjectLostError, AuthenticationError):
                    pass  # gone; its address may be another cluster's worker's by now
            if not again:
                copies = [c for c in self._live_copies(dependency) if c.worker not in tried]
        return None

    def _live_copies(self, dependency: bytes) -> list[FutureResult]:
        try:
            copies: list[FutureResult] = run(self._db, live_copies, self._space, dependency)
        except (UnknownFutureError, FutureDeletedError):
            return []
        return copies

    def _bring(self, task: Task, result: FutureResult, me: WorkerId) -> bytes | str:
        if result.inline is not None:
            return result.inline
        path = self._parcel_path(task)
        try:
            self._bring_to(path, result, me)
        except OSError as exc:
            if shortage_of(exc) is None:
                raise
            path = self._spilled_path(task, path)
            self._bring_to(path, result, me)
        return path

    def _bring_to(self, path: str, result: FutureResult, me: WorkerId) -> None:
        if result.worker == me:
            located = self._store.locate(result.name)
            if located is None:
                raise ObjectAbsentError(f"object {result.name} is not in this worker's store")
            _link_or_copy(str(located[0]), path, result.name, self._store)
        elif result.worker is None:
            raise ObjectLostError(f"object {result.name} names no worker")
        else:
            self._fetcher.fetch_file(result.worker.address, result.name, path)

    def _takes_time(self, result: FutureResult | None, me: WorkerId) -> bool:
        """Whether to bring a result by a thread: from another worker, or from the disk of this one."""
        if result is None or result.inline is not None:
            return False
        located = self._store.locate(result.name) if result.worker == me else None
        return located is None or located[0].parent != self._store.directory.objects

    def _parcel_path(self, task: Task) -> str:
        path = f"{self._store.directory.parcels}/{next(self._parcel_numbers)}"
        if task.parcels is None:
            task.parcels = []
        task.parcels.append(path)
        return path

    def _parcel(self, task: Task, data: bytes) -> str:
        path = self._parcel_path(task)
        try:
            write_file(path, [data])
        except OSError:
            path = self._spilled_path(task, path)
            write_file(path, [data])
        return path

    def _spilled_path(self, task: Task, path: str) -> str:
        """Where a parcel goes that memory has no room for: to the disk."""
        assert task.parcels is not None
        with contextlib.suppress(OSError):
            os.unlink(path)
        spilled = f"{self._store.directory.spill}/parcel.{os.path.basename(path)}"
        task.parcels.append(spilled)
        return spilled


def _put_off(task: Task, exc: Exception) -> Event:
    """The database refuses now: that is no fault of the task's."""
    log.warning("the database refuses what %s needs (%s): it is tried again", task.label, exc)
    return InputsShort(task, f"the database refuses what {task.label} needs: {exc}")


def _refused(task: Task, what: str, exc: OSError) -> Event:
    """There is no place for what a task needs: now, or ever."""
    if shortage_of(exc) is None and not isinstance(exc, FileNotFoundError):  # that is made anew in a moment
        return InputsBroken(task, "oversize", f"no room for {what} of {task.label}: {exc}")
    log.warning("this host is short, %s of %s can't be kept: %s", what, task.label, exc)
    return InputsShort(task, f"no room for {what} of {task.label}: {exc}")


def _link_or_copy(source: str, target: str, name: str, store: ObjectStore) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    opened = store.open(name)  # spilled: another file system
    if opened is None:
        raise ObjectAbsentError(f"object {name} left this worker's store meanwhile")
    descriptor, _ = opened
    with open(descriptor, "rb") as file:
        while True:
            piece = file.read(1 << 24)
            if not piece:
                break
            with open(target, "ab") as out:
                out.write(piece)
