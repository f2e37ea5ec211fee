"""What the server answers: every route, bad input, who is let in. Nothing stored is ever unpickled."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.testclient import TestClient

import fdb_datamodel as dm
from fdb_schema import DatabaseUnreachableError
from lease_locks import LeaseManager
from mainspring_dashboard import Cluster, create_app, reading, survey
from mainspring_dashboard.doctor import Doctor
from mainspring_dashboard.lists import renewed

TOKEN = "a-token-of-twenty-four-c"


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TestClient]:
    with TestClient(create_app(cluster, interval=0.01), base_url="http://127.0.0.1") as found:
        yield found


def _text(future_id: bytes) -> str:
    return str(UUID(bytes=future_id))


def test_every_page_is_the_same_file_so_that_its_address_can_be_shared(client: TestClient) -> None:
    first = client.get("/").text
    assert "/static/main.js" in first
    for path in ("/futures", "/futures/x?q=1", "/functions", "/workers", "/leases", "/leases/a/b", "/heap", "/ids"):
        assert client.get(path).text == first
    assert client.get("/static/main.js").status_code == 200


def test_no_asset_comes_from_another_host(client: TestClient) -> None:
    answer = client.get("/")
    assert "http://" not in answer.text.replace("http://www.w3.org/", "")
    assert "https://" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_futures_by_state_text_and_page(client: TestClient, lab: Any) -> None:
    done, failed = lab.submit(name="first done"), lab.submit(name="second")
    lab.realize(done)
    lab.fail(failed, "out of luck")
    queued = [lab.submit(name=f"queued {at}") for at in range(5)]
    everything = client.get("/api/futures").json()
    assert [row["id"] for row in everything["futures"]] == [_text(one) for one in (done, failed, *queued)]
    assert everything["after"] is None
    newest = client.get("/api/futures?newest=1&limit=3").json()
    assert [row["id"] for row in newest["futures"]] == [_text(one) for one in queued[:1:-1]]
    rest = client.get(f"/api/futures?newest=1&after={newest['after']}").json()
    assert [row["id"] for row in rest["futures"]] == [_text(one) for one in (queued[1], queued[0], failed, done)]
    assert [row["name"] for row in client.get("/api/futures?state=failed").json()["futures"]] == ["second"]
    assert [row["name"] for row in client.get("/api/futures?q=LUCK").json()["futures"]] == ["second"]
    assert [row["name"] for row in client.get(f"/api/futures?q={_text(done)}").json()["futures"]] == ["first done"]
    seen: list[str] = []
    after = ""
    while after is not None:
        page = client.get("/api/futures", params={"limit": 2, "after": after, "q": "queued"}).json()
        seen += [row["id"] for row in page["futures"]]
        after = page["after"]
    assert seen == [_text(one) for one in queued]


def test_a_search_answers_soon_and_goes_on_where_it_stopped(
    client: TestClient, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SCAN_SECONDS", 0.0)
    monkeypatch.setattr(reading, "_SCAN_PAGE", 10)
    needle = lab.submit(name="needle")
    for _ in range(400):
        lab.submit(name="hay")
    asked, after, found = 0, "", []
    while after is not None:
        page = client.get("/api/futures", params={"q": "needle", "newest": 1, "after": after}).json()
        asked, after, found = asked + 1, page["after"], found + page["futures"]
    assert [row["id"] for row in found] == [_text(needle)]
    assert asked > 3


def test_a_list_says_why_nobody_runs_a_future(client: TestClient, lab: Any) -> None:
    lab.submit(name="too large", requirements=dm.Requirements(gpu=8))
    (row,) = client.get("/api/futures").json()["futures"]
    assert row["reason"].startswith("unschedulable: needs")
    assert len(client.get("/api/futures?q=unschedulable").json()["futures"]) == 1


def test_a_future_with_its_failure_and_its_graph(client: TestClient, lab: Any) -> None:
    up = lab.submit(name="up")
    middle = lab.submit(name="middle", dependencies=(up,), args=b"x")
    down = lab.submit(name="down", dependencies=(middle,), args=b"x")
    found = client.get(f"/api/futures/{_text(middle)}").json()
    assert found["state"] == "waiting"
    assert found["waiting_on"] == [_text(up)]
    graph = client.get(f"/api/futures/{_text(middle)}/lineage").json()
    assert {(node["name"], node["level"]) for node in graph["nodes"]} == {("up", -1), ("middle", 0), ("down", 1)}
    assert sorted(graph["edges"]) == sorted([[_text(up), _text(middle)], [_text(middle), _text(down)]])
    assert graph["cut"] is False
    lab.fail(up, "out of luck")
    found = client.get(f"/api/futures/{_text(down)}").json()
    assert found["failure"]["reason"] == "upstream"
    assert found["failure"]["chain"][-1] == _text(up)
    assert found["failure"]["final"] is True


def test_what_a_task_printed_is_shown_by_attempt(client: TestClient, lab: Any) -> None:
    one = lab.submit(name="talks")
    lab(dm.write_output, one, dm.TaskOutput(1, b"caf\xc3\xa9 <b>\xff", 70_000))
    (shown,) = client.get(f"/api/futures/{_text(one)}").json()["output"]
    assert shown == {"attempt": 1, "text": "caf\u00e9 <b>\ufffd", "dropped": 70_000 - 10}


def test_many_that_are_alike_are_one_node_and_a_large_graph_is_cut(client: TestClient, lab: Any) -> None:
    root = lab.submit(name="root")
    parts = [lab.submit(name="part", dependencies=(root,), args=b"x") for _ in range(80)]
    lab.submit(name="total", dependencies=tuple(parts), args=b"x")
    graph = client.get(f"/api/futures/{_text(root)}/lineage").json()
    assert {(node["name"], node.get("count")) for node in graph["nodes"]} == {
        ("root", None),
        ("part", 80),
        ("total", None),
    }
    assert (len(graph["edges"]), graph["cut"]) == (2, False)
    own = client.get(f"/api/futures/{_text(parts[3])}/lineage").json()
    assert sorted(node["name"] for node in own["nodes"]) == ["part", "root", "total"]
    other = lab.submit(name="another root")
    for at in range(80):
        lab.submit(name=f"kind {at}", dependencies=(other,), args=b"x")
    graph = client.get(f"/api/futures/{_text(other)}/lineage").json()
    assert len(graph["nodes"]) == 60
    assert graph["cut"] is True


def test_waiting_for_arguments_is_told_from_waiting_for_a_worker(client: TestClient, lab: Any) -> None:
    up = lab.submit(name="up")
    down = lab.submit(name="down", dependencies=(up,), args=b"x")
    assert client.get(f"/api/futures/{_text(down)}").json()["ready"] is None
    lab.realize(up)
    found, above = (client.get(f"/api/futures/{_text(one)}").json() for one in (down, up))
    assert found["ready"] == above["ended"] >= found["submitted"]
    assert above["ready"] is None


def test_stored_pickles_are_never_loaded(client: TestClient, lab: Any, tmp_path: Any) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(trap), "w")

    one = lab.submit(args=pickle.dumps(Trap()), name="trap")
    lab.realize(one, pickle.dumps(Trap()))
    for path in ("futures", f"futures/{_text(one)}", f"futures/{_text(one)}/lineage", "overview", "workers", "ids"):
        assert client.get(f"/api/{path}").status_code == 200
    assert not trap.exists()


def test_workers_leases_heap_and_ids(client: TestClient, lab: Any) -> None:
    (worker,) = client.get("/api/workers").json()["workers"]
    assert (worker["address"], worker["slots"], worker["cpu"], worker["ram"]) == ("127.0.0.1:7000", 2, 2.0, 4 << 30)
    assert client.get("/api/leases").json() == {"leases": [], "after": None}
    with LeaseManager(lab.db, "demo") as locks, locks.acquire("deploy/a b", meta={"why": "test"}):
        (lease,) = client.get("/api/leases?prefix=deploy/").json()["leases"]
        assert lease["meta"] == {"why": "test"}
        assert client.get("/api/leases?prefix=x").json() == {"leases": [], "after": None}
        shown = client.get("/api/leases/deploy%2Fa%20b").json()
        assert shown["held"]["token"] == lease["token"]
        assert shown["events"][0]["kind"] == "acquired"
    assert client.get("/api/leases/deploy%2Fa%20b").json()["held"] is None
    assert client.get("/api/leases/never").status_code == 404
    assert client.get("/api/heap").json() == {"present": False}
    assert client.get("/api/ids").json()["stores"]


def test_the_heap_with_its_next_tasks_and_buckets(cluster: Cluster, lab: Any, tmp_path: Any) -> None:
    from mainspring_dashboard.heap import HeapView
    from s3heap_tender import Heap, HeapStore, SysDb

    store = f"file:{tmp_path}/heap"
    with SysDb(lab.db, "demo") as sysdb, HeapStore(store) as opened, Heap(opened, sysdb) as heap:
        task = sysdb.create_task(uuid4(), "reindex", cadence=60.0)
        heap.push(task)
    view = HeapView(cluster.db, "demo", store, None)
    with TestClient(create_app(cluster, heap=view), base_url="http://localhost") as client:
        found = client.get("/api/heap").json()
    view.close()
    assert [one["name"] for one in found["next"]] == ["reindex"]
    assert found["next"][0]["cadence"] == 60.0
    assert sum(one["items"] for one in found["buckets"]) == 1
    assert found["lag"]["active"] == 1


def test_a_mistyped_path_is_an_error_and_makes_no_database(tmp_path: Any) -> None:
    with pytest.raises(DatabaseUnreachableError, match="there is no database at"):
        Cluster(f"embedded:{tmp_path}/typo", "demo")
    assert not (tmp_path / "typo").exists()


def test_a_store_that_hangs_keeps_the_rest_of_the_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainspring_dashboard import heap

    monkeypatch.setattr(heap, "PATIENCE_SECONDS", 0.1)
    asked, answered = threading.Event(), threading.Event()
    view = heap.HeapView(cluster.db, "demo", None, None)

    def hanging() -> None:
        asked.set()
        assert answered.wait(60)

    monkeypatch.setattr(view, "_open", hanging)
    with TestClient(create_app(cluster, heap=view), base_url="http://localhost") as client:
        first = threading.Thread(target=client.get, args=("/api/heap",))
        first.start()
        try:
            assert asked.wait(60)
            refused = client.get("/api/heap")
            assert refused.status_code == 503
            assert "try again later" in refused.json()["error"]
            assert client.get("/api/workers").status_code == 200
        finally:
            answered.set()
            first.join(60)
        assert client.get("/api/heap").json() == {"present": False}
    view.close()


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/futures?state=lost", 400, "use one of waiting"),
        ("/api/futures?limit=0", 400, "from 1 to 500"),
        ("/api/futures?limit=nan", 400, "from 1 to 500"),
        ("/api/futures?after=zzz", 400, "no id of a future"),
        ("/api/futures/zzz", 400, "no id of a future"),
        ("/api/futures/01a20374-ee72-7000-96ab-e9313536b2fd", 404, "has no future"),
        (f"/api/leases/{'n' * 20_000}", 400, "lease name"),
        ("/api/nothing", 404, "Not Found"),
        ("/static/../app.py", 404, "Not Found"),
        ("/static/%2e%2e/app.py", 404, "Not Found"),
    ],
)
def test_bad_input_is_answered_with_what_to_do(client: TestClient, path: str, status: int, says: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert says in answer.json()["error"]


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    assert getattr(client, method)("/api/futures").status_code == 405


def test_the_stream_brings_samples_and_ends_with_the_application(cluster: Cluster, lab: Any) -> None:
    lab.submit()
    app = create_app(cluster, interval=0.01)
    with TestClient(app, base_url="http://localhost") as client:
        deadline = 500
        while (sample := client.get("/api/overview").json()["sample"]) is None and deadline:
            deadline -= 1
        assert sample["counts"]["unclaimed"] == 1
        live = app.state.live

        async def first() -> bytes:
            from mainspring_dashboard.api import _events

            async for event in _events(live):
                return event
            raise AssertionError("no event")

        event = client.portal.call(first)  # type: ignore[union-attr]
        assert json.loads(event.removeprefix(b"data: "))["cluster"] == "demo"
    assert live.closing


def test_only_so_many_streams_are_open_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring_dashboard.api.MOST_STREAMS", 0)
    answer = client.get("/api/stream")
    assert (answer.status_code, answer.json()["error"][:23]) == (503, "0 pages are open alread")


def test_a_database_that_fails_is_said_and_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from fdb_schema import DatabaseUnreachableError

    def broken() -> list[Any]:
        raise DatabaseUnreachableError("the disk is gone")

    with TestClient(create_app(cluster, interval=0.01), base_url="http://localhost") as client:
        monkeypatch.setattr(cluster, "workers", broken)
        assert client.get("/api/workers").status_code == 503
        while client.get("/healthz").status_code == 200:
            pass
        assert client.get("/api/overview").json()["problem"] == "the disk is gone"
        monkeypatch.undo()
        while client.get("/healthz").status_code != 200:
            pass
        assert client.get("/api/overview").json()["problem"] is None


# --- acting


HEADERS = {"authorization": f"Bearer {TOKEN}", "x-mainspring-action": "1"}


@pytest.fixture
def acting(cluster: Cluster) -> Iterator[TestClient]:
    app = create_app(cluster, token=TOKEN, actions=True, interval=0.01)
    with TestClient(app, base_url="http://10.0.0.7", headers=HEADERS) as found:
        yield found


def test_futures_are_cancelled_and_retried(acting: TestClient, lab: Any) -> None:
    waits, failed = lab.submit(), lab.submit()
    lab.fail(failed, "no")
    assert acting.get("/api/overview").json()["actions"] is True
    for done in (True, False):  # it is cancelled once
        answer = acting.post(f"/api/futures/{_text(waits)}", json={"action": "cancel"})
        assert answer.json() == {"done": done, "state": "failed"}
    for done in (True, False):
        answer = acting.post(f"/api/futures/{_text(failed)}", json={"action": "retry"})
        assert answer.json() == {"done": done, "state": "unclaimed"}
    assert acting.post(f"/api/futures/{uuid4()}", json={"action": "cancel"}).status_code == 404
    lab(dm.delete_future, waits)
    assert acting.post(f"/api/futures/{_text(waits)}", json={"action": "retry"}).status_code == 409


def test_a_lease_is_released_and_its_history_says_by_whom(acting: TestClient, lab: Any) -> None:
    with LeaseManager(lab.db, "demo") as locks:
        locks.acquire("a/b c")
        answer = acting.post("/api/leases/a%2Fb%20c", json={"action": "release", "reason": "it hangs"})
        assert answer.json() == {"done": True}
        found = acting.get("/api/leases/a%2Fb%20c").json()
        assert found["held"] is None
        assert "it hangs" in found["events"][0]["why"]
        assert acting.post("/api/leases/a%2Fb%20c", json={"action": "release"}).json() == {"done": False}


def test_tasks_of_the_heap_are_listed_told_and_paused(acting: TestClient, lab: Any) -> None:
    from s3heap_tender import SysDb

    assert acting.get("/api/heap/tasks").json() == {"tasks": [], "after": None}
    assert acting.post(f"/api/heap/tasks/{uuid4()}", json={"action": "pause"}).status_code == 404
    with SysDb(lab.db, "demo") as sysdb:
        made = [sysdb.create_task(uuid4(), f"reindex {at}", cadence=60.0) for at in range(5)]
    pages, after = [], ""
    while after is not None:
        page = acting.get("/api/heap/tasks", params={"limit": 2, "after": after}).json()
        pages += [one["id"] for one in page["tasks"]]
        after = page["after"]
    assert pages == sorted(str(one.id) for one in made)
    (found,) = acting.get("/api/heap/tasks?q=REINDEX 3").json()["tasks"]
    path = f"/api/heap/tasks/{found['id']}"
    assert acting.get(path).json()["cadence"] == 60.0
    assert acting.post(path, json={"action": "pause"}).json()["task"]["paused"] is True
    assert "it is paused: resume it to run again" in acting.get(path).json()["reasons"]
    assert acting.post(path, json={"action": "resume"}).json()["task"]["paused"] is False
    assert acting.post(path, json={"action": "run"}).json()["done"] is True
    assert acting.get(f"/api/heap/tasks/{uuid4()}").status_code == 404


@pytest.mark.parametrize(
    ("headers", "body", "status", "says"),
    [
        ({"x-mainspring-action": ""}, b'{"action": "cancel"}', 200, ""),  # it is there, whatever it says
        ({"origin": "http://10.0.0.7"}, b'{"action": "cancel"}', 200, ""),
        ({"origin": "http://10.0.0.7:8421"}, b'{"action": "cancel"}', 403, "may not act here"),
        ({"origin": "null"}, b'{"action": "cancel"}', 403, "may not act here"),
        ({"origin": "http://evil.example"}, b'{"action": "cancel"}', 403, "may not act here"),
        ({}, b'{"action": "explode"}', 400, "use one of cancel, retry"),
        ({"origin": "http://[10.0.0.7"}, b'{"action": "cancel"}', 403, "may not act here"),
        ({}, b"[]", 400, "JSON object"),
        ({}, b"[" * 4_096, 400, "JSON object"),
        ({}, b"x" * 5_000, 413, "4096 bytes"),
    ],
)
def test_only_this_page_acts(
    acting: TestClient, lab: Any, headers: dict[str, str], body: bytes, status: int, says: str
) -> None:
    one = lab.submit()
    answer = acting.post(f"/api/futures/{_text(one)}", content=body, headers=headers)
    assert (answer.status_code, says in answer.text) == (status, True)
    assert lab(dm.get_future_state, one).value == ("failed" if status == 200 else "unclaimed")


def test_nothing_acts_without_the_header_the_token_or_the_option(cluster: Cluster, lab: Any) -> None:
    one = lab.submit()
    path, body = f"/api/futures/{_text(one)}", {"action": "cancel"}
    header, bearer = ({name: HEADERS[name]} for name in ("x-mainspring-action", "authorization"))
    for token, actions, headers, status in (
        (TOKEN, True, bearer, 403),
        (TOKEN, True, header, 401),
        (TOKEN, False, HEADERS, 403),
        (None, True, HEADERS, 403),
    ):
        app = create_app(cluster, token=token, actions=actions)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.post(path, json=body, headers=headers).status_code == status
            assert client.get("/api/overview", headers=bearer).json()["actions"] is (token is not None and actions)
    assert lab(dm.get_future_state, one).value == "unclaimed"


# --- who is let in


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost", "[::1]:8420"])
def test_loopback_names_need_no_token(cluster: Cluster, host: str) -> None:
    with TestClient(create_app(cluster), base_url="http://127.0.0.1") as client:
        assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7:8420", "", "[::2]"])
def test_another_name_that_points_here_is_refused_without_a_token(cluster: Cluster, host: str) -> None:
    with TestClient(create_app(cluster), base_url="http://127.0.0.1") as client:
        assert client.get("/api/futures", headers={"host": host}).status_code == 403


def test_a_token_is_asked_for_on_every_path(cluster: Cluster) -> None:
    with TestClient(create_app(cluster, token=TOKEN), base_url="http://10.0.0.7") as client:
        for path in ("/", "/api/futures", "/api/stream", "/static/main.js", "/healthz", "/nothing"):
            answer = client.get(path)
            assert answer.status_code == 401
            assert TOKEN not in answer.text
        assert client.get("/", params={"token": "wrong"}).status_code == 401
        assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/", headers={"cookie": "mainspring_token_80=wrong"}).status_code == 401
        assert client.get("/api/futures", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(cluster: Cluster) -> None:
    with TestClient(create_app(cluster, token=TOKEN), base_url="http://10.0.0.7") as client:
        answer = client.get(f"/futures?state=failed&token={TOKEN}&q=a+b", follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/futures?state=failed&q=a+b"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/api/futures").status_code == 200


def test_the_redirect_never_leaves_this_host(cluster: Cluster) -> None:
    with TestClient(create_app(cluster, token=TOKEN), base_url="http://10.0.0.7") as client:
        answer = client.get(f"http://10.0.0.7//evil.example/?token={TOKEN}", follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/evil.example/"


def test_what_went_wrong_is_grouped_among_the_newest(
    client: TestClient, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed, "STALE_SECONDS", 0.0)
    nothing = client.get("/api/attention").json()
    assert nothing == {
        "findings": [],
        "examined": True,
        "groups": [],
        "more": 0,
        "followers": 0,
        "looked": 0,
        "all": True,
    }
    for at in range(4):
        lab.fail(lab.submit(name=f"kind {at % 2}"), f"message {at}")
    last = lab.submit(name="too big", requirements=dm.Requirements(gpu=8))
    lab.fail(lab.submit(name="kind 0"), "message 4")
    lab(dm.cancel_future, lab.submit(name="kind 2"))
    stuck, *failed = client.get("/api/attention").json()["groups"]
    assert [(one["name"], one["what"], one["count"], one["message"]) for one in failed] == [
        ("kind 0", "error", 3, "message 4"),
        ("kind 1", "error", 2, "message 3"),
    ], "the newest first, and without those that were cancelled"
    assert (stuck["kind"], stuck["what"], stuck["id"]) == ("stuck", "unschedulable", _text(last)), (
        "what waits in vain still does"
    )
    assert "needs" in stuck["message"] and "gpu=8" in stuck["message"]
    monkeypatch.setattr(survey, "GROUPS", 1)
    monkeypatch.setattr(survey, "NEWEST", 2)
    monkeypatch.setattr(survey, "PAGE", 1)
    cut = client.get("/api/attention").json()
    assert (len(cut["groups"]), cut["looked"], cut["all"]) == (1, 2, False)
    assert cut["more"] in (0, 1), "those that failed last are told as soon as they were counted"


def test_what_doctor_finds_is_told_problems_first(cluster: Cluster, lab: Any) -> None:
    doctor = Doctor(cluster.db, "demo", watch=0.01)
    with TestClient(create_app(cluster, doctor=doctor), base_url="http://localhost") as client:
        while not (found := client.get("/api/attention").json())["examined"]:
            pass
    found = found["findings"]
    assert [one["level"] for one in found] == sorted(one["level"] for one in found)
    (silent,) = [one for one in found if one["check"] == "workers"]
    assert silent["level"] == "problem" and "127.0.0.1:7000" in silent["what"] and silent["do"]
    assert "janitor" in {one["check"] for one in found if one["level"] == "warning"}


def test_what_doctor_finds_while_it_is_stopped_counts_for_nothing(cluster: Cluster) -> None:
    doctor = Doctor(cluster.db, "demo", watch=60)
    doctor.start()
    doctor.stop()
    assert doctor.findings == []


def test_a_look_ends_in_time_however_many_futures_were_deleted(
    client: TestClient, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "PAGE", 1)
    _, *others = [lab.submit(name="part") for _ in range(100)]
    for one in others:
        lab(dm.delete_future, one)
    monkeypatch.setattr(renewed, "STALE_SECONDS", 0.0)
    found = client.get("/api/attention").json()
    assert (found["looked"], found["all"]) == (1, True)
    monkeypatch.setattr(survey, "BUDGET_SECONDS", 0.0)
    found = client.get("/api/attention").json()
    assert (found["looked"], found["all"]) == (0, False)


def _functions(client: TestClient, done: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
    while True:
        found = {one["name"]: one for one in client.get("/api/functions").json()["functions"]}
        if done(found):
            return found


def test_how_far_each_function_is(client: TestClient, lab: Any) -> None:
    parts = [lab.submit(name="part") for _ in range(5)]
    for one in parts[:2]:
        lab.realize(one)
    lab.fail(parts[2], "no")
    lab(dm.claim_future, parts[3], lab.worker)
    total = lab.submit(name="total", dependencies=(parts[4],), args=b"x")
    found = _functions(client, lambda seen: "total" in seen and seen["part"]["counts"]["claimed"] == 1)
    assert list(found) == ["total", "part"], "the one used last first"
    assert (found["total"]["id"], found["total"]["median"], found["total"]["left"]) == (_text(total), None, None)
    part = found["part"]
    assert part["counts"] == {"waiting": 0, "unclaimed": 1, "claimed": 1, "realized": 2, "failed": 1}
    assert 0 <= part["median"] <= part["slowest"]
    assert part["rate"] == 3 / 60 and part["left"] == 40
    for one in parts[:2]:
        lab(dm.delete_future, one)
    _functions(client, lambda seen: seen["part"]["counts"]["realized"] == 0)


def test_the_timeline_has_what_ended_and_what_runs(client: TestClient, lab: Any) -> None:
    done, failed, running = (lab.submit(name=name) for name in ("done", "failed", "running"))
    lab.realize(done)
    lab.fail(failed, "no")
    lab(dm.claim_future, running, lab.worker)
    while True:
        found = client.get("/api/timeline").json()
        if len(found["ended"]) == 2 and found["running"]:
            break
    (still,) = found["running"]
    assert (still[0], still[1], still[2], still[4], still[5]) == (
        _text(running), "running", "127.0.0.1:7000", None, "claimed",
    )  # fmt: skip
    assert {(row[1], row[2], row[5]) for row in found["ended"]} == {
        ("done", "127.0.0.1:7000", "realized"),
        ("failed", "127.0.0.1:7000", "failed"),
    }
    assert all(row[3] <= row[4] <= found["now"] for row in found["ended"])
    assert found["workers"] == [{"address": "127.0.0.1:7000", "slots": 2}]
    assert client.get(f"/api/timeline?after={found['next']}").json()["ended"] == []
    assert len(client.get(f"/api/timeline?after={found['next'] - 1}").json()["ended"]) == 1
    assert len(client.get("/api/timeline?after=99999").json()["ended"]) == 2, "of another start of the dashboard"


def test_a_worker_with_its_load_and_its_tasks(client: TestClient, lab: Any) -> None:
    done, running = lab.submit(name="done"), lab.submit(name="running")
    lab.realize(done)
    lab(dm.claim_future, running, lab.worker)
    lab(dm.heartbeat, lab.worker, dm.Heartbeat(2, slots=2, free_slots=1, cpu_used=1.5, memory_used=3 << 20))
    while True:
        answer = client.get("/api/workers/127.0.0.1:7000")
        if answer.status_code == 200:
            found = answer.json()
            if found["running"] and found["ended"] and found["history"][-1]["cpu"] is not None:
                break
    assert (found["worker"]["cpu_used"], found["worker"]["memory_used"]) == (1.5, 3 << 20)
    assert {name: found["history"][-1][name] for name in ("cpu", "memory", "busy", "slots")} == {
        "cpu": 1.5, "memory": 3 << 20, "busy": 1, "slots": 2,
    }  # fmt: skip
    assert (found["running"][0][1], found["ended"][0][1]) == ("running", "done")
    assert client.get("/api/workers/10.0.0.1:7").status_code == 404


def test_a_failure_is_told_also_where_many_newer_futures_wait(
    client: TestClient, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed, "STALE_SECONDS", 0.0)
    monkeypatch.setattr(survey, "NEWEST", 10)
    monkeypatch.setattr(survey, "PAGE", 10)
    lab.fail(lab.submit(name="old"), "no")
    for _ in range(50):
        lab.submit(name="new")
    while not (groups := client.get("/api/attention").json()["groups"]):
        pass
    assert [(one["name"], one["count"]) for one in groups] == [("old", 1)]


def test_many_who_ask_at_once_are_one_look(client: TestClient, lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = survey.list_futures
    monkeypatch.setattr(survey, "list_futures", lambda *args, **options: (looks.append(1), real(*args, **options))[1])
    lab.submit(name="one")
    asked = [client.get("/api/attention").json()["looked"] for _ in range(20)]
    assert asked == [1] * 20
    assert len(looks) == 1
