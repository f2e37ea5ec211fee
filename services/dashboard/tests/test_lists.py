"""Futures in any order, actors, datasets, sessions: what is looked through, how it is paged, and what is said of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from starlette.testclient import TestClient

import fdb_datamodel as dm
from fdb_datamodel import Counted, FutureState, actors
from lease_locks import LeaseManager
from mainspring_dashboard import Cluster, create_app
from mainspring_dashboard.lists.kept import Kept
from mainspring_dashboard.lists.sorting import KEYS, SHALLOW, Sorted, Wanted


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TestClient]:
    with TestClient(create_app(cluster, interval=0.01), base_url="http://127.0.0.1") as found:
        yield found


def _when(client: TestClient, path: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The answer, once the census has seen what the test did: a future's row tells of it before."""
    for _ in range(1_000):
        found: dict[str, Any] = client.get(path).json()
        if done(found):
            return found
        client.portal.call(_look, client.app.state.live)  # type: ignore[union-attr, attr-defined]
    raise AssertionError(f"{path} never told it: {found}")


async def _look(live: Any) -> None:
    await live.next_tick(live.ticks)


def _names(found: dict[str, Any]) -> list[str]:
    return [row["name"] for row in found["futures"]]


def test_futures_are_sorted_by_any_column_over_all_of_them(client: TestClient, lab: Any) -> None:
    ids = {name: lab.submit(name=name) for name in ("x", "z", "w", "y")}
    lab.realize(ids["z"])
    lab.fail(ids["y"], "no luck")
    by_name = _when(client, "/api/futures?sort=name&limit=3", lambda found: found.get("matches") == 4)
    assert _names(by_name) == ["w", "x", "y"]
    assert (by_name["looked"], by_name["all"], by_name["skip"]) == (4, True, 3)
    rest = client.get("/api/futures?sort=name&limit=3&skip=3").json()
    assert (_names(rest), rest["skip"]) == (["z"], None)
    assert _names(client.get("/api/futures?sort=name&descending=1").json()) == ["z", "y", "x", "w"]

    def ended(found: dict[str, Any]) -> bool:
        return [row["state"] for row in found["futures"]][:2] == ["failed", "realized"]

    by_state = _when(client, "/api/futures?sort=state", ended)
    assert [row["state"] for row in by_state["futures"]] == ["failed", "realized", "unclaimed", "unclaimed"]
    assert _names(client.get("/api/futures?sort=ended&descending=1").json())[:2] == ["y", "z"], "the last one first"
    assert set(_names(client.get("/api/futures?sort=ran").json())[2:]) == {"w", "x"}, "what never ran comes last"
    assert set(_names(client.get("/api/futures?sort=ran&descending=1").json())[2:]) == {"w", "x"}, "either way"
    assert _names(client.get("/api/futures?sort=waited&descending=1&state=unclaimed").json()) == ["x", "w"]
    assert _names(client.get("/api/futures?sort=name&q=Y").json()) == ["y"]
    assert _names(client.get(f"/api/futures?sort=name&q={UUID(bytes=ids['w'])}").json()) == ["w"]
    assert client.get("/api/futures?sort=reason").status_code == 400


def test_a_list_that_is_bounded_says_so(client: TestClient, lab: Any) -> None:
    for at in range(40):
        lab.submit(name=f"number {at:02}")
    kept = client.app.state.live.sampler.kept  # type: ignore[attr-defined]
    _when(client, "/api/futures?sort=name", lambda found: found.get("matches") == 40)
    kept._most = 10
    found = _when(client, "/api/futures?sort=name&q=number", lambda found: found["looked"] < 40)
    assert (found["all"], found["looked"] <= 13) == (False, True)
    assert _names(found)[-1] == "number 39", "the newest are kept"


def test_the_newest_are_kept_and_what_was_deleted_goes() -> None:
    kept = Kept(most=100)
    rows = [Counted(at.to_bytes(16, "big"), FutureState.unclaimed, at + 1, 0, 0, "f") for at in range(300)]
    for one in rows:
        kept.see(one)
    kept.finish_sweep()
    assert 100 <= len(kept) <= 125
    assert not kept.all
    assert max(kept).id == rows[-1].id
    for one in rows[270:]:
        kept.see(one)
    kept.finish_sweep()  # the others weren't seen: they were deleted
    assert sorted(one.id for one in kept) == [one.id for one in rows[270:]]
    assert not kept.all
    for one in rows[240:290]:
        kept.see(one)
    kept.forget(rows[240].id)
    kept.finish_sweep()
    assert kept.all
    assert sorted(one.id for one in kept) == [one.id for one in rows[241:290]]


@pytest.mark.parametrize("by", KEYS)
@pytest.mark.parametrize("seed", range(3))
def test_each_page_goes_on_where_the_one_before_ended(by: str, seed: int) -> None:
    rng = random.Random(seed)
    kept = Kept()
    for at in range(3 * SHALLOW):
        started, state = rng.choice((0, 2_000 + rng.randrange(99))), rng.choice(list(FutureState))
        id = at.to_bytes(16, "big")
        kept.see(Counted(id, state, 1_000, started, 9_000 if started else 0, rng.choice("abc "), "", rng.randrange(3)))
    for descending in (False, True):
        sorts, wanted = Sorted(kept), Wanted(by, descending)
        paged: list[bytes] = []
        skip: int | None = 0
        while skip is not None:
            ids, said = sorts.page(wanted, skip, 700)
            paged += ids
            skip = said["skip"]
        assert len(paged) == len(set(paged)) == said["matches"] == 3 * SHALLOW
        rows = {one.id: one for one in kept}
        values = [KEYS[by](rows[id], 10_000) for id in paged]
        present = [value for value in values if value is not None]
        assert values[: len(present)] == present, "those without a value come last"


def test_actors_say_where_they_take_calls_and_why_they_are_no_more(client: TestClient, lab: Any) -> None:
    first = lab(actors.create_actor, dm.FutureSpec(code=b"x", name="actor Tally"), "the tally")
    second = lab(actors.create_actor, dm.FutureSpec(code=b"x", name="actor Cache"), "")
    lab(dm.claim_future, first, lab.worker)
    host = lab(actors.begin_host, first, 1)
    lab(actors.place_host, host, "127.0.0.1", 7123)
    lab(dm.cancel_future, second)
    page = client.get("/api/actors?limit=1").json()
    (gone,) = page["actors"]
    assert (gone["kind"], gone["name"], gone["state"], gone["place"]) == ("Cache", "", "failed", None)
    assert gone["reason"].startswith("cancelled")
    (up,) = client.get(f"/api/actors?after={page['after']}").json()["actors"]
    assert (up["kind"], up["name"], up["place"], up["worker"]) == (
        "Tally",
        "the tally",
        "127.0.0.1:7123",
        "127.0.0.1:7000",
    )
    assert (up["starts"], up["waiting"]) == (1, 0)


def test_datasets_are_found_by_their_partitions(client: TestClient, lab: Any) -> None:
    assert client.get("/api/datasets").json()["datasets"] == []
    marks = [dm.new_future_id() for _ in range(3)]
    for at, mark in enumerate(marks):
        parts = [lab.submit(name=f"step {at}", dataset=mark) for _ in range(4)]
        for one in parts[: at * 2]:
            lab.realize(one)
    found = _when(
        client,
        "/api/datasets?limit=2",
        lambda found: [one["counts"]["realized"] for one in found["datasets"]] == [4, 2],
    )
    assert [one["id"] for one in found["datasets"]] == [marks[2].hex(), marks[1].hex()], "the newest first"
    newest, older = found["datasets"]
    assert (newest["partitions"], newest["name"], newest["workers"]) == (4, "step 2", 1)
    assert newest["ended"] >= newest["submitted"]
    assert older["ended"] is None
    assert (found["all"], found["skip"]) == (True, 2)
    (oldest,) = client.get("/api/datasets?skip=2").json()["datasets"]
    assert oldest["id"] == marks[0].hex()
    parts = client.get(f"/api/futures?dataset={marks[1].hex()}&sort=state").json()
    assert [row["state"] for row in parts["futures"]] == ["realized", "realized", "unclaimed", "unclaimed"]


def test_sessions_say_who_is_connected_what_it_holds_and_what_it_waits_for(client: TestClient, lab: Any) -> None:
    session = bytes(range(16))
    lab(dm.beat_session, session, 3, "elsewhere", 77)
    lab.submit(name="asked for", session=session)
    with LeaseManager(lab.db, "demo") as holder, LeaseManager(lab.db, "demo") as other:
        lease = holder.acquire("nightly/report")
        waits = threading.Thread(target=lambda: other.acquire("nightly/report", timeout=60.0).release())
        waits.start()

        def complete(found: dict[str, Any]) -> bool:
            rows = {(row["host"], row["pid"]): row for row in found["sessions"]}
            client_row = rows.get(("elsewhere", 77))
            return (
                client_row is not None
                and client_row["clients"][0]["futures"] == 1
                and bool(found["sessions"][0]["waits"])
            )

        found = _when(client, "/api/sessions", complete)
        own, *others = found["sessions"]
        assert own["holds"] == ["nightly/report"], "who waits comes first"
        assert own["waits"][0]["name"] == "nightly/report"
        assert own["waits"][0]["mode"] == "exclusive"
        assert own["beat"] > 0
        rows = {row["host"]: row for row in others}
        assert rows["elsewhere"]["clients"] == [{"session": session.hex(), "futures": 1}]
        assert rows["here"]["worker"] == "127.0.0.1:7000"
        assert (found["processes"], found["cut"], found["skip"]) == (3, False, None)
        page = client.get("/api/sessions?limit=2").json()
        assert (len(page["sessions"]), page["skip"]) == (2, 2)
        futures = client.get(f"/api/futures?session={session.hex()}").json()
        assert _names(futures) == ["asked for"]
        lease.release()
        waits.join()


def test_leases_come_in_pages(client: TestClient, lab: Any) -> None:
    with LeaseManager(lab.db, "demo") as locks:
        held = [locks.acquire(f"job/{at:02}") for at in range(7)]
        seen: list[str] = []
        after = ""
        while after is not None:
            page = client.get("/api/leases", params={"limit": 3, "after": after, "prefix": "job/"}).json()
            assert len(page["leases"]) <= 3
            seen += [one["name"] for one in page["leases"]]
            after = page["after"]
        assert seen == [one.name for one in held]
    assert client.get("/api/leases?after=xyz").status_code == 400
