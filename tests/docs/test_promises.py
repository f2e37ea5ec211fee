"""The numbers that the documentation promises are those of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import fdb_datamodel.collector as collector
import fdb_datamodel.coordination.queues as queues
import fdb_datamodel.lifecycle.placement as placement
import fdb_datamodel.transitions.output as stored_output
import fdb_datamodel.transitions.sessions as sessions
import fdb_embedded.engine.engine as engine
import fdb_embedded.engine.housekeeping as housekeeping
import fdb_embedded.engine.soundness as soundness
import fdb_embedded.engine.watches as watches
import fdb_embedded.faults as faults
import fdb_embedded.pure.keys as keys
import fdb_embedded.pure.versions as versions
import fdb_embedded.sharing.slots as slots
import fdb_embedded.sharing.waiting as embedded_waiting
import fdb_embedded.storage.durability as durability
import fdb_embedded.storage.formats as formats
import fdb_embedded.storage.map as embedded_map
import fdb_embedded.storage.seal as seal
import fdb_embedded.transaction.locality as locality
import fdb_embedded.transaction.read_version as embedded_reading
import fdb_embedded.transaction.state as state
import fdb_schema.clock as clock
import futures_worker.client.basis.nested as nested
import futures_worker.client.basis.options as options
import futures_worker.client.session.reader as client_reader
import futures_worker.client.session.waiting as client_waiting
import futures_worker.code.folders as folders
import futures_worker.database as database
import futures_worker.failure as failure
import futures_worker.objects.store_client as store_client
import futures_worker.objects.store_secret as store_secret
import futures_worker.objects.store_server as store_server
import futures_worker.payload as payload
import futures_worker.ports.handshake as handshake
import futures_worker.ports.sealing as sealing
import futures_worker.ports.wire as wire
import futures_worker.streams as streams
import futures_worker.worker.child.streaming as streaming
import futures_worker.worker.deciding.dispatching as dispatching
import futures_worker.worker.deciding.planning as planning
import futures_worker.worker.deciding.reports as reports
import futures_worker.worker.running.eager as eager
import futures_worker.worker.running.memory as memory
import futures_worker.worker.running.unpacked as unpacked
import idempotent_txn.attempts.backoff as backoff
import idempotent_txn.batching.batcher as batcher
import idempotent_txn.cleaner as cleaner
import idempotent_txn.ids.identity as identity
import idempotent_txn.lanes as lanes
import idempotent_txn.loop as loop
import lease_locks.grants.observer as observer
import lease_locks.memo.rows as memo_rows
import lease_locks.memo.stored.payloads as memo_payloads
import lease_locks.session.holding as holding
import s3heap_tender.cli.services as services
import s3heap_tender.objects.heap_io as heap_io
import s3heap_tender.objects.writer as writer
import s3heap_tender.rows.core as heap_core
import s3heap_tender.rows.naming as naming
import s3heap_tender.rows.settings as settings
import s3heap_tender.runs.subprocesses as subprocesses
import s3heap_tender.scheduler as scheduler
import s3heap_tender.stores.port as port
import s3heap_tender.tender as tender
import s3heap_tender.upkeep.guarding as guarding
import s3heap_tender.upkeep.housekeeping as heap_housekeeping
from futures_worker.cli import app
from lease_locks import LeaseManager
from mainspring_dashboard.cli import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
FUTURES, EMBEDDED, IDEMPOTENT = "docs/futures-worker", "docs/fdb-embedded", "docs/idempotent-txn"
LEASES, HEAP = "docs/lease-locks", "docs/s3heap-tender"
WORKER = "packages/futures-worker/README.md"
WORDS = {
    "a": 1,
    "an": 1,
    "two": 2,
    "four": 4,
    "sixteen": 16,
    "a thousand": 1000,
    "half a": 0.5,
    "a quarter": 0.25,
    "a tenth": 0.1,
}


def default(function: Callable[..., object], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


PROMISES = [
    (f"{FUTURES}/limits.md", r"`DatabaseUnreachableError` after (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"whoever waits is told after (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/reference.md", r"gave no answer for (\d+) seconds", database.DATABASE_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"a wait warns after (\d+) s", client_waiting.WARN_SECONDS),
    (WORKER, r"a wait of more than (\d+) seconds for what no worker has warns", client_waiting.WARN_SECONDS),
    (f"{FUTURES}/failure-modes.md", r"session is declared dead after (\d+) s", sessions.SESSION_TTL_SECONDS),
    (f"{FUTURES}/observability.md", r"no sign of life for (\d+) s", sessions.SESSION_TTL_SECONDS),
    (f"{FUTURES}/queues.md", r"after (\d+) s without a sign of life", sessions.SESSION_TTL_SECONDS),
    (f"{FUTURES}/queues.md", r"less often, every (\d+) s at last", client_reader.MOST_LOOK_SECONDS),
    (f"{FUTURES}/queues.md", r"at most ([\d,]+) bytes so", queues.ITEM_BYTES),
    (f"{FUTURES}/queues.md", r"\(up to ([\d,]+) items", queues.MOST_AT_ONCE),
    (f"{FUTURES}/queues.md", r"items, (\d+) kB\)", queues.PUT_BYTES / 1000),
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
    (f"{FUTURES}/code.md", r"(\d+) MiB and [\d,]+ files travel", folders.MOST_BYTES / 2**20),
    (f"{FUTURES}/code.md", r"MiB and ([\d,]+) files travel", folders.MOST_ENTRIES),
    (f"{FUTURES}/code.md", r"once there are (\d+) newer ones", unpacked.MOST_UNUSED),
    (f"{FUTURES}/observability.md", r"the last (\d+) kB of each", stored_output.OUTPUT_KEPT / 1000),
    (f"{FUTURES}/scheduling.md", r"about (\d+) ms of work", planning.AHEAD_WORK * 1000),
    (f"{FUTURES}/scheduling.md", r"without sleep for up to ([\d.]+) ms", eager.MOMENT * 1000),
    (f"{FUTURES}/scheduling.md", r"keeps the slot for (\d+) ms", reports.RESUME_SOON * 1000),
    (f"{FUTURES}/scheduling.md", r"A wait of over ([\d.]+) s", nested.RECORD_AFTER),
    (f"{FUTURES}/scheduling.md", r"A worker has ([\d,]+) processes", dispatching.MOST_CHILDREN),
    (f"{FUTURES}/scheduling.md", r"if these are (\d+) MiB or more", placement.WORTH_A_WAIT / 2**20),
    (f"{FUTURES}/scheduling.md", r"MiB or more, for (half a) second", placement.INPUTS_WAIT),
    ("docs/security.md", r"cut off after (\d+) s", wire.HANDSHAKE_TIMEOUT),
    ("docs/security.md", r"secret, (\d+) random bytes", handshake.SECRET_BYTES),
    ("docs/security.md", r"a tag of (\d+) bytes", sealing.TAG_BYTES),
    ("docs/security.md", r"learns of it within (half a) minute", store_secret.STALE_SECONDS / 60),
    ("docs/security.md", r"\| (\d+) \| the dashboard", DEFAULT_PORT),
    (f"{EMBEDDED}/limits.md", r"they jump by (\d+) million", versions.RECOVERY_JUMP / 1e6),
    (f"{EMBEDDED}/limits.md", r"1009 after (a) second", embedded_reading.FUTURE_VERSION_SECONDS),
    (f"{EMBEDDED}/limits.md", r"nobody waits for is made within (\d+) ms or so", housekeeping.TICK * 1000),
    (f"{EMBEDDED}/limits.md", r"after a pause within ([\d.]+) s", housekeeping.LONGEST_TICK),
    (f"{EMBEDDED}/faults.md", r"up to three others or (\d+) ms", faults.LATE_AFTER * 1000),
    (f"{EMBEDDED}/faults.md", r"the commit waits up to (\d+) ms", faults.MAX_DELAY * 1000),
    (f"{EMBEDDED}/faults.md", r"the version jumps by ([\d,]+)", faults.JUMP),
    (f"{EMBEDDED}/faults.md", r"\(SIGSTOP\) for ([\d.]+) to", faults.SHORTEST_PAUSE),
    (f"{EMBEDDED}/faults.md", r"\(SIGSTOP\) for [\d.]+ to (\d+) s", faults.LONGEST_PAUSE),
    (f"{EMBEDDED}/reference.md", r"keys ([\d,]+) bytes \(2102\)", keys.KEY_LIMIT),
    (f"{EMBEDDED}/reference.md", r"values ([\d,]+) \(2103\)", state.VALUE_LIMIT),
    (f"{EMBEDDED}/reference.md", r"longer than the last checkpoint and (\d+) MB", durability.CHECKPOINT_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"of files over (\d+) MB only", seal.SEAL_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"Files up to (\d+) MB are walked", seal.WALK_BYTES / 2**20),
    (f"{EMBEDDED}/reference.md", r"blocks for all of it: (\d+) MB", embedded_map.MAP_SIZE / 2**20),
    (f"{EMBEDDED}/storage.md", r"whole of its map: (\d+) MB", embedded_map.MAP_SIZE / 2**20),
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
    ("docs/operations.md", r"removes futures (an) hour after", collector.GRACE_SECONDS / 3600),
    (f"{FUTURES}/failure-modes.md", r"collected (an) hour after they ended", collector.GRACE_SECONDS / 3600),
    (f"{FUTURES}/failure-modes.md", r"from (\d+) % of the machine's memory", memory.SHORT_OF_MEMORY * 100),
    (f"{FUTURES}/limits.md", r"further attempts: (\d+) by default", options.SubmitOptions().max_retries),
    (f"{FUTURES}/limits.md", r"`max_worker_losses`, `max_oom`, (\d+) each", options.SubmitOptions().max_worker_losses),
    (f"{FUTURES}/limits.md", r"`max_worker_losses`, `max_oom`, (\d+) each", options.SubmitOptions().max_oom),
    (f"{EMBEDDED}/limits.md", r"Keys of up to (\d+) bytes are", keys.DIRECT),
    (f"{EMBEDDED}/limits.md", r"each further (\d+) bytes are one more step", keys.NODE - keys.STEM),
    (f"{EMBEDDED}/limits.md", r"is read in (\d+) steps", 1 + -(-(10_000 - keys.DIRECT) // (keys.NODE - keys.STEM))),
    (f"{EMBEDDED}/limits.md", r"up to (a tenth) of a second behind", versions.MARGIN / versions.VERSIONS_PER_SECOND),
    (f"{EMBEDDED}/limits.md", r"delays each other process by (a quarter) of a second", durability.STALLED),
    (f"{EMBEDDED}/limits.md", r"After (a) second the log names", embedded_waiting.TOLD_AFTER),
    (f"{EMBEDDED}/limits.md", r"ends waits (\d+) s at most", engine.CLOSING_SECONDS),
    (f"{EMBEDDED}/limits.md", r"within some ([\d.]+) s", watches.POLL + 2 * watches.POLL_AGAIN),
    (f"{EMBEDDED}/limits.md", r"(\d+) processes can be told", slots.SLOTS),
    (f"{EMBEDDED}/limits.md", r"for a watch look every (\d+) ms", slots.SLOTLESS_WAIT * 1000),
    (f"{EMBEDDED}/limits.md", r"up to (a thousand) rows and a megabyte", locality.COUNTED_ROWS),
    (f"{EMBEDDED}/limits.md", r"rows and (a) megabyte", locality.COUNTED_BYTES / 2**20),
    (f"{EMBEDDED}/limits.md", r"within (a) second whoever begins to read", soundness.THERE_SECONDS),
    (f"{LEASES}/what-a-lease-promises.md", r"being cut off at ([\d.]+) × ttl", observer.FENCE),
    (f"{LEASES}/what-a-lease-promises.md", r"stops believing ([\d.]+) × ttl after", observer.FENCE),
    (f"{LEASES}/what-a-lease-promises.md", r"same heartbeats for ([\d.]+) × the holder's ttl", observer.UNCHANGED),
    (f"{LEASES}/what-a-lease-promises.md", r"older than ttl \+ (\d+) hour", observer.LONG_DEAD_SECONDS / 3600),
    (f"{LEASES}/what-a-lease-promises.md", r"a heartbeat every ttl/(\d+)", 1 / holding.RENEW_EVERY),
    (f"{LEASES}/moving-from-mops.md", r"and its last (\d+) attempts", memo_rows.ATTEMPTS),
    (f"{LEASES}/moving-from-mops.md", r"after about its ttl \((\d+) s", default(LeaseManager, "ttl")),
    (f"{LEASES}/reference.md", r"Those over (\d+) kB are stored by their content", memo_payloads.INLINE_BYTES / 1024),
    (f"{HEAP}/guarantee.md", r"ticks of the clock \(([\d.]+) s each\)", clock.ADVANCE_SECONDS),
    (f"{HEAP}/guarantee.md", r"waits for (two) ticks of the clock", heap_core.LATEST_START / heap_core.TICK),
    (f"{HEAP}/operations.md", r"finish its runs for (\d+) s \(`--grace`\)", default(services.schedule, "grace")),
    (f"{HEAP}/operations.md", r"only where something is (two) seconds late", scheduler.HELP_MICRO / 1e6),
    (f"{HEAP}/operations.md", r"costs a write at most (\d+) s", heap_io.PATIENCE_SECONDS),
    (f"{HEAP}/operations.md", r"the last (\d+) bytes of what", subprocesses.OUTPUT_BYTES),
    (f"{HEAP}/operations.md", r"1 PUT for up to ([\d,]+) items", writer.MAX_OBJECT_ITEMS),
    (f"{HEAP}/operations.md", r"an object holds ([\d,]+) items", writer.MAX_OBJECT_ITEMS),
    (f"{HEAP}/operations.md", r"a bucket ([\d,]+) objects a shard", naming.MAX_PARTS),
    (f"{HEAP}/operations.md", r"payload is at most ([\d,]+) bytes", settings.MAX_PAYLOAD),
    (f"{HEAP}/operations.md", r"been due for (half a) minute", heap_housekeeping.OVERDUE_MS / 60_000),
    (f"{HEAP}/operations.md", r"One of over (\d+) MiB is none", port.MOST_BYTES / 2**20),
    (f"{HEAP}/operations.md", r"`poll` \(([\d.]+) s\)", default(tender.Tender, "poll")),
    (f"{HEAP}/operations.md", r"`keep_tombstones` \((a) week\)", tender.KEEP_TOMBSTONES / (7 * 86_400)),
    (f"{HEAP}/operations.md", r"is logged once (a) minute", guarding.REPEAT_LOG_SECONDS / 60),
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
