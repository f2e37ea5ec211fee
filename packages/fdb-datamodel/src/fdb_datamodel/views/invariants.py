"""The invariants of one future and of each subspace's rows, as checks over one read version; `validate` pages through them.

Each check names the invariant it found broken. `INVARIANTS` says what every name means; the tests plant each violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fdb_datamodel.lifecycle.holdings import Held, claim_key, listed
from fdb_datamodel.lifecycle.placement import index_keys
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, decode_int, encode_id, split_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Violation, WorkerId
from fdb_datamodel.rows.space import (
    CLAIM,
    CODE,
    DELETED,
    EDGE,
    EPOCH,
    FAILURE,
    LATEST_RESULT,
    LISTENERS,
    SESSION,
    WAKE,
    named_in,
)

INVARIANTS: Final[Mapping[str, str]] = {
    "known-keys": "every key is one of the reference's table, every value a record of its kind",
    "one-state": "a Failed future has no claim and no result; the keys decide exactly one state",
    "result-iff-realized": "latest_result is there iff the future is Realized: it carries the claim's token",
    "claim-row": "a future is Claimed iff a claim_future row of the claiming worker lists it with the same token",
    "claim-live": "a running claim's incarnation is registered, or listed as dead and about to be reaped",
    "one-place": "an Unclaimed future is in the resource indices, of cpu and of what else it needs, xor assigned to one worker; no other one is in any",
    "waiting-timer": "a future in its back-off, or a program that is away, has what ends that: a timer, an edge, an event",
    "edges": "every edge has both ends, its upstream exists and is unfinished, or its settling is still listed",
    "listeners-flag": "a future with listeners carries the hint that makes its end look for them",
    "attempts": "starts are counted: the claim's is the latest, at least as many as num_attempts has, the epoch's base and all that is uncharged",
    "budget": "no future was started more often than its budgets allow",
    "result-rows": "every row of results is of a Realized future and carries its claim's token",
    "lineage": "a future names its dependencies in `lineage`, as long as it isn't deleted, and nobody else does",
    "tombstone": "a deleted future has no other row",
    "limits": "permits of a limit are held by futures that say so, as many as it counts, and its queue is of those that wait",
    "shared": "a queue has as many items as it says, holds the futures inside and what was taken; of a semaphore every permit is free or held",
    "schedules": "a schedule and the row that says when it is next belong together",
    "unsettled": "a future listed as unsettled exists or is a tombstone",
    "workers": "a registered worker has a heartbeat, and isn't listed as dead",
    "assignment-live": "an assignment is to a registered incarnation, or to one about to be reaped",
}


def _found(invariant: str, future_id: bytes, what: str) -> Violation:
    return Violation(invariant, f"future {show_id(future_id)}", what)


def _is_known(ch: Changes, worker: WorkerId) -> bool:
    """Whether an incarnation is registered or waits to be reaped."""
    row, dead = ch.get_many([ch.keys.incarnation(worker.ip, worker.port), ch.keys.dead_worker(worker)], snapshot=True)
    return codec.incarnation_of(row) == worker.incarnation or dead is not None


def check_future(ch: Changes, f: FutureRows) -> Iterator[Violation]:
    """Every invariant that starts from a future's own rows."""
    if f.deleted:
        if len(f.rows) > 1:
            yield _found("tombstone", f.id, f"has {len(f.rows) - 1} rows beside its tombstone")
        return
    if CODE not in f.rows:
        if set(f.rows) != {LISTENERS}:
            yield _found("known-keys", f.id, "has rows but no 'code'")
        return
    claim, result = f.claim, f.rows.get(LATEST_RESULT)
    if f.failed and (claim is not None or result is not None):
        yield _found("one-state", f.id, "is Failed and has a claim or a result")
    if result is not None and not f.realized:
        yield _found("result-iff-realized", f.id, "has a latest_result that isn't of its claim")
    if claim is not None:
        yield from _check_claim(ch, f, claim)
    yield from _check_counts(f)
    yield from _check_place(ch, f)
    rows = ch.get_many([ch.keys.named_by(encode_id(one), f.e) for one in f.dependencies], snapshot=True)
    if any(row is None for row in rows):
        yield _found("lineage", f.id, "depends on a future that has no lineage row of it")
    if not f.listened and _has_listeners(ch, f.e):
        yield _found("listeners-flag", f.id, "has listeners but no 'listeners' key")


def _has_listeners(ch: Changes, e: bytes) -> bool:
    rows = [ch.read_ids(ch.keys.listeners + e + kind, limit=1, snapshot=True) for kind in (EDGE, SESSION, WAKE)]
    return any(rows)


def _check_claim(ch: Changes, f: FutureRows, claim: tuple[bytes, WorkerId, int, int]) -> Iterator[Violation]:
    token, worker, _, attempt = claim
    key = claim_key(ch, worker, f.e, token, f.claimed_with)
    row = ch.get_many([key], snapshot=True)[0]
    held = row is not None and Held(key, f.id, token, worker.incarnation, bool(f.claimed_with)) in listed(
        key, len(ch.keys.claim_rows(worker.ip, worker.port)), row
    )
    if f.claimed and not held:
        yield _found("claim-row", f.id, f"is Claimed by {worker}, which has no claim_future row of that token")
    if f.claimed and not _is_known(ch, worker):
        yield _found("claim-live", f.id, f"is Claimed by {worker}, which is neither registered nor listed as dead")
    if f.attempts != attempt or attempt < 1:
        yield _found("attempts", f.id, f"attempt {attempt} is claimed but {f.attempts} were counted before")


def _check_counts(f: FutureRows) -> Iterator[Violation]:
    lost, oom, given_back = f.uncharged
    if f.attempts < f.attempts_before_epoch or f.charged < 0 or min(lost, oom, given_back) < 0:
        yield _found(
            "attempts", f.id, f"{f.attempts} starts can't be {f.attempts_before_epoch} + {f.uncharged} + charged"
        )
    for name, used, most in (
        ("max_retries", f.charged, f.max_retries + 1),
        ("max_worker_losses", lost, f.option("max_worker_losses") + 1),
        ("max_oom", oom, f.option("max_oom") + 1),
    ):
        if used > most:
            yield _found("budget", f.id, f"was charged {used} attempts, {most} are allowed by {name}")


def _check_place(ch: Changes, f: FutureRows) -> Iterator[Violation]:
    """Where it is, against where its state says it should be."""
    shape, _, locality = f.placement
    in_pool = [row is not None for row in ch.get_many(index_keys(ch, f), snapshot=True)]
    assigned = False
    if locality is not None:
        worker = locality.worker
        row = ch.get_many([ch.keys.assignment_rows(worker.ip, worker.port) + f.e], snapshot=True)[0]
        assigned = row is not None and codec.unpack_assignment(row)[0] == worker.incarnation
    edges = ch.read_ids(ch.keys.dependencies + f.e, limit=1, snapshot=True)
    settled = f.ended or f.claimed
    if edges and settled:
        yield _found("edges", f.id, "has ended or runs, and still waits on an edge")
    if f.backing_off:
        due = f.due
        if settled:
            yield _found("one-state", f.id, "has ended or runs, and is in a back-off, or away")
        elif due is None:
            if not edges and f.away is not None and f.away[0] != "event" and not f.permits[1]:
                yield _found("waiting-timer", f.id, f"is away for {f.away[0]}, and nothing will bring it back")
        elif ch.get_many([ch.keys.timer(due, f.e, "backoff")], snapshot=True)[0] is None:
            yield _found("waiting-timer", f.id, f"is in a back-off until {due} without a timer")
    if settled or f.backing_off or edges:
        if any(in_pool) or assigned:
            yield _found("one-place", f.id, "isn't Unclaimed but is in an index or assigned")
    elif not ((all(in_pool) and not assigned) or (assigned and not any(in_pool))):
        yield _found(
            "one-place",
            f.id,
            f"is Unclaimed, in the indices of what it needs: {in_pool}, assigned: {assigned} (shape {shape})",
        )


def check_index_row(ch: Changes, subspace: str, key: bytes, value: bytes) -> Iterator[Violation]:
    """A row of a resource index is one of an Unclaimed future of the pool, under the key its requirements give."""
    e = key[_id_start(ch, subspace, key) :]
    f = ch.load(decode_id(e), snapshot=True)
    if not f.exists or f.placement[2] is not None or key not in index_keys(ch, f) or f.ended or f.claimed:
        yield _found("one-place", f.id, f"has a row in {subspace} that doesn't belong there")
    elif subspace.endswith("cpu") and value and codec.unpack(value) != f.placement[0]:
        yield _found("one-place", f.id, f"its entry says it needs {codec.unpack(value)}, it needs {f.placement[0]}")


def _id_start(ch: Changes, subspace: str, key: bytes) -> int:
    at = len(ch.keys.space[subspace].key())
    if key[at : at + 1] == b"\x02":
        _, at = named_in(key, at)
    for _ in range(4):  # three of the shape, and the priority
        _, at = decode_int(key, at)
    return at


def check_assignment(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """An assignment is of an Unclaimed future whose requirements name that worker."""
    ip, port, _, future_id = ch.keys.space["worker_assignments"].unpack(key)
    incarnation, _, pinned, shape = codec.unpack_assignment(value)
    worker = WorkerId(ip, port, incarnation)
    f = ch.load(future_id, snapshot=True)
    locality = f.placement[2]
    if not f.exists or f.ended or f.claimed or locality is None or locality.worker != worker:
        yield _found("one-place", future_id, f"is assigned to {worker}, which its state or requirements don't say")
    elif locality.pinned != pinned or f.placement[0] != shape:
        yield _found("one-place", future_id, f"its assignment to {worker} says other than its requirements")
    if not _is_known(ch, worker):
        yield _found("assignment-live", future_id, f"is assigned to {worker}, neither registered nor listed as dead")


def check_worker_row(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A claim_future row is of a Claimed future with that token; a registered worker has a heartbeat and isn't dead."""
    ip, port, name, *_ = ch.keys.space["workers"].unpack(key)
    subject = f"worker {ip}:{port}"
    if name == "claim_future":
        for held in listed(key, len(ch.keys.claim_rows(ip, port)), value):
            f = ch.load(held.id, snapshot=True)
            claim = f.claim
            if not f.claimed or claim is None or claim[:2] != (held.token, WorkerId(ip, port, held.incarnation)):
                yield _found("claim-row", held.id, f"{subject} has a claim_future row that isn't its claim")
    elif name == "incarnation":
        worker = WorkerId(ip, port, codec.incarnation_of(value) or b"")
        beat, dead = ch.get_many([ch.keys.heartbeat(ip, port), ch.keys.dead_worker(worker)], snapshot=True)
        if beat is None:
            yield Violation("workers", subject, "is registered without a heartbeat")
        if dead is not None:
            yield Violation("workers", subject, f"incarnation {worker} is registered and listed as dead")
    elif name == "heartbeat":
        if ch.get_many([ch.keys.incarnation(ip, port)], snapshot=True)[0] is None:
            yield Violation("workers", subject, "has a heartbeat but isn't registered")
    else:
        yield Violation("known-keys", subject, f"key {name!r} isn't in the reference")


def check_result(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A row of results is of a Realized future and carries its claim's token."""
    future_id = ch.keys.space["results"].unpack(key)[0]
    copy, _ = codec.unpack_result_row(value)
    f = ch.load(future_id, snapshot=True)
    claim = f.claim
    if not f.realized or claim is None or claim[0] != copy.token:
        yield _found("result-rows", future_id, "has a row in results that isn't of its claim")


def check_dependency(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """An edge's downstream waits, its upstream exists, is unfinished or unsettled, and names the downstream."""
    down, up = ch.keys.space["dependencies"].unpack(key)
    e_down, e_up = encode_id(down), encode_id(up)
    names = (CODE, CLAIM, LATEST_RESULT, FAILURE, EPOCH, DELETED)
    asked, until = codec.unpack_edge(value)
    rows = ch.get_many(
        [
            (ch.keys.edge if until is None else ch.keys.wake)(e_up, e_down),
            ch.keys.unsettled + e_up,
            ch.keys.future(e_down, CODE),
        ]
        + [ch.keys.future(e_up, name) for name in names],
        snapshot=True,
    )
    other_end, unsettled, downstream, code, claim, result, failure, epoch, deleted = rows
    if other_end != value:
        yield _found("edges", down, f"waits for {show_id(up)}, whose listeners don't have it")
    if downstream is None:
        yield _found("edges", down, f"isn't there but waits for {show_id(up)}")
    if code is None and not (deleted is not None and unsettled is not None):
        yield _found("edges", down, f"waits for {show_id(up)}, which isn't there")
    ended = failure is not None or (claim is not None and result is not None and codec.same_token(claim, result))
    if ended and unsettled is None:
        yield _found("edges", down, f"waits for {show_id(up)}, which ended, and nobody is to settle it")
    if asked > (codec.unpack(epoch)[0] if epoch is not None else 0):
        yield _found("edges", down, f"waits for epoch {asked} of {show_id(up)}, which isn't there yet")


def check_listener(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A listener is an edge whose other end is there, or a session, of a future that didn't end or is unsettled."""
    base = len(ch.keys.listeners)
    e, rest = split_id(key, base)
    if rest.startswith((EDGE, WAKE)):
        down = rest[len(EDGE if rest.startswith(EDGE) else WAKE) :]
        if ch.get_many([ch.keys.dependency(down, e)], snapshot=True)[0] != value:
            yield _found("edges", decode_id(down), f"is a listener of {show_id(decode_id(e))} but doesn't wait for it")
    elif not rest.startswith(SESSION):
        yield _found("known-keys", decode_id(e), "has a listener of no known kind")
    f = ch.load(decode_id(e), snapshot=True)
    if (f.ended or not f.exists) and ch.get_many([ch.keys.unsettled + e], snapshot=True)[0] is None:
        yield _found("edges", f.id, "has ended and still has a listener, and nobody is to settle it")


def check_lineage(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A row of lineage is of a future that is there and has the upstream among its arguments."""
    up, down = ch.keys.space["lineage"].unpack(key)
    if up not in ch.load(down, snapshot=True).dependencies:
        yield _found("lineage", down, f"is in the lineage of {show_id(up)}, which it doesn't name")


def check_unsettled(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """What is listed as unsettled is a future, or was one."""
    f = ch.load(decode_id(key[len(ch.keys.unsettled) :]), snapshot=True)
    if not f.exists and not f.deleted:
        yield _found("unsettled", f.id, "is listed but no such future was ever there")


def check_limit(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A limit's permits are of futures that have them, as many as it says; who is in its queue waits for it."""
    name, kind, *rest = ch.keys.space["limits"].unpack(key)
    subject = f"limit {name!r}"
    if kind == "config":
        prefix = ch.keys.limit_held(name, b"")
        count, held = len(ch.read(prefix, prefix + b"\xff", snapshot=True)), codec.unpack_limit(value)[2]
        if count != held:
            yield Violation("limits", subject, f"says that {held} permits are held, and {count} are")
        return
    f = ch.load(rest[-1], snapshot=True)
    permits, waits = f.permits
    if kind == "held" and (name not in permits or f.ended):
        yield Violation("limits", subject, f"future {show_id(f.id)} has a permit of it, which it doesn't say")
    elif kind == "queue" and waits != name:
        yield Violation(
            "limits", subject, f"future {show_id(f.id)} is in its queue, and waits for {waits or 'nothing'!r}"
        )


def check_schedule(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A schedule has one row that says when it is next, and such a row is of a schedule."""
    kind, *rest = ch.keys.space["schedules"].unpack(key)
    name = rest[-1]
    row = value if kind == "all" else ch.get_many([ch.keys.schedule(name)], snapshot=True)[0]
    due = None if row is None else codec.unpack_schedule(row)[5]
    if due is None or (kind == "due" and due != rest[0]):
        yield Violation("schedules", f"schedule {name!r}", f"is due at {rest[0]}, which it doesn't say")
    elif kind == "all" and ch.get_many([ch.keys.schedule_due(due, name)], snapshot=True)[0] is None:
        yield Violation("schedules", f"schedule {name!r}", f"is next at {due}, and no row brings that about")


def check_dead_worker(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """A dead incarnation isn't the registered one."""
    ip, port, incarnation = ch.keys.space["dead_workers"].unpack(key)
    row = ch.get_many([ch.keys.incarnation(ip, port)], snapshot=True)[0]
    if codec.incarnation_of(row) == incarnation:
        yield Violation("workers", f"worker {ip}:{port}", "is registered and listed as dead")
