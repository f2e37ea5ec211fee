"""Servers of FoundationDB that are killed, stopped, full or cut off: nothing is lost or done twice, and everybody goes on."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, made_hosts

from cluster.servers import FOLDER_VARIABLE, Servers, binaries
from cluster.world import SERVICES, World
from fdb_schema.errors import EXIT_UNREACHABLE

if binaries() is None:
    pytest.skip(
        f"no fdbserver and fdbcli are found (beside libfdb_c.so, on PATH, or in the folder that {FOLDER_VARIABLE} names)",
        allow_module_level=True,
    )

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("MAINSPRING_CLUSTER_ROUNDS", "1"))
AWAY = 20.0


def named(request: pytest.FixtureRequest) -> str:
    """The test's own Mainspring cluster."""
    return re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).strip("-")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One in memory: what the disk does is no part of this."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="mainspring-cluster-", dir=shm if shm.is_dir() else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[Servers]:
    made = Servers(folder / "servers")
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def world(servers: Servers, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    name = named(request)
    made = World(servers, name, tmp_path / name)
    try:
        servers.await_health()
        made.start()
        yield made
    finally:
        made.close()
        for number in range(len(servers.ports)):
            servers.resume(number)
            servers.run(number)


def faulted(world: World, what: str, fault: Callable[[], None]) -> None:
    """A fault from its beginning to its end, and how long everybody took from FoundationDB's first commit after it."""
    fault()
    ended = time.monotonic()
    took = world.await_progress(ended)
    back = (world.first_after(ended, "probe") or ended) - ended
    print(f"{what}: FoundationDB {back:.1f} s, then {took}")


def test_each_server_is_killed_in_turn(world: World, servers: Servers) -> None:
    def kill(number: int) -> None:
        servers.kill(number)
        servers.run(number)

    for number in ROUNDS * list(range(len(servers.ports))):
        faulted(world, f"kill of server {number}", lambda number=number: kill(number))  # type: ignore[misc]
        servers.await_health()  # of two killed at once both copies of a row could be gone
    assert world.finish() == []


def test_a_recovery_every_few_seconds(world: World, servers: Servers) -> None:
    def recover(role: str) -> None:
        number = servers.who(role)
        if number is not None:
            servers.kill(number)
            servers.run(number)

    for role in 3 * ROUNDS * ["cluster_controller", "master", "log"]:
        recover(role)
        world.pause(2.0)
    faulted(world, "recoveries", lambda: recover("master"))
    assert world.finish() == []


def test_each_server_stands_still_for_a_while(world: World, servers: Servers) -> None:
    for seconds in (1.0, 4.0, 10.0):
        for number in ROUNDS * list(range(len(servers.ports))):

            def stand(number: int = number, seconds: float = seconds) -> None:
                servers.stop(number)
                world.pause(seconds)
                servers.resume(number)

            faulted(world, f"server {number} stopped for {seconds:g} s", stand)
    assert world.finish() == []


def test_all_servers_are_away(world: World, servers: Servers) -> None:
    def away() -> None:
        for number in range(len(servers.ports)):
            servers.kill(number)
        world.pause(AWAY)
        for number in range(len(servers.ports)):
            servers.run(number)

    faulted(world, f"killed for {AWAY:g} s", away)
    assert world.finish() == []


def test_all_servers_stand_still(world: World, servers: Servers) -> None:
    def still() -> None:
        for number in range(len(servers.ports)):
            servers.stop(number)
        world.pause(AWAY)
        for number in range(len(servers.ports)):
            servers.resume(number)

    faulted(world, f"stopped for {AWAY:g} s", still)
    assert world.finish() == []


def test_services_end_when_they_are_told_to_though_all_servers_are_away(world: World, servers: Servers) -> None:
    for number in range(len(servers.ports)):
        servers.stop(number)
    world.pause(1.0)
    assert world.end_services() == dict.fromkeys(SERVICES, EXIT_UNREACHABLE)
    for name in SERVICES:
        assert "this process ends without telling it" in world.processes[name].tail()


def test_servers_are_full(world: World, servers: Servers) -> None:
    def again(*knobs: str) -> None:
        for number in range(len(servers.ports)):
            servers.kill(number)
            servers.run(number, *knobs)

    def full() -> None:
        again("--knob_min_available_space=1000000000000")
        world.pause(AWAY)
        again()

    faulted(world, f"full for {AWAY:g} s", full)
    assert world.finish() == []


SERVERS, WORKERS, CLIENTS = range(3)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with made_hosts() as made:
        yield made


@pytest.fixture
def spread(hosts: Hosts, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Servers, workers and clients on three hosts; the services of the heap are with the servers."""
    name = named(request)
    servers = Servers(folder / f"{name}-servers", address=hosts.address(SERVERS), prefix=hosts.place(SERVERS))
    places = {"worker-1": WORKERS, "worker-2": WORKERS, "client": CLIENTS, "leases-1": CLIENTS}
    others = ("leases-2", "writing", "probe", "tender", "scheduler", "janitor", "check", "check-heap", "fsck-heap")
    made = World(
        servers, name, tmp_path / name, address=hosts.address(WORKERS),
        hosts={process: hosts.place(places.get(process, SERVERS)) for process in (*places, *others)},
    )  # fmt: skip
    try:
        servers.start()
        made.start()
        yield made
    finally:
        made.close()
        servers.close()


@pytest.mark.parametrize("seconds", [3.0, 20.0])
@pytest.mark.parametrize(
    ("one", "other"), [(WORKERS, SERVERS), (CLIENTS, SERVERS), (WORKERS, CLIENTS)],
    ids=["workers-and-servers", "clients-and-servers", "workers-and-clients"],
)  # fmt: skip
def test_hosts_are_cut_off(spread: World, hosts: Hosts, one: int, other: int, seconds: float) -> None:
    def cut() -> None:
        hosts.cut(one, other)
        spread.pause(seconds)
        hosts.mend(one, other)

    faulted(spread, f"cut for {seconds:g} s", cut)
    if (one, other) == (CLIENTS, SERVERS) and seconds > 10.0:  # also where its commits were in flight
        told = {line["kind"] for line in spread.lines() if line["event"] == "error"}
        assert told >= {"task", "program", "once"}, told
    taken_for_dead = (one, other) == (WORKERS, SERVERS) and seconds > 5.0  # their time to live
    assert spread.finish(lost=taken_for_dead) == []
