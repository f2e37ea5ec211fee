"""The rows of one future as they were read, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fdb_datamodel.errors import DamagedFutureError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.records import NO_SESSION, Failure, FutureResult, Locality, WorkerId
from fdb_datamodel.rows.requirements import Shape
from fdb_datamodel.rows.space import (
    ALLOW_RECONSTRUCTION,
    ARGS,
    AWAY,
    CLAIM,
    CODE,
    DELETED,
    DUE,
    EPOCH,
    FAILURE,
    LATEST_EXCEPTION,
    LATEST_RESULT,
    LIMITS,
    LISTENERS,
    MAX_RETRIES,
    NUM_ATTEMPTS,
    OPTIONS,
    REQUIREMENTS,
    UNCHARGED,
)
from fdb_schema import RecordError

_T = TypeVar("_T")
_A = TypeVar("_A")


class FutureRows:
    """The rows of one future as read, and what they say. Absent rows are defaults."""

    __slots__ = ("_options", "e", "id", "rows")

    def __init__(self, future_id: bytes, e: bytes, rows: dict[bytes, bytes]) -> None:
        self.id = future_id
        self.e = e
        self.rows = rows
        self._options: dict[str, Any] | None = None

    @property
    def exists(self) -> bool:
        return CODE in self.rows or CLAIM in self.rows or FAILURE in self.rows

    @property
    def deleted(self) -> bool:
        return DELETED in self.rows

    @property
    def failed(self) -> bool:
        return FAILURE in self.rows

    @property
    def realized(self) -> bool:
        claim, result = self.rows.get(CLAIM), self.rows.get(LATEST_RESULT)
        return claim is not None and result is not None and FAILURE not in self.rows and codec.same_token(claim, result)

    @property
    def claimed(self) -> bool:
        return CLAIM in self.rows and not self.realized and not self.failed

    @property
    def ended(self) -> bool:
        return self.failed or self.realized

    @property
    def backing_off(self) -> bool:
        """Whether it waits by a row of its own: for a back-off, as a program that is away, or for a permit."""
        return DUE in self.rows or AWAY in self.rows or (LIMITS in self.rows and bool(self.permits[1]))

    @property
    def permits(self) -> tuple[tuple[str, ...], str]:
        """The limits it has a permit of, and the one it waits for, or ""."""
        return self._read(LIMITS, codec.unpack_permits, ((), ""))

    @property
    def away(self) -> tuple[str, str] | None:
        """Of a program that is away: what it waits for, "sleep", "futures" or "event", and the event's name."""
        return self._read(AWAY, codec.unpack_away, None)

    @property
    def listened(self) -> bool:
        return LISTENERS in self.rows

    @property
    def attempts(self) -> int:
        """Starts so far: what the claim says, and where there is none what `num_attempts` has kept of it."""
        claim = self.claim
        return max(self._int(NUM_ATTEMPTS, 0), claim[3] if claim is not None else 0)

    @property
    def max_retries(self) -> int:
        return self._int(MAX_RETRIES, 3)

    @property
    def allow_reconstruction(self) -> bool:
        return bool(self._read(ALLOW_RECONSTRUCTION, codec.unpack, True))

    @property
    def epoch(self) -> int:
        return self._epoch()[0]

    @property
    def attempts_before_epoch(self) -> int:
        return self._epoch()[1]

    @property
    def uncharged(self) -> tuple[int, int, int]:
        """(lost with workers, out of memory, given back) of this epoch."""
        fields = self._read(UNCHARGED, _three, (0, 0, 0))
        return fields[0], fields[1], fields[2]

    @property
    def never_begun(self) -> int:
        """Of those given back, how many didn't begin to run."""
        fields: tuple[int, ...] = self._read(UNCHARGED, _three, ())
        return fields[3] if len(fields) > 3 else 0

    @property
    def begun(self) -> bool:
        """Whether an attempt may have begun to run, the one that holds the claim now included."""
        return self.attempts > self.never_begun

    @property
    def charged(self) -> int:
        """Attempts of this epoch that count against max_retries."""
        return self.attempts - self.attempts_before_epoch - sum(self.uncharged)

    @property
    def session(self) -> bytes:
        return self._code[0]

    @property
    def _code(self) -> tuple[bytes, bytes, int, str]:
        return self._read(CODE, codec.unpack_code, (NO_SESSION, b"", 0, ""))

    @property
    def name(self) -> str:
        return self._code[3] or str(self.option("name"))

    @property
    def code(self) -> bytes:
        """What to run, or its digest."""
        return self._code[1]

    @property
    def due(self) -> int | None:
        """When its back-off ends, by the cluster clock."""
        return self._read(DUE, codec.unpack_int, None)

    @property
    def submitted(self) -> int:
        """When it was submitted, in µs of wall time; 0: that can't be told."""
        try:
            return self._code[2]
        except DamagedFutureError:
            return 0

    @property
    def arguments(self) -> tuple[bytes, tuple[bytes, ...]]:
        """(pickled arguments or their digest, dependencies)."""
        return self._read(ARGS, codec.unpack_args, (b"", ()))

    @property
    def dependencies(self) -> tuple[bytes, ...]:
        return self.arguments[1]

    @property
    def ending(self) -> bytes:
        """The row that says how a future which ended did so."""
        name, decode = (FAILURE, codec.unpack_failure) if self.failed else (LATEST_RESULT, codec.unpack_latest_result)
        self._read(name, decode, None)
        return self.rows[name]

    @property
    def placement(self) -> tuple[Shape, int, Locality | None]:
        """(shape, priority, locality)."""
        return self._read(REQUIREMENTS, codec.unpack_requirements, ((0, 0, 0), 0, None))

    @property
    def options(self) -> dict[str, Any]:
        if self._options is None:
            self._options = self._read(OPTIONS, codec.unpack_options, {})
        return self._options

    def know_options(self, options: dict[str, Any]) -> None:
        """What was just written as its options needn't be read."""
        self._options = options

    def option(self, name: str) -> Any:
        return codec.option(self.options, name)

    @property
    def claim(self) -> tuple[bytes, WorkerId, int, int] | None:
        """(token, worker, wall_us, attempt), also of the attempt that realized it."""
        return self._read(CLAIM, codec.unpack_claim, None)

    @property
    def claimed_with(self) -> bytes:
        """The first of those it was claimed together with, b"" where it was claimed by itself: under which its worker's row lists it."""
        return self._read(CLAIM, codec.claimed_with, b"")

    @property
    def result(self) -> FutureResult | None:
        return self._read(LATEST_RESULT, codec.unpack_latest_result, None)

    @property
    def failure(self) -> Failure | None:
        return self._read(FAILURE, codec.unpack_failure, None)

    @property
    def last_failure(self) -> Failure | None:
        return self._read(LATEST_EXCEPTION, codec.unpack_failure, None)

    def _int(self, name: bytes, default: int) -> int:
        return self._read(name, codec.unpack_int, default)

    def _epoch(self) -> tuple[int, int]:
        fields = self._read(EPOCH, _two, (0, 0))
        return fields[0], fields[1]

    def _read(self, name: bytes, decode: Callable[[bytes], _T], absent: _A) -> _T | _A:
        """What a row says. Raises `DamagedFutureError`."""
        value = self.rows.get(name)
        if value is None:
            return absent
        try:
            return decode(value)
        except RecordError as error:
            raise DamagedFutureError(self.id, str(error)) from error

    def check_program(self) -> None:
        """Raises `DamagedFutureError` unless what is to run, and with what, can be read."""
        self._read(CODE, codec.unpack_code, None)
        self._read(ARGS, codec.unpack_args, None)

    def check_end(self) -> None:
        """Raises `DamagedFutureError` where a row can't be read that says whether it ended: nobody else may look at it."""
        self._read(CLAIM, codec.unpack_claim, None)
        self._read(LATEST_RESULT, codec.unpack_latest_result, None)

    def check(self) -> dict[bytes, str]:
        """What is wrong with the rows: by name of the row."""
        wrong: dict[bytes, str] = {}
        for name, decode in _DECODERS.items():
            try:
                self._read(name, decode, None)
            except DamagedFutureError as error:
                wrong[name] = error.why
        return wrong


def _two(value: bytes) -> tuple[int, ...]:
    return codec.unpack_ints(value, 2)


def _three(value: bytes) -> tuple[int, ...]:
    return codec.unpack_ints(value, 3)


_DECODERS: dict[bytes, Callable[[bytes], Any]] = {
    CODE: codec.unpack_code,
    ARGS: codec.unpack_args,
    CLAIM: codec.unpack_claim,
    NUM_ATTEMPTS: codec.unpack_int,
    LATEST_RESULT: codec.unpack_latest_result,
    LATEST_EXCEPTION: codec.unpack_failure,
    FAILURE: codec.unpack_failure,
    MAX_RETRIES: codec.unpack_int,
    ALLOW_RECONSTRUCTION: codec.unpack,
    REQUIREMENTS: codec.unpack_requirements,
    OPTIONS: codec.unpack_options,
    EPOCH: _two,
    UNCHARGED: _three,
    DUE: codec.unpack_int,
    AWAY: codec.unpack_away,
    LIMITS: codec.unpack_permits,
}
