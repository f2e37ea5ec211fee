"""validate() names what is broken: each test plants one violation in a healthy cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from datamodel_lab.lab import Lab
from fdb import tuple as fdb_tuple

import fdb_datamodel as dm
from fdb_datamodel import INVARIANTS, Failure, FutureResult, Locality, Requirements
from fdb_datamodel.coordination import queues, semaphores
from fdb_datamodel.rows import codec
from fdb_datamodel.rows import space as keys
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.space import Layout, encode_id


class Healthy:
    """A cluster with a future in each place, and the keys to break it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.at = Layout(lab.space)
        self.worker = lab.worker()
        lab.clock(1)
        realized, running, failed, backing = specs = [
            lab.spec(),
            lab.spec(),
            lab.spec(max_retries=0),
            lab.spec(backoff=dm.Backoff(5.0)),
        ]
        lab.submit(*specs)
        claims = {claim.id: claim for claim in lab.claim(self.worker)}
        lab(dm.realize_future, claims[realized.id], FutureResult(None, 9, "object"))
        lab(dm.fail_future, claims[failed.id], "x")
        lab(dm.fail_future, claims[backing.id], "x")
        pooled, assigned = lab.spec(requirements=Requirements(ram=1001)), lab.spec(locality=Locality(self.worker))
        waiting, deleted = lab.spec(dependencies=(running.id,)), lab.spec()
        lab.submit(pooled, assigned, waiting, deleted)
        lab(dm.delete_future, deleted.id)
        self.realized, self.running, self.failed, self.backing = (encode_id(spec.id) for spec in specs)
        self.pooled, self.assigned, self.waiting, self.deleted = (
            encode_id(spec.id) for spec in (pooled, assigned, waiting, deleted)
        )
        assert lab.validate() == []

    def put(self, key: bytes, value: bytes | None) -> None:
        self.lab.set_row(key, value)

    def row(self, e: bytes, name: bytes, value: bytes | None) -> None:
        self.put(self.at.future(e, name), value)

    def get(self, key: bytes) -> bytes:
        return bytes(self.lab.db[key])


def _rewrite_token(h: Healthy, key: bytes) -> None:
    value = h.get(key)
    h.put(key, value[:3] + b"\x00" * 10 + value[13:])


def _claim_key(h: Healthy, e: bytes) -> bytes:
    return h.at.claim_rows("127.0.0.1", 1) + e


def _together(h: Healthy) -> bytes:
    """The row that lists what was claimed together, of which the running one is left."""
    (key,) = (key for key in h.lab.packed() if key.startswith(_claim_key(h, b"")))
    return key


def _claimed_with(h: Healthy, e: bytes, first: bytes) -> bytes:
    token, worker, wall_us, attempt = codec.unpack_claim(h.get(h.at.future(e, keys.CLAIM)))
    return codec.claim_head(worker, token, wall_us, together=True) + codec.pack(attempt) + codec.pack(first)


def _queue(h: Healthy, kind: str, stamp: bool = True) -> bytes:
    h.lab(queues.make_queue, "q", None)
    h.lab(queues.put_items, "q", [queues.Item(b"x", (h.lab.session,))])
    stamped = next(key for key in h.lab.packed() if key.startswith(h.at.shared("queues", "q", "item")))[-13:]
    return h.at.shared("queues", "q", kind) + (stamped if stamp else b"")


def _semaphore(h: Healthy, kind: str) -> bytes:
    h.lab(semaphores.make_semaphore, "s", 2)
    assert h.lab(semaphores.take_permit, "s", h.lab.session, h.lab.session)
    return h.at.shared("semaphores", "s", kind)


_PLANTED: dict[str, tuple[str, Callable[[Healthy], None]]] = {
    "a permit that is neither free nor held": (
        "shared",
        lambda h: h.put(_semaphore(h, "held") + encode_id(h.lab.session), None),
    ),
    "a permit of no semaphore": ("shared", lambda h: h.put(_semaphore(h, "config"), None)),
    "an event that can't be read": ("known-keys", lambda h: h.put(h.at.event("e"), b"x")),
    "a queue that has more than it says": ("shared", lambda h: h.put(_queue(h, "size", False), bytes(8))),
    "an item of no queue": ("shared", lambda h: h.put(_queue(h, "config", False), None)),
    "an item that nobody took": ("shared", lambda h: h.put(_queue(h, "taken"), codec.pack((b"", (), 0)))),
    "an item that is had and isn't there": ("shared", lambda h: h.put(_queue(h, "held"), codec.pack((b"s", b"g", 0)))),
    "an item whose future isn't held": (
        "shared",
        lambda h: h.put(h.at.held_by_queue(encode_id(h.lab.session), "q") + _queue(h, "item")[-13:], None),
    ),
    "a dependency without a row of lineage": (
        "lineage",
        lambda h: h.put(h.at.named_by(h.running, h.waiting), None),
    ),
    "a row of lineage of a future that names nobody": (
        "lineage",
        lambda h: h.put(h.at.named_by(h.running, h.pooled), b""),
    ),
    "a failed future with a result": (
        "one-state",
        lambda h: h.row(h.failed, keys.LATEST_RESULT, codec.pack_latest_result(FutureResult(b""), bytes(10), 0)),
    ),
    "a running future in a back-off": ("one-state", lambda h: h.row(h.running, keys.DUE, codec.pack(1))),
    "a result of another claim": (
        "result-iff-realized",
        lambda h: _rewrite_token(h, h.at.future(h.realized, keys.LATEST_RESULT)),
    ),
    "a realized future that lost its result": ("claim-row", lambda h: h.row(h.realized, keys.LATEST_RESULT, None)),
    "a claim the worker doesn't know": ("claim-row", lambda h: h.put(_together(h), None)),
    "a worker's row of a claim that ended": (
        "claim-row",
        lambda h: h.put(_claim_key(h, h.realized), codec.pack_claim_row(h.worker, bytes(10))),
    ),
    "a claim of several that the worker doesn't know": (
        "claim-row",
        lambda h: h.put(_together(h), codec.pack_claims_row(h.worker.incarnation, [bytes(16)])),
    ),
    "a claim that says that it was made with another": (
        "claim-row",
        lambda h: h.row(h.running, keys.CLAIM, _claimed_with(h, h.running, bytes(16))),
    ),
    "a worker's row that lists nothing": ("known-keys", lambda h: h.put(_together(h), codec.pack((bytes(16), b"")))),
    "a claim of another token": ("claim-row", lambda h: _rewrite_token(h, h.at.future(h.running, keys.CLAIM))),
    "a claim of a worker nobody is to reap": ("claim-live", lambda h: h.put(h.at.incarnation("127.0.0.1", 1), None)),
    "an unclaimed future in no index": (
        "one-place",
        lambda h: [
            h.put(prefix + h.pooled, None)
            for prefix in h.at.index_prefixes((0, 1001, 0), 0)[:2]  # type: ignore[func-returns-value]
        ],
    ),
    "an unclaimed future in one of two indices": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((0, 1001, 0), 0)[1] + h.pooled, None),
    ),
    "an assigned future in the pool too": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((0, 0, 0), 0)[0] + h.assigned, b""),
    ),
    "a running future in the pool": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((0, 0, 0), 0)[0] + h.running, b""),
    ),
    "an entry under other requirements": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((5000, 0, 0), 0)[0] + h.pooled, b""),
    ),
    "an entry in the index of what isn't needed": (
        "one-place",
        lambda h: h.put(h.at.gpu + fdb_tuple.pack((0, 0, 1001, 0)) + h.pooled, b""),
    ),
    "an entry that says other needs": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((0, 1001, 0), 0)[0] + h.pooled, codec.pack((0, 7, 0))),
    ),
    "an entry of no future": (
        "one-place",
        lambda h: h.put(h.at.index_prefixes((0, 0, 0), 0)[0] + encode_id(bytes(16)), b""),
    ),
    "a realized future assigned": (
        "one-place",
        lambda h: h.put(
            h.at.assignment_rows("127.0.0.1", 1) + h.realized, codec.pack_assignment(Locality(h.worker), (0, 0, 0))
        ),
    ),
    "an assignment lost": ("one-place", lambda h: h.put(h.at.assignment_rows("127.0.0.1", 1) + h.assigned, None)),
    "a back-off nothing ends": (
        "waiting-timer",
        lambda h: h.put(h.at.timer(6_000_000, h.backing, "backoff"), None),
    ),
    "an edge with one end": ("edges", lambda h: h.put(h.at.edge(h.running, h.waiting), None)),
    "an edge with the other end": ("edges", lambda h: h.put(h.at.dependency(h.waiting, h.running), None)),
    "an edge to a future that ended": (
        "edges",
        lambda h: [
            h.put(h.at.dependency(h.waiting, h.realized), codec.pack(0)),  # type: ignore[func-returns-value]
            h.put(h.at.edge(h.realized, h.waiting), codec.pack(0)),  # type: ignore[func-returns-value]
            h.row(h.realized, keys.LISTENERS, b""),  # type: ignore[func-returns-value]
        ],
    ),
    "an edge to a later epoch": (
        "edges",
        lambda h: [
            h.put(h.at.dependency(h.waiting, h.running), codec.pack(3)),  # type: ignore[func-returns-value]
            h.put(h.at.edge(h.running, h.waiting), codec.pack(3)),  # type: ignore[func-returns-value]
        ],
    ),
    "a subscription to a future that ended": (
        "edges",
        lambda h: [
            h.put(h.at.subscription(h.failed, b"s" * 16), b""),  # type: ignore[func-returns-value]
            h.row(h.failed, keys.LISTENERS, b""),  # type: ignore[func-returns-value]
        ],
    ),
    "listeners without the hint": ("listeners-flag", lambda h: h.row(h.running, keys.LISTENERS, None)),
    "starts that were not counted": ("attempts", lambda h: h.row(h.running, keys.NUM_ATTEMPTS, codec.pack(2))),
    "more uncharged than started": ("attempts", lambda h: h.row(h.running, keys.UNCHARGED, codec.pack((1, 1, 1)))),
    "more starts than the budget": ("budget", lambda h: h.row(h.failed, keys.NUM_ATTEMPTS, codec.pack(9))),
    "more losses than the budget": (
        "budget",
        lambda h: [
            h.row(h.failed, keys.NUM_ATTEMPTS, codec.pack(9)),  # type: ignore[func-returns-value]
            h.row(h.failed, keys.UNCHARGED, codec.pack((9, 0, 0))),  # type: ignore[func-returns-value]
        ],
    ),
    "a result row of an unfinished future": (
        "result-rows",
        lambda h: h.put(h.at.result(h.running, bytes(10)), codec.pack_result_row(FutureResult(b"x"), bytes(10), 0)),
    ),
    "a result row of another claim": (
        "result-rows",
        lambda h: h.put(h.at.result(h.realized, b"0" * 10), codec.pack_result_row(FutureResult(b"x"), b"0" * 10, 0)),
    ),
    "a tombstone that is not alone": ("tombstone", lambda h: h.row(h.deleted, keys.ARGS, codec.pack((b"",)))),
    "an unsettled future that never was": ("unsettled", lambda h: h.put(h.at.unsettled + encode_id(bytes(16)), b"")),
    "a permit of a limit that nobody has": ("limits", lambda h: h.put(h.at.limit_held("api", h.pooled), b"")),
    "a time of a schedule that isn't there": ("schedules", lambda h: h.put(h.at.schedule_due(7, "none"), b"")),
    "a program that nothing brings back": (
        "waiting-timer",
        lambda h: [
            h.row(h.pooled, keys.AWAY, codec.pack_away("sleep", "")),  # type: ignore[func-returns-value]
            *[h.put(prefix + h.pooled, None) for prefix in h.at.index_prefixes((0, 1001, 0), 0)[:2]],  # type: ignore[func-returns-value]
        ],
    ),
    "a worker without a heartbeat": ("workers", lambda h: h.put(h.at.heartbeat("127.0.0.1", 1), None)),
    "a heartbeat without a worker": (
        "workers",
        lambda h: h.put(h.at.heartbeat("127.0.0.1", 9), codec.pack_heartbeat(dm.Heartbeat())),
    ),
    "a dead worker that is registered": ("workers", lambda h: h.put(h.at.dead_worker(h.worker), codec.pack(False))),
    "an assignment nobody serves": ("assignment-live", lambda h: h.put(h.at.incarnation("127.0.0.1", 1), None)),
    "a future without code": ("known-keys", lambda h: h.row(h.failed, keys.CODE, None)),
    "a value that is no record": ("known-keys", lambda h: h.row(h.running, keys.CLAIM, b"\xc1")),
    "a worker's row of no known kind": (
        "known-keys",
        lambda h: h.put(h.lab.space["workers"].pack(("127.0.0.1", 1, "mood")), b""),
    ),
}


@pytest.mark.parametrize("planted", _PLANTED)
def test_a_planted_violation_is_named(planted: str, broken_lab: Lab) -> None:
    invariant, plant = _PLANTED[planted]
    plant(Healthy(broken_lab))
    found = broken_lab.validate()
    assert invariant in {violation.invariant for violation in found}, [str(violation) for violation in found]
    assert all(violation.invariant in INVARIANTS and violation.subject and violation.found for violation in found)


def test_every_invariant_has_a_planted_violation() -> None:
    assert {invariant for invariant, _ in _PLANTED.values()} == set(INVARIANTS)


def test_a_large_cluster_is_checked_in_pages(lab: Lab) -> None:
    worker = lab.worker()
    specs = [lab.spec(args=b"a") for _ in range(400)]
    lab.submit(*specs)
    lab(dm.realize_futures, [(claim, b"r") for claim in lab.claim(worker, 250)])
    (last,) = lab.submit(lab.spec())
    lab.set_row(Layout(lab.space).index_prefixes((0, 0, 0), 0)[0] + encode_id(last), None)
    assert [(v.invariant, v.subject) for v in lab.validate()] == [("one-place", f"future {show_id(last)}")]
    lab(dm.cancel_future, last)


def test_the_cluster_may_be_given_by_name(lab: Lab) -> None:
    lab.worker()
    assert dm.validate(lab.db, lab.space.cluster) == []


def test_a_violation_reads_as_a_sentence() -> None:
    violation = dm.Violation("one-place", "future 00", "is in two places")
    assert str(violation) == "one-place: future 00: is in two places"
    assert Failure("x") != violation
