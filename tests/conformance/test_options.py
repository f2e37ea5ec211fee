"""Options that every program may set, and the codes of bad ones."""

from __future__ import annotations

import json
from typing import Any

import fdb
import pytest
from tests.conformance.expect import commit_code, fdb_error, value


def test_options_of_a_database_are_accepted(any_db: Any) -> None:
    options = any_db.options
    options.set_location_cache_size(100_001)
    options.set_max_watches(10_000)
    options.set_datacenter_id("dc")
    options.set_machine_id("machine")
    options.set_snapshot_ryw_enable()
    options.set_snapshot_ryw_disable()
    options.set_transaction_logging_max_field_length(1000)
    options.set_transaction_timeout(100_000)
    options.set_transaction_timeout(0)
    options.set_transaction_max_retry_delay(100)
    options.set_transaction_size_limit(100_000)
    options.set_transaction_size_limit(10_000_000)
    options.set_transaction_retry_limit(10)
    options.set_transaction_retry_limit(-1)
    options.set_transaction_causal_read_risky()
    options.set_transaction_include_port_in_address()
    any_db[b"k"] = b"v"
    assert any_db[b"k"] == b"v"


def test_options_of_a_transaction_are_accepted(any_db: Any) -> None:
    tr = any_db.create_transaction()
    options = tr.options
    options.set_priority_system_immediate()
    options.set_priority_batch()
    options.set_causal_read_risky()
    options.set_causal_write_risky()
    options.set_read_system_keys()
    options.set_access_system_keys()
    options.set_transaction_logging_max_field_length(1000)
    options.set_timeout(60_000)
    options.set_retry_limit(50)
    options.set_max_retry_delay(100)
    options.set_used_during_commit_protection_disable()
    options.set_debug_transaction_identifier("my_transaction")
    options.set_log_transaction()
    options.set_read_lock_aware()
    options.set_lock_aware()
    options.set_include_port_in_address()
    options.set_tag("tag")
    options.set_auto_throttle_tag("tag")
    options.set_durability_datacenter()
    tr[b"k"] = b"v"
    assert value(tr, b"\xff/mainspring-absent") is None
    assert commit_code(tr) == 0


def test_an_unknown_option_is_refused(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2007):
        tr._set_option(9999, None, 0)
    with fdb_error(2007):
        any_db._set_option(9999, None, 0)


def test_a_transaction_has_few_short_tags(any_db: Any) -> None:
    tr = any_db.create_transaction()
    for i in range(5):
        tr.options.set_tag(f"tag{i}")
    assert commit_code(tr) == 0
    tr = any_db.create_transaction()
    for i in range(6):
        tr.options.set_tag(f"tag{i}")
    tr[b"k"] = b"v"
    with fdb_error(2109):
        tr.commit().wait()
    tr = any_db.create_transaction()
    tr.options.set_tag("t" * 256)
    tr[b"k"] = b"v"
    with fdb_error(2110):
        tr.commit().wait()


def test_causal_read_risky_reads_what_is_committed(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    tr = any_db.create_transaction()
    tr.options.set_causal_read_risky()
    assert value(tr, b"k") == b"v"


def test_the_predicates_sort_the_errors(any_db: Any) -> None:
    predicates = fdb.predicates
    retryable_not_committed = {1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213}
    maybe_committed = {1021, 1039}
    for code in [
        1000,
        1007,
        1009,
        1020,
        1021,
        1025,
        1031,
        1036,
        1037,
        1038,
        1039,
        1042,
        1051,
        1078,
        1101,
        1213,
        2000,
        2101,
    ]:
        error = fdb.FDBError(code)
        assert bool(predicates.is_retryable_not_committed(error)) == (code in retryable_not_committed), code
        assert bool(predicates.is_maybe_committed(error)) == (code in maybe_committed), code
        assert bool(predicates.is_retryable(error)) == (code in retryable_not_committed | maybe_committed), code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1007, "Transaction is too old to perform reads or be committed"),
        (1020, "Transaction not committed due to conflict with another transaction"),
        (1021, "Transaction may or may not have committed"),
        (1025, "Operation aborted because the transaction was cancelled"),
        (1031, "Operation aborted because the transaction timed out"),
        (2004, "Key outside legal range"),
        (2101, "Transaction exceeds byte limit"),
        (2102, "Key length exceeds limit"),
        (2103, "Value length exceeds limit"),
    ],
)
def test_errors_have_their_text(any_db: Any, code: int, text: str) -> None:
    error = fdb.FDBError(code)
    assert error.code == code
    assert text in str(error.description if not isinstance(error.description, bytes) else error.description.decode())


def test_the_client_says_how_it_is(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    status = json.loads(bytes(any_db.get_client_status().wait()))
    assert status["Healthy"] is True


def test_metrics_of_ranges(any_db: Any) -> None:
    begin, end = b"\x02points/a", b"\x02points/z"

    @fdb.transactional
    def fill(tr: Any, part: int) -> None:
        for i in range(50):
            tr[b"\x02points/m%d/%03d" % (part, i)] = b"v" * 1000

    for part in range(4):
        fill(any_db, part)
    tr = any_db.create_transaction()
    assert tr.get_estimated_range_size_bytes(begin, end).wait() >= 0
    points = [bytes(p) for p in tr.get_range_split_points(begin, end, 1_000_000).wait()]
    assert points[0] == begin
    assert points[-1] == end
    fine = [bytes(p) for p in tr.get_range_split_points(begin, end, 20_000).wait()]
    assert fine[0] == begin
    assert fine[-1] == end
    assert fine == sorted(set(fine))


def test_metrics_refuse_bad_ranges(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2005):
        tr.get_estimated_range_size_bytes(b"b", b"a").wait()
    with fdb_error(2005):
        tr.get_range_split_points(b"b", b"a", 1000).wait()
    with fdb_error(2004):
        tr.get_range_split_points(b"a", b"\xff\x01", 1000).wait()


def test_locality_is_consistent(any_db: Any) -> None:
    any_db[b"a"] = b"v"
    any_db[b"y"] = b"v"
    tr = any_db.create_transaction()
    tr.options.set_read_system_keys()
    boundaries = [bytes(k) for k in fdb.locality.get_boundary_keys(any_db, b"", b"\xff\xff")]
    assert boundaries == sorted(set(boundaries))
    assert boundaries[:1] == [b""]
    addresses = list(fdb.locality.get_addresses_for_key(tr, b"a").wait())
    assert addresses
    for boundary in boundaries[1:]:
        last = tr.get_key(fdb.KeySelector.last_less_than(boundary))
        assert list(fdb.locality.get_addresses_for_key(tr, last).wait())
