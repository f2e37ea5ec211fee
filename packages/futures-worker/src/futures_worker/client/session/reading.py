"""Reads large results from the workers that hold them, and sees to it that what was lost is found or computed anew."""

from __future__ import annotations

import ipaddress
import random
import time
from collections.abc import Callable
from typing import Any, Final

from fdb_datamodel import (
    ClusterSpace,
    FutureDeletedError,
    FutureResult,
    UnknownFutureError,
    drop_copy,
    live_copies,
    read_results,
    recover_result,
)
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.outcome import describe
from futures_worker.database import ask
from futures_worker.errors import AuthenticationError, ObjectLostError
from futures_worker.liveness import TTL_SECONDS
from futures_worker.objects.store_client import SPREAD_FROM, ObjectAbsentError, ObjectFetcher
from futures_worker.objects.store_secret import ClusterSecrets

HANGS_AFTER: Final = 1.0  # seconds without an answer that are no refusal
REFUSED_PAUSE: Final = 0.05  # seconds after which a holder that refused is asked again
WATCH_PAUSE: Final = 0.3  # seconds between two looks at a holder that hangs


class Fetching:
    """What reads objects from workers, and asks them, for one session; made when it is first called for."""

    def __init__(self, db: Any, space: ClusterSpace, secret: bytes | None) -> None:
        self._db = db
        self._space = space
        self._secret = secret
        self._fetcher: Any = None

    def __call__(self) -> Any:
        """The `ObjectFetcher`."""
        if self._fetcher is None:
            self._fetcher = ObjectFetcher(self._secret or ClusterSecrets(self._db, self._space, ask=ask), own=True)
        return self._fetcher

    def anew(self, db: Any) -> Fetching:
        """The same for another session."""
        return Fetching(db, self._space, self._secret)

    def close(self) -> None:
        """Hang up."""
        if self._fetcher is not None:
            self._fetcher.close()


class ResultReader:
    """The reading side of one session. Thread-safe."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        fetcher: Callable[[], Any],
        look_after_workers: Callable[[], None],
    ) -> None:
        self._db = db
        self._space = space
        self._fetcher = fetcher
        self._look_after_workers = look_after_workers

    def fetch(
        self, record: FutureRecord, stored: FutureResult, resubmit: bool, deadline: float | None
    ) -> memoryview | None:
        """The bytes of a large result; None if it was lost and is being computed anew: wait for the future again.

        Raises ObjectLostError if it is lost for good, or not `resubmit`; TimeoutError if its holder lives and didn't answer
        before the deadline.
        """
        lost: BaseException | None = None
        asked = time.monotonic()
        if stored.worker is not None:
            left = None if deadline is None else deadline - asked
            spread = self._from_any_holder(record, stored, left)
            if spread is not None:
                return spread
            try:
                address = stored.worker.address
                data: memoryview = self._fetcher().fetch(address, stored.name, timeout=left)
                return data
            except ObjectAbsentError as error:
                lost = error
                if resubmit:
                    ask(self._db, self._forget_copy, record.id, stored)
            except (ObjectLostError, AuthenticationError) as error:
                lost = error  # dead; another cluster's worker may have its port by now
                _check_deadline(record, deadline, error)
        if not resubmit:
            raise ObjectLostError(
                f"the result of {describe(record.id, record.name)} is lost: {lost}. It can be computed anew with "
                "result(resubmit_if_object_lost=True)"
            ) from lost
        epoch = record.entry.epoch if record.entry is not None else 0
        refused = isinstance(lost, AuthenticationError)
        hangs = refused or time.monotonic() - asked > HANGS_AFTER
        found = self._recover(record, stored, epoch, hangs, deadline, lost)
        if found == stored and lost is not None and refused:
            raise lost  # the worker that is registered there lives, and knows another secret than this client
        if found is not None:
            if found != stored and record.entry is not None:
                record.entry = record.entry._replace(result=found)
            return None
        record.expect_again(epoch + 1)
        return None

    def _from_any_holder(self, record: FutureRecord, stored: FutureResult, timeout: float | None) -> memoryview | None:
        """A large result of another host, from whichever holder chance names: many readers don't all ask the same one."""
        holder = stored.worker
        if stored.size < SPREAD_FROM or holder is None or ipaddress.ip_address(holder.ip).is_loopback:
            return None
        try:
            found = ask(self._db, live_copies, self._space, record.id)
        except (UnknownFutureError, FutureDeletedError):
            return None
        copies = [one for one in found if one.token == stored.token]
        if len(copies) < 2:
            return None
        chosen = random.choice(copies)
        if chosen.worker is None or chosen.worker == holder:
            return None
        try:
            data: memoryview = self._fetcher().fetch(chosen.worker.address, chosen.name, timeout=timeout)
        except (ObjectLostError, AuthenticationError):
            return None  # the one that is known to everybody is asked
        return data

    def fetch_object(self, stored: FutureResult) -> memoryview | None:
        """The bytes of a stored object; None if its holder doesn't have it any more, or can't be reached."""
        if stored.worker is None:
            return None
        try:
            data: memoryview = self._fetcher().fetch(stored.worker.address, stored.name)
        except (ObjectLostError, AuthenticationError):
            return None
        return data

    def _recover(
        self,
        record: FutureRecord,
        stored: FutureResult,
        epoch: int,
        hangs: bool,
        deadline: float | None,
        lost: BaseException | None,
    ) -> FutureResult | None:
        """Another copy, or None if there is none and the future runs anew; `stored` if its holder is to be asked again.

        A holder that refuses is asked again soon. One that just doesn't answer is watched for as long as it takes to
        declare it dead, by this client if by nobody else.
        """
        until = time.monotonic() + (1.5 * TTL_SECONDS if hangs else REFUSED_PAUSE)
        while True:
            found: FutureResult | None = ask(self._db, recover_result, self._space, record.id, epoch)
            if found != stored or time.monotonic() >= until:
                return found
            _check_deadline(record, deadline, lost)
            time.sleep((WATCH_PAUSE if hangs else REFUSED_PAUSE) * random.uniform(0.5, 1.5))
            self._look_after_workers()

    def _forget_copy(self, tr: Any, future_id: bytes, stored: FutureResult) -> None:
        """Its holder lives and has no such object. What another attempt has stored there since is left alone."""
        (now,) = read_results(tr, self._space, [future_id])
        if now is not None and now.token == stored.token and stored.worker is not None:
            drop_copy(tr, self._space, future_id, stored.worker)


def _check_deadline(record: FutureRecord, deadline: float | None, why: BaseException | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise TimeoutError(f"the result of {describe(record.id, record.name)} did not come in time: {why}") from why
