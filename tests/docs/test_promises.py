"""The numbers that the documentation promises are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import fdb_datamodel.collector as collector
import fdb_datamodel.placement as placement
import fdb_datamodel.transitions.output as stored_output
import fdb_datamodel.transitions.sessions as sessions
import fdb_embedded.durability as durability
import fdb_embedded.formats as formats
import fdb_embedded.housekeeping as housekeeping
import fdb_embedded.keys as keys
import fdb_embedded.reading as embedded_reading
import fdb_embedded.seal as seal
import fdb_embedded.state as state
import fdb_embedded.store as embedded_store
import fdb_embedded.versions as versions
import futures_worker.client.nested as nested
import futures_worker.client.session as client_session
import futures_worker.database as database
import futures_worker.failure as failure
import futures_worker.handshake as handshake
import futures_worker.payload as payload
import futures_worker.sealing as sealing
import futures_worker.store_client as store_client
import futures_worker.store_secret as store_secret
import futures_worker.store_server as store_server
import futures_worker.streams as streams
import futures_worker.wire as wire
import futures_worker.worker.core as core
import futures_worker.worker.eager as eager
import futures_worker.worker.planning as planning
import futures_worker.worker.streaming as streaming
import idempotent_txn.backoff as backoff
import idempotent_txn.batcher as batcher
import idempotent_txn.cleaner as cleaner
import idempotent_txn.identity as identity
import idempotent_txn.lanes as lanes
import idempotent_txn.loop as loop
from futures_worker.cli import app
from mainspring_dashboard.cli import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
FUTURES, EMBEDDED, IDEMPOTENT = "docs/futures-worker", "docs/fdb-embedded", "docs/idempotent-txn"
WORKER = "packages/futures-worker/README.md"
WORDS = {"a": 1, "two": 2, "four": 4, "sixteen": 16, "half a": 0.5}

PROMISES = [
    (f"{FUTURES}/limits.md", r"`DatabaseUnreachableError` after (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"whoever waits is told after (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/reference.md", r"gave no answer for (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"a wait warns after (\d+) s", client_session.WARN_SECONDS),
    (WORKER, r"a wait of more than (\d+) seconds warns", client_session.WARN_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"session is declared dead after (\d+) s", sessions.SESSION_TTL_SECONDS),
    (f"{FUTURES}/observability.md", r"no sign of life for (\d+) s", sessions.SESSION_TTL_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"pauses (\d+) items ahead", streams.MOST_AHEAD),
    (f"{FUTURES}/streams.md", r"pauses (\d+) items ahead", streams.MOST_AHEAD),
    (f"{FUTURES}/failure-modes.md", r"after an hour, or (a) minute", streaming.LET_GO_SECONDS / 60),
    (f"{FUTURES}/failure-modes.md", r"sends to (two) at a time", store_server.MOST_SENDING),
    (f"{FUTURES}/data.md", r"Results up to (\d+) kB", payload.INLINE_RESULT_BYTES / 1024),
    (WORKER, r"Results up to (\d+) kB", payload.INLINE_RESULT_BYTES / 1024),
    (WORKER, r"results over (\d+) kB", payload.INLINE_RESULT_BYTES / 1024),
    ("docs/faq.md", r"Results up to about (\d+) kB", payload.INLINE_RESULT_BYTES / 1024),
    (f"{FUTURES}/data.md", r"a result of (\d+) MiB or more from another host", store_client.SPREAD_FROM / 2**20),
    (f"{FUTURES}/code.md", r"than (\d+) kB, what is long", failure.MAX_PICKLED_BYTES / 1024),
    (f"{FUTURES}/observability.md", r"the last (\d+) kB of each", stored_output.OUTPUT_KEPT / 1000),
    (f"{FUTURES}/scheduling.md", r"about (\d+) ms of work", planning.AHEAD_WORK * 1000),
    (f"{FUTURES}/scheduling.md", r"without sleep for up to ([\d.]+) ms", eager.MOMENT * 1000),
    (f"{FUTURES}/scheduling.md", r"keeps the slot for (\d+) ms", core.RESUME_SOON * 1000),
    (f"{FUTURES}/scheduling.md", r"A wait of over ([\d.]+) s", nested.RECORD_AFTER),
    (f"{FUTURES}/scheduling.md", r"A worker has ([\d,]+) processes", planning.MOST_CHILDREN),
    (f"{FUTURES}/scheduling.md", r"if these are (\d+) MiB or more", placement.WORTH_A_WAIT / 2**20),
    (f"{FUTURES}/scheduling.md", r"MiB or more, for (half a) second", placement.INPUTS_WAIT),
    ("docs/security.md", r"cut off after (\d+) s", wire.HANDSHAKE_TIMEOUT),
    ("docs/security.md", r"secret, (\d+) random bytes", handshake.SECRET_BYTES),
    ("docs/security.md", r"a tag of (\d+) bytes", sealing.TAG_BYTES),
    ("docs/security.md", r"learn of it within (half a) minute", store_secret.STALE_SECONDS / 60),
    ("docs/security.md", r"\| (\d+) \| the dashboard", DEFAULT_PORT),
    (f"{EMBEDDED}/limits.md", r"they jump by (\d+) million", versions.RECOVERY_JUMP / 1e6),
    (f"{EMBEDDED}/limits.md", r"1009 after (a) second", embedded_reading.FUTURE_VERSION_SECONDS),
    (f"{EMBEDDED}/limits.md", r"nobody waits for is made within (\d+) ms or so", housekeeping.TICK * 1000),
    (f"{EMBEDDED}/limits.md", r"after a pause within ([\d.]+) s", housekeeping.LONGEST_TICK),
    (f"{EMBEDDED}/reference.md", r"keys ([\d,]+) bytes \(2102\)", keys.KEY_LIMIT),
    (f"{EMBEDDED}/reference.md", r"values ([\d,]+) \(2103\)", state.VALUE_LIMIT),
    (f"{EMBEDDED}/reference.md", r"longer than the last checkpoint and (\d+) MB", durability.CHECKPOINT_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"of files over (\d+) MB only", seal.SEAL_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"Files up to (\d+) MB are walked", seal.WALK_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"blocks for all of it: (\d+) MB", embedded_store.MAP_SIZE / 2**20),
    (f"{EMBEDDED}/storage.md", r"whole of its map: (\d+) MB", embedded_store.MAP_SIZE / 2**20),
    (f"{EMBEDDED}/reference.md", r"The format is versioned, and is (\d+)", formats.FORMAT),
    (f"{IDEMPOTENT}/reference.md", r"a bound that doubles from ([\d.]+) ms", backoff.FIRST_PAUSE * 1000),
    (f"{IDEMPOTENT}/reference.md", r"ms to (\d+) s; where the cluster", backoff.LONGEST_PAUSE),
    (f"{IDEMPOTENT}/reference.md", r"cancels its own transaction (sixteen) times", loop.MOST_CANCELLED_ATTEMPTS),
    (f"{IDEMPOTENT}/reference.md", r"`IdempotencyId\(value\)`: 1 to (\d+) bytes", identity.MAX_ID_BYTES),
    (f"{IDEMPOTENT}/reference.md", r"`IdempotencyId\.random\(\)` has (\d+)", identity.RANDOM_ID_BYTES),
    (f"{IDEMPOTENT}/reference.md", r"MIN_AGE_SECONDS=([\d_]+)", cleaner.IDEMPOTENCY_IDS_MIN_AGE_SECONDS),
    (f"{IDEMPOTENT}/reference.md", r"silent_client_seconds=([\d_]+)", cleaner.SILENT_CLIENT_SECONDS),
    (f"{IDEMPOTENT}/reference.md", r"had attempts at once, ([\d,]+) at most", lanes.LANE_NUMBERS),
    (f"{IDEMPOTENT}/reference.md", r"members over ([\d,]+) bytes", batcher.MAX_MEMBER_BYTES),
    (f"{IDEMPOTENT}/reference.md", r"max_bytes=([\d_]+)", batcher.MAX_GROUP_BYTES),
    ("docs/operations.md", r"up to (\d+) kB\. The janitor", payload.INLINE_RESULT_BYTES / 1024),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "words", "value"), PROMISES, ids=[f"{page}: {words[:40]}" for page, words, _ in PROMISES]
)
def test_a_number_that_a_page_promises_is_that_of_the_code(page: str, words: str, value: float) -> None:
    text = " ".join((ROOT / page).read_text().split())
    found = re.findall(words, text)
    assert found, f"{page} doesn't say so any more: change the entry of this test"
    for one in found:
        said = WORDS.get(one) or float(one.replace(",", "").replace("_", ""))
        assert said == pytest.approx(value)


def test_the_options_of_a_worker_have_the_defaults_that_its_page_names() -> None:
    text = (ROOT / WORKER).read_text()
    named = dict(re.findall(r"^\| `(--[a-z-]+) [A-Z]+` \| ([^|]+) \|", text, re.MULTILINE))
    assert named.keys() >= {"--grace", "--ttl", "--collect-after", "--tombstones", "--session-ttl", "--object-store"}
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    defaults = {option: parameter.default for parameter in run.params for option in parameter.opts}
    assert defaults["--collect-after"] == collector.GRACE_SECONDS
    for option, said in named.items():
        if re.fullmatch(r"[\d.]+", said):
            assert float(said) == float(defaults[option]), option
        elif said.startswith("`") and said.count("`") == 2 and "--" not in said and ":" not in said:
            assert said.strip("`") == defaults[option], option
