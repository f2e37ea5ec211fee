"""Programs on real workers: they survive what runs them, hold nothing while they wait, and do each thing once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import futures_worker as fw
from fdb_schema import open_database
from futures_worker import NondeterministicProgram, durable, step
from futures_worker.cli import main
from idempotent_txn import run

WAIT = 60.0
LOST = {"max_worker_losses": 100, "max_retries": 100}


def noted(path: str, text: str) -> str:
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return text


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def square(number: int) -> int:
    return number * number


def deposit(tr: Any, key: bytes, amount: int) -> int:
    found = tr.get(key).value
    total = (0 if found is None else int(found)) + amount
    tr.set(key, b"%d" % total)
    return total


def raise_it(text: str) -> None:
    raise LookupError(text)


@durable
def order(path: str, count: int) -> dict[str, Any]:
    client = fw.current_client()
    step(noted, path, "begun")
    fw.publish("stage", "counting")
    total = sum(client.gather(client.map(square, range(count)), progress=False))
    drawn = fw.random(), fw.now()
    step(noted, path, "counted")
    paid = fw.wait_for_event("paid")
    total = step(deposit, b"account", total, tr=True)
    fw.sleep(0.6)
    assert (fw.random(), fw.now()) != drawn
    step(noted, path, "paid")
    fw.publish("stage", "done")
    return {"total": total, "paid": paid, "drawn": drawn}


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it didn't come true")


def test_a_program_outlives_its_client_and_every_worker_that_runs_it(cluster: Any, tmp_path: Path) -> None:
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    demo = cluster(workers=1, slots=2, env={"PYTHONPATH": here})
    path = tmp_path / "log"
    # The process that asks for it is gone before it has done anything.
    script = (
        "import sys; from futures_worker import Client; from test_programs import order, LOST\n"
        "with Client(sys.argv[1], sys.argv[2]) as client: print(client.submit(order, sys.argv[3], 30, **LOST).id, flush=True)"
    )
    arguments = [sys.executable, "-c", script, demo.url, demo.name, str(path)]
    environment = {**os.environ, "PYTHONPATH": here}
    found = subprocess.run(
        arguments, check=True, capture_output=True, text=True, timeout=WAIT, env=environment
    ).stdout.strip()
    client = demo.client()
    program = client.get_future(found)
    until(lambda: "counted" in lines(path))
    demo.workers[-1].kill()
    demo.start("--slots", "2", env={"PYTHONPATH": here})
    until(lambda: "event 'paid'" in program.state().reason)
    assert program.published() == {"stage": "counting"}
    program.send("paid", "cash")
    db = open_database(demo.url)
    until(lambda: run(db, lambda tr: tr.get(b"account").present()))
    demo.workers[-1].kill()
    demo.start("--slots", "2", env={"PYTHONPATH": here})
    result = program.result(timeout=WAIT)
    assert (result["total"], result["paid"]) == (sum(n * n for n in range(30)), "cash")
    assert lines(path) == ["begun", "counted", "paid"], "each step once"
    assert int(run(db, lambda tr: tr.get(b"account").value)) == result["total"], "exactly once"
    assert program.published("stage") == "done"
    demo.check()


def test_one_that_waits_holds_no_slot_and_no_process(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    programs = [client.submit(listen, name, durable=True) for name in ("a", "b", "c")]
    until(lambda: all("event" in program.state().reason for program in programs))
    assert client.submit(square, 3).result(timeout=WAIT) == 9, "the only slot is free"
    for program in programs:
        program.send("go", 1)
        program.send("go", 2)
    assert [program.result(timeout=WAIT) for program in programs] == [("a", 1, 2), ("b", 1, 2), ("c", 1, 2)]
    with pytest.raises(fw.MainspringError, match="has ended"):
        programs[0].send("go")
    demo.check()


def listen(name: str) -> tuple[str, int, int]:
    return name, fw.wait_for_event("go"), fw.wait_for_event("go")


def test_a_killed_process_costs_a_program_one_attempt_and_no_request(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=1)
    path = tmp_path / "log"
    program = demo.client().submit(suicidal, str(path), 5, durable=True)
    assert program.result(timeout=WAIT) == list(range(5)), "no budget is used up by deaths that come further"
    assert lines(path) == [f"{n}" for n in range(5)]
    demo.check()


def suicidal(path: str, count: int) -> list[int]:
    found = []
    for number in range(count):
        found.append(int(step(noted, path, f"{number}")))
        if step_is_new(path, number):
            os.kill(os.getpid(), signal.SIGKILL)
    return found


def step_is_new(path: str, number: int) -> bool:
    mark = Path(f"{path}-{number}")
    new = not mark.exists()
    mark.touch()
    return new


def test_one_that_dies_at_the_same_place_again_and_again_fails(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(dies, durable=True, max_retries=1)
    with pytest.raises(fw.FutureFailedError, match="died"):
        program.result(timeout=WAIT)


def dies() -> None:
    step(square, 2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_it_raises_ends_it_and_what_its_steps_raise_is_recorded(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(careless, str(tmp_path / "log"), durable=True)
    with pytest.raises(LookupError, match="no more") as caught:
        program.result(timeout=WAIT)
    assert "futures_worker" not in str(caught.value.__cause__), "the traceback is of the program's own frames"
    assert lines(tmp_path / "log") == ["caught:not", "here"], "one attempt"


def careless(path: str) -> None:
    try:
        step(raise_it, "not here")
    except LookupError as error:
        step(noted, path, f"caught:{error.args[0]}")
    raise LookupError("no more")


def test_a_step_is_tried_as_often_as_it_says(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    assert client.submit(retrying, str(tmp_path / "log"), durable=True).result(timeout=WAIT) == "third"
    assert lines(tmp_path / "log") == ["try"] * 3


def retrying(path: str) -> str:
    return step(third_time, path, retries=5, backoff=0.01)


def third_time(path: str) -> str:
    noted(path, "try")
    if len(lines(Path(path))) < 3:
        raise OSError("not yet")
    return "third"


def test_a_step_that_has_no_memory_has_another_attempt(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(cramped, str(tmp_path / "log"), durable=True)
    assert program.result(timeout=WAIT) == "fits"
    assert lines(tmp_path / "log") == ["before"]


def cramped(path: str) -> str:
    step(noted, path, "before")
    return step(fits, path)


def fits(path: str) -> str:
    if step_is_new(path, 0):
        raise MemoryError("just now")
    return "fits"


def test_another_request_in_the_same_place_is_refused(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(fickle, str(tmp_path / "mark"), durable=True)
    with pytest.raises(
        NondeterministicProgram, match=r"step 'square' as its request 0, where it asked for step 'deposit|now"
    ):
        program.result(timeout=WAIT)


def fickle(mark: str) -> None:
    if step_is_new(mark, 0):
        fw.now()
        fw.sleep(0.6)
    step(square, 3)


def test_changed_code_is_for_programs_that_have_not_been_there(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    mark = tmp_path / "deployed"
    old = client.submit(changing, str(mark), durable=True)
    until(lambda: "event" in old.state().reason)
    mark.touch()
    new = client.submit(changing, str(mark), durable=True)
    for program in (old, new):
        program.send("go")
    assert old.result(timeout=WAIT) == ("old", True)
    assert new.result(timeout=WAIT) == ("new", True)


def changing(mark: str) -> tuple[str, bool]:
    deployed = os.path.exists(mark)  # as another version of the code would be
    how = "new" if deployed and fw.patched("vat") else "old"
    step(square, 2)
    fw.wait_for_event("go")
    return how, fw.patched("later")


def test_large_values_of_steps_and_arguments(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    sizes = client.submit(heavy, 300_000, durable=True).result(timeout=WAIT)
    assert sizes == (300_000, 300_000, 400_000, 3_000_000)


def heavy(size: int) -> tuple[int, int, int, int]:
    client = fw.current_client()
    made = step(bytes, size)
    fw.sleep(0.6)
    large = client.put(bytes(400_000))
    larger = client.submit(len, bytes(3_000_000))
    return len(made), client.submit(len, made).result(), client.submit(len, large).result(), larger.result()


def test_waits_with_an_end_find_the_same_whenever_they_are_made(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=2).client()
    gate = tmp_path / "gate"
    program = client.submit(impatient, str(gate), durable=True)
    until(lambda: program.published("seen") is not None)
    gate.touch()
    first, second, order = program.result(timeout=WAIT)
    assert (first, second) == ("timed out", "ended")
    assert sorted(order) == [0, 1]
    with pytest.raises(TimeoutError, match="no event 'never'"):
        client.submit(deaf, durable=True).result(timeout=WAIT)


def impatient(gate: str) -> tuple[str, str, list[int]]:
    client = fw.current_client()
    slow = client.submit(waits_for, gate)
    try:
        slow.result(timeout=0.7)
        seen = "ended"
    except TimeoutError:
        seen = "timed out"
    fw.publish("seen", seen)
    order = []
    for future in fw.as_completed([client.submit(square, 0), slow]):
        order.append(future.result())
    return seen, "ended" if slow in fw.wait([slow]).done else "timed out", order


def waits_for(gate: str) -> int:
    end = time.monotonic() + WAIT
    while not os.path.exists(gate) and time.monotonic() < end:
        time.sleep(0.01)
    return 1


def deaf() -> None:
    fw.wait_for_event("never", timeout=0.1)


def test_a_program_asks_for_programs_and_is_cancelled_with_them(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    outer = client.submit(nested, 3, durable=True)
    assert outer.result(timeout=WAIT) == [3, 2, 1, 0]
    stuck = client.submit(nested, -1, durable=True)
    until(lambda: "waiting on 1 future" in stuck.state().reason)
    assert stuck.cancel()
    with pytest.raises(CancelledError):
        stuck.result(timeout=WAIT)
    until(lambda: not [one for one in client.futures(state="waiting") if "nested" in one.name])
    demo.check()


def nested(depth: int) -> list[int]:
    if depth == 0:
        return [0]
    if depth < 0:
        depth = -depth
        fw.wait_for_event("never") if depth > 1 else None
        return fw.current_client().submit(nested, -2, durable=True).result()
    return [depth, *fw.current_client().submit(nested, depth - 1, durable=True).result()]


def test_a_program_gives_away_its_id_and_is_answered(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    program = client.submit(asks, durable=True)
    assert program.result(timeout=WAIT) == str(program.id)
    with pytest.raises(fw.MainspringError, match="is of a task"):
        fw.current_future_id()


def asks() -> str:
    fw.current_client().submit(answers, str(fw.current_future_id()))
    return str(fw.wait_for_event("answer"))


def answers(program: str) -> None:
    fw.current_client().get_future(program).send("answer", program)


class Counter:
    def add(self) -> int:
        return 1


def test_what_a_program_cannot_be_asked_for_is_said(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    with pytest.raises(fw.MainspringError, match=r"an actor that is made inside of program .* do it in a step"):
        client.submit(lambda: fw.current_client().actor(Counter), durable=True).result(timeout=WAIT)
    with pytest.raises(ValueError, match="retry_on is of tasks"):
        client.submit(square, 2, durable=True, retry_on=OSError)
    with pytest.raises(TypeError, match="is a generator"):
        client.submit(yields, durable=True)
    with pytest.raises(fw.MainspringError, match="durable=True"):
        client.submit(square, 2).send("paid")
    with pytest.raises(ValueError, match="an event has a name"):
        client.submit(listen, "x", durable=True).send("")
    with pytest.raises(TypeError, match="tr of a step is True"):
        step(square, 2, tr=client)
    with pytest.raises(ValueError, match="retries is a whole number"):
        step(square, 2, retries=-1)
    with pytest.raises(fw.MainspringError, match="is asked for by a program"):
        fw.wait_for_event("paid")


def yields() -> Any:
    yield 1


@pytest.mark.parametrize("where", ["event", "sleep", "child", "steps"])
def test_one_that_is_cancelled_undoes_what_it_did(shared_cluster: Any, tmp_path: Path, where: str) -> None:
    demo = shared_cluster(workers=1, slots=2)
    path = tmp_path / "log"
    program = demo.client().submit(booking, str(path), where, durable=True)
    until(lambda: "booked" in lines(path))
    assert program.cancel() is True
    assert lines(path) == ["booked", "undone"], "once each"
    with pytest.raises(CancelledError):
        program.result(timeout=WAIT)
    assert program.cancel() is True
    demo.check()


def booking(path: str, where: str) -> None:
    step(noted, path, "booked")
    try:
        if where == "event":
            fw.wait_for_event("never")
        elif where == "sleep":
            fw.sleep(days=30)
        elif where == "child":
            fw.current_client().submit(listen, "x", durable=True).result()
        else:
            for number in range(100_000):
                step(time.sleep, 0.01 * (number > 0))
    except CancelledError:
        fw.sleep(0.6)  # it may leave while it undoes
        step(noted, path, "undone")
        raise


def test_one_that_takes_too_long_to_end_is_stopped(shared_cluster: Any) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    stubborn = client.submit(ignores, durable=True)
    until(lambda: stubborn.published("here"))
    assert stubborn.cancel(grace=0.5) is True
    late = client.submit(ignores, durable=True)
    until(lambda: late.published("here"))
    assert late.cancel(grace=0) is True, "at once"
    fresh = client.submit(ignores, durable=True, after=60)
    assert fresh.cancel() is True, "it never began"
    assert client.submit(square, 2).result(timeout=WAIT) == 4
    demo.check()


def ignores() -> None:
    while True:
        with contextlib.suppress(CancelledError):
            fw.publish("here", True)
            step(time.sleep, 0.05)


def test_one_that_takes_its_cancel_for_no_reason_to_end_goes_on(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(undaunted, durable=True)
    until(lambda: "event" in program.state().reason)
    assert program.cancel() is False
    assert program.result(timeout=WAIT) == "went on"


def undaunted() -> str:
    with contextlib.suppress(CancelledError):
        fw.wait_for_event("never")
    return step(str, "went on")


def test_outside_of_a_program_each_does_the_plain_thing() -> None:
    assert step(square, 3, retries=2) == 9
    assert square.__name__ == "square"
    assert fw.patched("vat") is True
    assert 0 <= fw.random() < 1
    assert abs(fw.now() - time.time()) < 60
    fw.sleep(0.0)
    assert durable(sleeper) is sleeper
    with pytest.raises(ValueError, match="sleep takes"):
        fw.sleep(-1)


def test_many_programs_sleep_and_come_back(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=2).client()
    programs = [client.submit(sleeper, number, durable=True) for number in range(50)]
    assert [future.result(timeout=WAIT) for future in programs] == list(range(50))


def sleeper(number: int) -> int:
    fw.sleep(1.0)
    return number


def command(*arguments: str) -> SimpleNamespace:
    """Runs `futures-worker programs …` inside this process: a new one would mostly import."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv, code = sys.argv, ["futures-worker", "programs", *arguments], 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_people_see_programs_send_to_them_and_let_them_go_on(shared_cluster: Any, tmp_path: Path) -> None:
    demo = shared_cluster(workers=1, slots=1)
    client = demo.client()
    where = ("--db", demo.url, "--cluster", demo.name)
    program = client.submit(clerk, str(tmp_path / "mended"), durable=True)
    until(lambda: "event 'paid'" in program.state().reason)
    (row,) = [one for one in json.loads(command("ls", *where, "--json").stdout) if one["id"] == str(program.id)]
    assert (row["state"], "event 'paid'" in row["reason"]) == ("waiting", True)
    assert command("send", str(program.id), "paid", "{", *where).returncode == 2, "no JSON"
    assert command("send", str(program.id), "paid", '{"by": "card"}', *where).returncode == 0
    with pytest.raises(OSError, match="not mended"):
        program.result(timeout=WAIT)
    assert command("send", str(program.id), "paid", *where).returncode == 1, "it has ended"
    (tmp_path / "mended").touch()
    resumed = command("resume", str(program.id), *where, "--json")
    assert json.loads(resumed.stdout) == {"id": str(program.id), "done": "resumed"}
    assert client.get_future(program.id).result(timeout=WAIT) == {"by": "card"}
    refused = command("resume", str(program.id), *where)
    assert refused.returncode == 1 and "only what failed is resumed" in refused.stderr
    shown = json.loads(command("show", str(program.id), *where, "--json").stdout)
    asked = [(one["kind"], one["name"], one["outcome"]) for one in shown["requests"]]
    assert asked == [("publish", "stage", "done"), ("event", "paid", "taken"), ("step", "needs", "done")]
    assert list(shown["published"]) == ["stage"]
    assert "taken" in command("show", str(program.id), *where).stdout
    plain = command("show", str(client.submit(square, 2).id), *where)
    assert plain.returncode == 1 and "is no program" in plain.stderr
    doomed = client.submit(listen, "x", durable=True)
    assert command("cancel", str(doomed.id), "--grace", "0", *where).returncode == 0
    assert command("resume", str(doomed.id), *where).returncode == 0, "also what was cancelled at once"
    for value in ("1", "2"):
        assert command("send", str(doomed.id), "go", value, *where).returncode == 0
    assert demo.client().get_future(doomed.id).result(timeout=WAIT) == ("x", 1, 2)
    assert command("cancel", str(program.id), *where).returncode == 1
    told = client.submit(listen, "y", durable=True)
    until(lambda: "event" in told.state().reason)
    assert command("cancel", str(told.id), *where).returncode == 0
    refused = command("resume", str(told.id), *where)
    assert refused.returncode == 1 and "submit it anew" in refused.stderr
    demo.check()


def test_a_program_that_is_retried_goes_on_from_where_it_was(shared_cluster: Any, tmp_path: Path) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    program = client.submit(mended, str(tmp_path / "mended"), str(tmp_path / "log"), durable=True)
    with pytest.raises(OSError, match="not mended"):
        program.result(timeout=WAIT)
    (tmp_path / "mended").touch()
    assert client.retry(program)
    assert client.get_future(program.id).result(timeout=WAIT) == "begun"
    assert lines(tmp_path / "log") == ["begun"]


def mended(path: str, log: str) -> str:
    begun = step(noted, log, "begun")
    step(needs, path)
    return begun


def clerk(path: str) -> Any:
    fw.publish("stage", "waiting")
    found = fw.wait_for_event("paid")
    step(needs, path)
    return found


def needs(path: str) -> None:
    if not os.path.exists(path):
        raise OSError("not mended")
