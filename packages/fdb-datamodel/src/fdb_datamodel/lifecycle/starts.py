"""Starting attempts: the rows a claim writes, for one future or a batch, and the `Claim`s handed to the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from fdb_datamodel.errors import DamagedFutureError
from fdb_datamodel.lifecycle.endings import place
from fdb_datamodel.lifecycle.holdings import LISTED_TOGETHER, list_claims
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.records import Claim, FutureResult, WorkerId
from fdb_datamodel.rows.requirements import Capacity, Shape
from fdb_datamodel.rows.space import ARGS, CLAIM, CODE, EPOCH, FAILURE, LATEST_RESULT, LISTENERS, NUM_ATTEMPTS, OPTIONS
from fdb_schema import RecordError

_ROWS_PER_FUTURE = 12  # more than a future has; bounds the one read that covers a dense batch
_NO_LIMIT = float("inf")
_ONE_ATTEMPT = codec.pack(1)
_PROGRAM = (ARGS, CODE)
_NO_INPUTS: Mapping[bytes, FutureResult] = MappingProxyType({})


class Chosen(NamedTuple):
    """A future about to be claimed, already taken out of its place.

    rows: as read by a caller that has them; None: to be read. reason: the object an assignment named.
    """

    id: bytes
    e: bytes
    shape: Shape
    rows: FutureRows | None = None
    assigned: bool = False
    reason: bytes | None = None


def start(
    ch: Changes,
    worker: WorkerId,
    chosen: Sequence[Chosen],
    expected: Set[bytes] = frozenset(),
    found: dict[bytes, bytes] | None = None,
) -> list[Claim]:
    """Write the claim rows of futures that hold no place any more; the claims, in order.

    `expected`: inputs that this worker is about to realize itself; a claim's `inputs` lacks them. `found`: what `read_rows`
    gave for these.

    The caller has read the worker's incarnation, and each future's entry or edge serializably: whatever else changes a
    future's rows writes that too, so they are read by snapshot; the inputs' results are read serializably. A future whose
    input was lost meanwhile goes back to Waiting (or ends) and gives no claim.
    """
    if not chosen:
        return []
    token = ch.token
    claims, encoded = _claims_of(ch, worker, token, chosen, read_rows(ch, chosen) if found is None else found)
    with_inputs = [claim for claim in claims if claim.dependencies]
    if with_inputs:
        lacking = _fill_inputs(ch, with_inputs, expected)
        if lacking:
            claims = [claim for claim in claims if claim.id not in lacking]
            encoded = [encode_id(claim.id) for claim in claims]
    for at in range(0, len(claims), LISTED_TOGETHER):
        _write_claims(ch, worker, claims[at : at + LISTED_TOGETHER], encoded[at : at + LISTED_TOGETHER])
    return claims


def _write_claims(ch: Changes, worker: WorkerId, claims: Sequence[Claim], encoded: Sequence[bytes]) -> None:
    """The rows of claims that a row of their worker lists together."""
    token = claims[0].token
    claimed_with = list_claims(ch, worker, token, [claim.id for claim in claims])
    head = codec.claim_head(worker, token, ch.wall_us, together=bool(claimed_with))
    tail = codec.pack(claimed_with) if claimed_with else b""
    first = head + _ONE_ATTEMPT + tail
    futures, writes = ch.keys.futures, ch.writes
    for claim, e in zip(claims, encoded, strict=True):
        attempt = claim.attempt
        writes[futures + e + CLAIM] = first if attempt == 1 else head + codec.pack(attempt) + tail
        claim.claimed_with = claimed_with


def _claims_of(
    ch: Changes, worker: WorkerId, token: bytes, chosen: Sequence[Chosen], found: dict[bytes, bytes]
) -> tuple[list[Claim], list[bytes]]:
    """What the rows of chosen futures say, as claims without their inputs, and the encoded id of each."""
    futures, get = ch.keys.futures, found.get
    plain = _is_plain(found)
    claims: list[Claim] = []
    encoded: list[bytes] = []
    code_seen = session = program = b""
    name = ""
    for future_id, e, shape, rows, assigned, reason in chosen:
        attempts = options = epoch = None
        if rows is None:
            prefix = futures + e
            code, args, listened, failed = get(prefix + CODE), get(prefix + ARGS), False, False
            if not plain:
                attempts, options, epoch = get(prefix + NUM_ATTEMPTS), get(prefix + OPTIONS), get(prefix + EPOCH)
                listened, failed = prefix + LISTENERS in found, prefix + FAILURE in found or prefix + CLAIM in found
        else:
            of = rows.rows.get
            code, args, attempts, options, epoch = of(CODE), of(ARGS), of(NUM_ATTEMPTS), of(OPTIONS), of(EPOCH)
            listened, failed = rows.listened, rows.failed
        if code is None or failed:
            continue  # an entry without a future, or of one that was quarantined or claimed; validate names it
        try:
            if code != code_seen:  # a batch's futures seldom differ in it
                session, program, _, name = codec.unpack_code(code)
                code_seen = code
            payload, dependencies = codec.unpack_args(args) if args is not None else (b"", ())
            attempt = 1 if attempts is None else codec.unpack_int(attempts) + 1
            generation = 0 if epoch is None else codec.unpack_ints(epoch, 2)[0]
            unpacked = None if options is None else codec.unpack_options(options)
        except RecordError as error:
            raise DamagedFutureError(future_id, str(error)) from error
        claim = Claim(future_id, worker, token, attempt, 0, session, program, payload, dependencies, _NO_INPUTS, shape)
        claim.name = name
        claim.listened = listened
        if assigned:
            claim.assigned = True
            claim.reason = reason
        claim.epoch = generation
        if unpacked is not None:
            claim.run_timeout = unpacked.get("run_timeout")
            claim.name = name or unpacked.get("name", "")
            claim.call_options = unpacked.get("call_options", b"")
            claim.limited = bool(unpacked.get("limits"))
        claims.append(claim)
        encoded.append(e)
    return claims, encoded


def _is_plain(found: dict[bytes, bytes]) -> bool:
    """Whether these rows are the arguments and the code of futures, and nothing else of any."""
    return all(key.endswith(_PROGRAM) for key in found)


def affordable(
    ch: Changes, chosen: Sequence[Chosen], found: Mapping[bytes, bytes], capacity: Capacity, at_once: int
) -> int:
    """How many of these, from the first on, take no longer together than `capacity` allows; at least `at_once`."""
    if capacity.seconds == _NO_LIMIT:
        return len(chosen)
    futures = ch.keys.futures
    left, last, cost = capacity.seconds, b"", 0.0
    for count, one in enumerate(chosen):
        code = one.rows.rows.get(CODE) if one.rows is not None else found.get(futures + one.e + CODE)
        if code is not None and code != last:  # a batch's futures seldom differ in it
            try:
                cost, last = capacity.cost(codec.unpack_code(code)[1]), code
            except RecordError as error:
                raise DamagedFutureError(one.id, str(error)) from error
        if count >= at_once and cost > left:
            return count
        left -= cost
    return len(chosen)


def result_of(future_id: bytes, value: bytes) -> FutureResult:
    """The stored result of a future. Raises `DamagedFutureError`."""
    try:
        return codec.unpack_latest_result(value)
    except RecordError as error:
        raise DamagedFutureError(future_id, str(error)) from error


def read_rows(ch: Changes, chosen: Sequence[Chosen]) -> dict[bytes, bytes]:
    """Every row of those futures that came without, by key: by one read where they lie close together, else one each."""
    chosen = [one for one in chosen if one.rows is None]
    if not chosen:
        return {}
    futures = ch.keys.futures
    if len(chosen) > 1:
        first, last = min(one.e for one in chosen), max(one.e for one in chosen)
        limit = _ROWS_PER_FUTURE * len(chosen)
        rows = ch.read(futures + first, futures + last + b"\xff", limit=limit, snapshot=True)
        found = dict(rows)
        if len(rows) < limit:
            return found
        reached = rows[-1][0]
        chosen = [one for one in chosen if futures + one.e + b"\xff" > reached]
    else:
        found = {}
    for one in chosen:
        prefix = futures + one.e
        found.update(ch.read(prefix, prefix + b"\xff", snapshot=True))
    return found


def _fill_inputs(ch: Changes, starting: Sequence[Claim], expected: Set[bytes]) -> set[bytes]:
    """Put the dependencies' results into claims; the ids of futures that lack one and were put back."""
    wanted = list(dict.fromkeys(up for claim in starting for up in claim.dependencies if up not in expected))
    values = ch.get_many([ch.keys.future(encode_id(upstream), LATEST_RESULT) for upstream in wanted])
    inputs: dict[bytes, FutureResult] = {}
    for upstream, value in zip(wanted, values, strict=True):
        if value is not None:
            inputs[upstream] = result_of(upstream, value)
    lacking: set[bytes] = set()
    for claim in starting:
        if all(upstream in inputs or upstream in expected for upstream in claim.dependencies):
            claim.inputs = {upstream: inputs[upstream] for upstream in claim.dependencies if upstream in inputs}
        else:
            lacking.add(claim.id)
            # It is in no place and its inputs aren't all there (row `claim_future`, target waiting): onto edges, or ended.
            place(ch, ch.load(claim.id))
    return lacking
