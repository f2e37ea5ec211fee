"""`mainspring size`: its costs are what is counted, its sums are what a cluster was measured to do, and it says what gives way first."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.counting import counted
from support.sizes import KINDS, line, nearly
from typer.testing import CliRunner

from fdb_datamodel import Requirements
from fdb_schema import open_database
from futures_worker import Client
from futures_worker.worker.service import WorkerConfig, WorkerService
from mainspring.cli import app
from mainspring.size.costs import COSTS, Cost, Kind
from mainspring.size.model import Load, batches, demand

PATIENCE = 60.0


def test_the_kinds_of_the_table_are_those_that_are_counted() -> None:
    assert COSTS.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_what_the_table_says_is_what_is_counted(name: str) -> None:
    way, made = KINDS[name]
    for part, told, found in zip(Kind._fields, COSTS[name], way(made), strict=True):
        for field, has, is_ in zip(Cost._fields, told, found, strict=True):
            about = 0.1 * has + 10 if field.endswith("bytes") else 0.25
            if part == "fixed" and way is line and field.endswith("bytes"):
                about += (
                    30  # where a line meets the axis is known to a few rows' ids and times, which are longer or shorter
                )
            assert abs(has - nearly(is_)) <= about, (
                f"{part}.{field} of {name!r} is {is_:.2f}, and the table says {has}: put what `python -m support.sizes` prints in tests/ into costs.py"
            )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a database that a worker of two slots serves, in a thread of this process."""
    url = f"memory:size-{uuid.uuid4().hex}"
    service = WorkerService(WorkerConfig(url, "default", slots=2, total=Requirements(2), spill=tmp_path / "spill"))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    yield url
    service.shell.drain(0.0)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_keys_that_a_running_cluster_writes_and_reads_are_those_of_the_model(url: str) -> None:
    tasks = 3000
    with Client(url, "default") as client:
        assert client.gather(client.map(abs, range(10)), timeout=PATIENCE)
        with counted(open_database(url)) as tally:
            futures = client.map(abs, range(tasks))
            assert len(client.gather(futures, timeout=PATIENCE)) == tasks
            del futures
            client.flush()
    found = demand(Load(workers=1, slots=2, rate=tasks, args_bytes=10, result_bytes=10, latency=0.02))
    later = sum(flow.cost.written for flow in found.flows if flow.kind in ("collect", "release"))
    assert tally.written / tasks == pytest.approx((found.total.written - later) / tasks, rel=0.25)


def test_what_comes_while_a_transaction_runs_goes_with_the_next() -> None:
    assert batches(1, 1, 0.01) == pytest.approx(1 / 1.01), "seldom: each by itself"
    assert batches(1, 100_000, 0.01) == pytest.approx(100, rel=0.01), "often: as many as fit one after another"
    assert batches(4, 100_000, 0.01) == pytest.approx(400, rel=0.02)
    assert batches(1, 100_000, 0.01, most=100) == 1000
    assert batches(0, 1, 0.01) == batches(1, 0, 0.01) == 0.0


def test_what_a_cluster_bears_rises_with_the_rate_and_not_with_the_square_of_the_workers() -> None:
    small, twice = (demand(Load(workers=64, rate=rate)).total for rate in (1000, 2000))
    assert 1.5 * small.written < twice.written < 2.1 * small.written
    some, many = (demand(Load(workers=workers, rate=1.0)).total for workers in (200, 400))
    assert many.read < 2.1 * some.read


@pytest.mark.parametrize(
    ("load", "limit"),
    [
        (Load(workers=4, rate=30, slots=8, seconds=1.0), "the workers' slots"),
        (Load(workers=1000, rate=50_000, clients=500), "the pool's bell"),
        (Load(workers=100, rate=4000), "a client's bell"),
    ],
)
def test_the_first_limit_is_named(load: Load, limit: str) -> None:
    assert demand(load).limit.startswith(limit)


def size(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["size", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_shows_roles_keys_and_the_first_limit() -> None:
    shown = size("--workers", 64, "--rate", 1000, "--result-bytes", 100)
    for word in ("storage", "log", "commit proxy", "resolver", "GRV proxy", "the clock", "first limit"):
        assert word in shown
    assert "stay with their workers" in size("--workers", 1, "--rate", 1, "--result-bytes", 1_000_000)


def test_in_json_the_flows_sum_up_to_the_total() -> None:
    found = json.loads(size("--workers", 8, "--rate", 500, "--heap-runs", 10, "--leases", 5, "--held", 3, "--json"))
    for name in ("transactions", "written", "read", "commits", "conflicts"):
        assert sum(flow[name] for flow in found["flows"]) == pytest.approx(found["total"][name])
    assert found["load"]["workers"] == 8
    assert {"heap_run", "lease", "lease_beat"} <= {flow["kind"] for flow in found["flows"]}
    storage = next(role for role in found["roles"] if role["name"] == "storage")
    single = json.loads(size("--workers", 8, "--rate", 500, "--redundancy", "single", "--engine", "memory", "--json"))
    assert next(role for role in single["roles"] if role["name"] == "storage")["processes"] < storage["processes"]


def test_more_work_than_slots_is_an_error_that_says_so() -> None:
    result = CliRunner().invoke(app, ["size", "--workers", "2", "--rate", "100", "--task-seconds", "1"])
    assert result.exit_code == 2
    assert "100 at a time" in result.output + result.stderr


def test_tasks_without_workers_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="need workers, and there are none"):
        demand(Load(workers=0, rate=1.0))


@pytest.mark.parametrize("name", ["rate", "heap_runs", "leases", "latency"])
def test_what_is_without_end_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is inf: give a finite number"):
        demand(Load(**{"workers": 1, "rate": 1.0, name: float("inf")}))  # type: ignore[arg-type]


def test_the_page_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    page = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text()
    shown = re.findall(r"```console\n\$ mainspring size ([^\n]*)\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 3
    for arguments, printed in shown:
        assert [line.rstrip() for line in size(*arguments.split()).splitlines()] == printed.splitlines()


def test_an_idle_cluster_costs_what_its_beats_cost() -> None:
    found = demand(Load(workers=3, rate=0.0, clients=2, tenders=1))
    assert found.total.written < 10
    assert found.total.transactions < 20
