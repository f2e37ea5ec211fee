"""One trace follows a task from the write that caused it to its result, across five processes; without settings there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.upping import Up, wait_until

from fdb_schema import open_database
from fdb_schema.serving import tracing
from fdb_schema.serving.configuration import ConfigurationError
from lease_locks import LeaseManager
from s3heap_tender import SysDb

WRITER = """
import sys
from fdb_schema import open_database
from fdb_schema.serving import tracing
from idempotent_txn import run
from mainspring.demo.pipeline_work import append, compressed
from s3heap_tender import SysDb
tracing.configure_tracing("writer")
with SysDb(open_database(sys.argv[1])) as sysdb, tracing.span("my own request"):
    sources = [("a.py", compressed(b"def f():\\n    return 1\\n")), ("b.py", compressed(b"x = 1\\n"))]
    run(sysdb.db, append, sysdb, "orders", 0, sources)
"""


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Up, Path]]:
    spans = tmp_path / "spans.jsonl"
    environment = {tracing.VARIABLE: f"file:{spans}"}
    arguments = ("--workers", "1", "--slots", "2", "--run", "mainspring.demo.pipeline_work:index")
    running = Up(tmp_path / "cluster", *arguments, env=environment)
    try:
        running.wait_ready()
        yield running, spans
    finally:
        running.close()


def test_a_trace_goes_from_the_write_to_the_futures_of_its_run(traced: tuple[Up, Path]) -> None:
    running, file = traced
    with SysDb(open_database(running.url)) as sysdb:
        task = sysdb.create_task("orders", "index", cadence=0, payload=b"orders", max_attempts=50)
        wait_until(lambda: sysdb.get(task.id).state == "waiting", "the first run, which no write caused")
        subprocess.run([sys.executable, "-c", WRITER, running.url], check=True, env=running.environment, timeout=60)
        wait_until(lambda: sysdb.get(task.id).completion_offset == 2, "the run that the write caused")
        beating = Counter(record.pid for _, record, _ in LeaseManager(sysdb.db).sessions())
    assert set(beating.values()) == {1}, "claims, shards and memoized runs of a process are leases of one session"

    def spans() -> list[dict[str, Any]]:
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""  # a line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def of_the_trace() -> dict[str, dict[str, Any]]:
        (root,) = [one for one in spans() if one["name"] == "my own request"]
        trace = root["context"]["trace_id"]
        return {one["context"]["span_id"]: one for one in spans() if one["context"]["trace_id"] == trace}

    def whole() -> dict[str, dict[str, Any]]:
        """The trace once both records' futures and all that is above them are in it."""
        there = of_the_trace()
        leaves = [one for one in there.values() if one["name"].endswith(".analyse_record")]
        parents = {one["parent_id"] for one in there.values()} - {None}
        return there if len(leaves) >= 2 and parents <= there.keys() else {}

    found = wait_until(whole, "the whole trace")

    def way(one: dict[str, Any]) -> list[str]:
        names = [one["name"]]
        while one["parent_id"] is not None:
            one = found[one["parent_id"]]
            names.append(one["name"])
        return names[::-1]

    expected = ["my own request", "write", "run index", "run_main", "analyse_record"]
    for leaf in found.values():
        if leaf["name"].endswith(".analyse_record"):
            assert [name.rpartition(".")[2] for name in way(leaf)] == expected
    services = {one["resource"]["attributes"]["service.name"] for one in found.values()}
    assert services == {"mainspring-writer", "mainspring-scheduler", "mainspring-worker"}


SPEAKER = """
from fdb_schema.serving import tracing
assert tracing.configure_tracing("speaker")
with tracing.span("over http", answer=42):
    pass
tracing.flush()
"""


def test_spans_go_to_an_otlp_receiver() -> None:
    received: list[tuple[str, bytes]] = []
    came = threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            environment = {**os.environ, tracing.VARIABLE: f"http://127.0.0.1:{server.server_port}"}
            subprocess.run([sys.executable, "-c", SPEAKER], check=True, env=environment, timeout=60)
            assert came.wait(60)
        finally:
            server.shutdown()
            thread.join()
    path, body = received[0]
    assert path == "/v1/traces"
    assert b"over http" in body
    assert b"mainspring-speaker" in body


def test_without_settings_nothing_is_traced_and_nothing_is_imported() -> None:
    code = (
        "import sys; from fdb_schema.serving import tracing; assert not tracing.configure_tracing('x');\n"
        "with tracing.span('a'): assert tracing.traceparent() == '' and tracing.with_trace(b'o') == b'o'\n"
        "assert not tracing.enabled() and not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != tracing.VARIABLE}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_a_context_travels_before_other_options() -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert tracing.split_trace(b"tp1" + context.encode() + b"rest") == (context, b"rest")
    assert tracing.split_trace(b"\x80\x05rest") == ("", b"\x80\x05rest")
    assert tracing.split_trace(b"") == ("", b"")
    assert issubclass(tracing.TracingError, Exception)
    assert not issubclass(tracing.TracingError, ConfigurationError)
