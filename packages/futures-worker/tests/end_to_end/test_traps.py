"""Traps of earlier designs, each with the tests that would fall into it; those that had none are here.

`TRAPS` and `UNSOLVED` are tables: what is to be shown, and by which tests of this package or of fdb-datamodel.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).parents[3]
WAIT = 90.0

#: What went wrong in an earlier attempt at this design -> what shows that it doesn't here.
TRAPS: dict[str, tuple[str, ...]] = {
    "a data plane that passes a segment's name and so works on one host only": (
        "test_objects_are_fetched_by_mapping_and_by_network",
        "test_results_are_streamed_between_hosts_with_addresses_of_their_own",
    ),
    "a heartbeat whose used memory is always 0": (
        "test_the_heartbeat_tells_what_the_store_holds_and_a_deleted_future_frees_it",
    ),
    "attempts reset at every claim": (
        "test_max_retries_bounds_the_starts",
        "test_a_task_that_always_kills_its_process_fails_for_that_reason",
    ),
    "a permanent failure that leaves the future in no index and in no state": (
        "test_a_permanent_failure_is_in_no_index_and_has_a_state",
    ),
    "any past exception makes an await fail": (
        "test_a_past_failure_does_not_spoil_a_later_success",
        "test_retries_are_counted_as_starts",
    ),
    "a resubmit that never worked": (
        "test_a_lost_result_is_computed_again",
        "test_resubmit_is_for_the_epoch_that_was_seen",
    ),
    "an await that spins on the database": ("test_an_await_does_not_spin_on_the_database",),
    "a restarted worker that relinquishes another's claim": (
        "test_a_reaper_works_in_pages_and_touches_only_the_dead_incarnation",
        "test_a_worker_restarted_on_its_address_gives_back_what_it_had_claimed",
    ),
    "futures assigned to a dead worker that nobody rescues": (
        "test_soft_locality_falls_back_after_a_wait_or_a_death",
        "test_pinned_futures_end_with_their_worker",
    ),
    "the nested example that deadlocks with one worker": (
        "test_nested_futures_with_one_worker_of_one_slot",
        "test_one_slot_of_one_cpu_runs_recursion_that_needs_a_cpu_per_task",
    ),
    "seconds of latency from sleeping loops": ("test_an_idle_cluster_answers_without_sleeping_loops",),
    "a same-second restart taken for the same worker": (
        "test_every_start_is_another_incarnation_and_gives_back_what_the_last_one_held",
        "test_a_new_incarnation_is_another_worker",
    ),
    "segments and rows that are never freed": (
        "test_nothing_is_left_of_a_deleted_future_but_its_tombstone",
        "test_nothing_is_left_on_the_host_by_a_worker_that_is_killed",
        "test_clients_killed_with_futures_amid_a_put_and_amid_an_upload_leave_nothing_but_tombstones",
    ),
}

#: What the seeds call not solved yet -> what shows that it is.
UNSOLVED: dict[str, tuple[str, ...]] = {
    "no worker has the required resources": (
        "test_unschedulable_says_so_and_fails_only_if_asked",
        "test_what_fits_no_worker_says_so",
        "test_requirements_that_no_worker_has_fail_when_asked_to",
    ),
    "the worker that holds a dependency's result is dead": (
        "test_an_input_lost_with_its_worker_is_computed_again",
        "test_a_whole_chain_of_lost_results_is_rebuilt_by_one_worker",
        "test_two_workers_that_lost_each_others_inputs",
        "test_what_may_not_be_reconstructed_fails_naming_the_loss",
    ),
    "the worker fails to deserialize the code": ("test_a_module_that_is_missing_on_the_worker",),
    "not enough memory": (
        "test_out_of_memory_has_its_own_budget_and_may_ask_for_more_room",
        "test_after_running_out_of_memory_a_task_is_tried_again_with_more_room",
        "test_memory_errors_are_counted_apart",
    ),
    "code over the database's limit of a value": (
        "test_large_code_and_arguments",
        "test_code_over_the_limit_of_a_value_runs",
    ),
    "the worker that claimed it died and does not restart, and nobody awaits it": (
        "test_fire_and_forget_work_of_a_killed_worker_is_done_though_nobody_waits",
    ),
}


def names_of_tests() -> set[str]:
    names: set[str] = set()
    for package in ("futures-worker", "fdb-datamodel"):
        for path in (PACKAGES / package / "tests").rglob("test_*.py"):
            names |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("table", [TRAPS, UNSOLVED], ids=["traps", "unsolved"])
def test_every_trap_and_every_unsolved_item_has_its_tests(table: dict[str, tuple[str, ...]]) -> None:
    there = names_of_tests()
    missing = {item: [name for name in names if name not in there] for item, names in table.items()}
    assert {item: names for item, names in missing.items() if names} == {}


def test_an_await_does_not_spin_on_the_database(
    shared_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    made: list[float] = []
    real = client._context.db.create_transaction
    monkeypatch.setattr(
        type(client._context.db), "create_transaction", lambda self: made.append(time.monotonic()) or real()
    )
    began = time.monotonic()
    slow = client.submit(time.sleep, 600)
    with pytest.raises(TimeoutError):
        slow.result(timeout=2)
    seconds = time.monotonic() - began
    assert len(made) <= 20 + 10 * seconds, "a look, a beat and a reaping each second, not a loop"
    assert slow.cancel()


def test_an_idle_cluster_answers_without_sleeping_loops(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    client.submit(abs, -1).result(WAIT)
    trips = []
    for _ in range(8):
        time.sleep(0.3)  # all bells are armed, every loop would sleep
        began = time.monotonic()
        client.submit(abs, -1).result(WAIT)
        trips.append(time.monotonic() - began)
        if trips[-1] < 0.25:
            break
    assert min(trips) < 0.25, "a sleeping loop costs every one of them as much"


def test_requirements_that_no_worker_has_fail_when_asked_to(cluster: Callable[..., Any]) -> None:
    from futures_worker import UnschedulableError

    demo = cluster(1, 1, "--cpus", "1")
    client = demo.client()
    future = client.submit(abs, -1, resources={"cpu": 64}, unschedulable_timeout=0.5)
    with pytest.raises(UnschedulableError, match="cpu=64"):
        future.result(WAIT)
    demo.check()


def test_code_over_the_limit_of_a_value_runs(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(1, 1)
    client = demo.client()
    blob = bytes(range(256)) * 2000

    def size(n: int) -> int:
        return len(blob) + n

    assert client.gather(client.map(size, range(10)), progress=False, timeout=WAIT) == [512_000 + n for n in range(10)]
    demo.check()
