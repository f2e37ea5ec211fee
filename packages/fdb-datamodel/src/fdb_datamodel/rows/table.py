"""The table of all keys that the data model has: what people read, tests compare with, and strays are told by."""

from __future__ import annotations

from typing import NamedTuple


class KeyDoc(NamedTuple):
    """One kind of key: `key` after the subspace, the fields of its value, and what it is for."""

    subspace: str
    key: str
    value: str
    purpose: str


#: The reference page is made from this table; a test checks that every row of a live cluster is in it.
KEYS: tuple[KeyDoc, ...] = (
    KeyDoc(
        "futures",
        "(id, 'code')",
        "session, code, is_digest, wall_us, name",
        "what to run, and who is mailed when it ends",
    ),
    KeyDoc("futures", "(id, 'args')", "payload, dependency ids, is_digest", "absent: no arguments"),
    KeyDoc(
        "futures",
        "(id, 'claim')",
        "token, ip, port, incarnation, wall_us, attempt, the first of those claimed with it",
        "set while Claimed and Realized; attempt: starts so far",
    ),
    KeyDoc(
        "futures",
        "(id, 'num_attempts')",
        "int",
        "starts so far, without that of the claim, which counts it; never falls; absent: 0",
    ),
    KeyDoc("futures", "(id, 'latest_result')", "token, inline, size, name, holder, wall_us", "set iff Realized"),
    KeyDoc("futures", "(id, 'latest_exception')", "failure", "of the last attempt that failed"),
    KeyDoc("futures", "(id, 'failure')", "failure", "set iff Failed: the reason, for good"),
    KeyDoc("futures", "(id, 'max_retries')", "int", "absent: 3"),
    KeyDoc("futures", "(id, 'allow_reconstruction')", "bool", "absent: true"),
    KeyDoc(
        "futures",
        "(id, 'requirements')",
        "cpu/1000, ram bytes, gpu/1000, priority, locality",
        "absent: zero, priority 0, anywhere",
    ),
    KeyDoc(
        "futures",
        "(id, 'options')",
        "map of what isn't default",
        "budgets, timeouts, back-off, call options; a name that is long",
    ),
    KeyDoc("futures", "(id, 'epoch')", "epoch, attempts before it", "reconstructions so far; absent: 0, 0"),
    KeyDoc(
        "futures",
        "(id, 'uncharged')",
        "lost, out of memory, given back, of these never begun",
        "attempts of this epoch that max_retries doesn't count; absent: 0, 0, 0, 0",
    ),
    KeyDoc("futures", "(id, 'late')", "empty", "its queue_timeout passed while a worker held its first claim"),
    KeyDoc("futures", "(id, 'due')", "cluster clock in µs", "set while Waiting for a back-off, or away until then"),
    KeyDoc(
        "futures",
        "(id, 'away')",
        "sleep, futures or event, name of the event",
        "set while a program is away: Waiting, without a process, for what it asked for",
    ),
    KeyDoc("futures", "(id, 'listeners')", "empty", "a hint: subspace listeners has, or had, rows of this future"),
    KeyDoc(
        "futures", "(id, 'deleted')", "wall_us, cluster clock in µs", "tombstone: the only key a deleted future has"
    ),
    KeyDoc(
        "futures",
        "(id, 'limits')",
        "names of limits it has a permit of, the one it waits for or ''",
        "of a future with limits, from when it may begin until its attempt ended",
    ),
    KeyDoc(
        "resource_requirements_cpu",
        "(cpu, ram rounded, gpu rounded, -priority, id)",
        "empty, or the exact cpu, ram, gpu where rounding lost them",
        "every Unclaimed future of the pool",
    ),
    KeyDoc(
        "resource_requirements_ram", "(ram, cpu rounded, gpu rounded, -priority, id)", "empty", "those that need ram"
    ),
    KeyDoc(
        "resource_requirements_gpu", "(gpu, cpu rounded, ram rounded, -priority, id)", "empty", "those that need gpus"
    ),
    KeyDoc(
        "resource_requirements_cpu",
        "(named, cpu, ram rounded, gpu rounded, -priority, id)",
        "empty, or the exact cpu, ram, gpu, [[name, thousandths], …] where rounding lost them",
        "of those that need named resources: named is 'db=1000,licence=2000', rounded up, in thousandths",
    ),
    KeyDoc("resource_requirements_ram", "(named, ram, cpu rounded, gpu rounded, -priority, id)", "empty", "likewise"),
    KeyDoc("resource_requirements_gpu", "(named, gpu, cpu rounded, ram rounded, -priority, id)", "empty", "likewise"),
    KeyDoc(
        "results",
        "(id, versionstamp)",
        "token, size, name, holder, wall_us, is_inline",
        "each copy that a worker stores; the first is keyed by its claim's token, clones and transfers by their own stamp",
    ),
    KeyDoc("workers", "(ip, port, 'incarnation')", "incarnation, slots, total, …", "the live incarnation: the fence"),
    KeyDoc("workers", "(ip, port, 'heartbeat')", "counter, started_at, load …", "written blindly by the worker"),
    KeyDoc(
        "workers",
        "(ip, port, 'claim_future', id)",
        "token, incarnation",
        "a future that the worker runs, claimed by itself",
    ),
    KeyDoc(
        "workers",
        "(ip, port, 'claim_future', id, versionstamp)",
        "incarnation, ids",
        "those that it runs still of up to 64 that it claimed together, by the first one of these and their token",
    ),
    KeyDoc(
        "worker_assignments",
        "(ip, port, 'assignment', id)",
        "incarnation, reason, pinned, cpu, ram, gpu",
        "Unclaimed futures that wait for this worker instead of the pool",
    ),
    KeyDoc(
        "dependencies",
        "(id, upstream)",
        "epoch asked for; of a program that is away as in `listeners`",
        "what a Waiting future waits for",
    ),
    KeyDoc("listeners", "(id, 'edge', downstream)", "epoch asked for", "the other end of `dependencies`"),
    KeyDoc("listeners", "(id, 'session', session)", "empty", "who, besides the submitter, is mailed when it ends"),
    KeyDoc(
        "listeners",
        "(id, 'wake', downstream)",
        "epoch, until when it waits",
        "the other end of `dependencies` of a program that is away: any end of the upstream counts",
    ),
    KeyDoc("waits", "(id, upstream)", "token", "a running future blocks on another; of the attempt with this token"),
    KeyDoc("unsettled", "(id)", "empty", "ended futures with more listeners than one transaction settles"),
    KeyDoc(
        "timers",
        "(due µs, id, kind)",
        "empty",
        "back-offs, waits for locality or a start, timeouts; fire on the cluster clock",
    ),
    KeyDoc(
        "mailboxes", "(session, versionstamp, id)", "[[id, kind, value, epoch], …]", "one row per session and commit"
    ),
    KeyDoc("bells", "('pool')", "little-endian counter", "rung when work becomes claimable in the pool"),
    KeyDoc(
        "bells", "('session', session)", "little-endian counter", "rung with mail, and with assignments of a worker"
    ),
    KeyDoc("children", "(id, child)", "empty", "a future that this one's task submitted while it ran"),
    KeyDoc("streams", "(id, 'item', n)", "as latest_result", "the n-th item that a generator yielded"),
    KeyDoc("streams", "(id, 'made')", "int", "how many items there are"),
    KeyDoc("streams", "(id, 'taken')", "int", "how many a reader has taken"),
    KeyDoc("streams", "(id, 'reader', session)", "empty", "who is mailed when there are more items"),
    KeyDoc("streams", "(id, 'writer')", "session", "who is mailed when items were taken"),
    KeyDoc(
        "schedules",
        "('all', name)",
        "when, zone, missed, overlap, nominal, due µs, last id, made, code, args, requirements, options, …",
        "what is submitted again and again, when it was last, and when it is next",
    ),
    KeyDoc("schedules", "('due', due µs, name)", "empty", "every schedule, by when it is next"),
    KeyDoc(
        "limits",
        "(name, 'config')",
        "at once or nil, µs between two or nil, held, next µs, wall_us",
        "a limit, how many permits are held, and when the next start may be",
    ),
    KeyDoc("limits", "(name, 'held', id)", "empty", "a future that has a permit"),
    KeyDoc("limits", "(name, 'queue', -priority, id)", "empty", "a future that waits for one, in this order"),
    KeyDoc("queues", "(name, 'config')", "maxsize or nil, wall_us", "a queue, and how many items it takes"),
    KeyDoc(
        "queues",
        "(name, 'size')",
        "little-endian counter",
        "how many items there are; watched by the first in each line",
    ),
    KeyDoc(
        "queues", "(name, 'item', versionstamp)", "bytes, ids of futures inside, wall_us", "an item, in the order put"
    ),
    KeyDoc("queues", "(name, 'taken', versionstamp)", "as 'item'", "an item that `take` gave out"),
    KeyDoc(
        "queues", "(name, 'held', versionstamp)", "session, grant, wall_us", "to whom: it comes back if that one dies"
    ),
    KeyDoc("queues", "(name, 'getters', versionstamp)", "session, wall_us", "who waits for an item, in this order"),
    KeyDoc("queues", "(name, 'putters', versionstamp)", "session, wall_us", "who waits for room, in this order"),
    KeyDoc("semaphores", "(name, 'config')", "permits, wall_us", "a semaphore, and how many permits it has"),
    KeyDoc("semaphores", "(name, 'size')", "little-endian counter", "how many are free; watched by the first in line"),
    KeyDoc(
        "semaphores", "(name, 'held', id)", "session, wall_us", "whose a permit is: it is free again if that one dies"
    ),
    KeyDoc("semaphores", "(name, 'getters', versionstamp)", "session, wall_us", "who waits for one, in this order"),
    KeyDoc("events", "(name)", "is set, times it was, wall_us", "an event; watched by all who wait for it"),
    KeyDoc("programs", "('all', id)", "wall_us", "every program that there is: when it was submitted"),
    KeyDoc(
        "programs",
        "(id, 'request', n)",
        "kind, name, wall_us, value, is_error, ids, due µs, parts",
        "the n-th thing that a program asked for, and what it got",
    ),
    KeyDoc("programs", "(id, 'value', n, part)", "bytes", "the value of the n-th request, where that is large"),
    KeyDoc("programs", "(id, 'event', name, versionstamp)", "bytes", "sent to the program and not taken yet"),
    KeyDoc("programs", "(id, 'published', name)", "bytes", "what the program published last under a name"),
    KeyDoc(
        "programs", "(id, 'cancel')", "epoch, is delivered", "it is to end, and its body is told by its next request"
    ),
    KeyDoc("programs", "(id, 'charged')", "int", "how many requests there were when an attempt was charged last"),
    KeyDoc("actors", "('name', name)", "id", "the actor of that name, the latest one"),
    KeyDoc("actors", "(id, 'name')", "name", "every actor that there is, with the name it was begun with, or ''"),
    KeyDoc(
        "actors", "(id, 'place')", "start, ip, port", "where the actor takes calls, while its claim is that start's"
    ),
    KeyDoc("logs", "(id, attempt)", "bytes, bytes in all", "the end of what the attempt wrote to its output"),
    KeyDoc(
        "sessions",
        "(session)",
        "counter, wall_us, host, pid, whether it hears output",
        "a client process that lives: it holds its futures",
    ),
    KeyDoc(
        "references",
        "(id, 'session', session)",
        "empty",
        "a session other than the submitter's holds the future, or the submitter's took it up again",
    ),
    KeyDoc("references", "(id, 'future', outer)", "empty", "the result of `outer` contains the future"),
    KeyDoc("references", "(id, 'queue', name, versionstamp)", "empty", "an item of the queue contains the future"),
    KeyDoc("lineage", "(id, downstream)", "empty", "an undeleted future names it among its arguments"),
    KeyDoc(
        "garbage",
        "(id)",
        "is released, clock in µs since when it has ended and nobody holds it, or nil",
        "its submitter let it go, or is gone",
    ),
    KeyDoc("collector", "('pass')", "clock in µs", "when the next pass over all futures may begin"),
    KeyDoc("collector", "('sweep')", "clock in µs", "when the next sweep of what was let go may begin"),
    KeyDoc(
        "dead_workers", "(ip, port, incarnation)", "drained", "fenced incarnations whose rows are still to be reaped"
    ),
)

SUBSPACES: tuple[str, ...] = tuple(dict.fromkeys(doc.subspace for doc in KEYS))

TIMER_KINDS: tuple[str, ...] = ("backoff", "locality", "queue", "total", "unschedulable", "cancel", "limit")

FORMAT = 2
"""Of all subspaces of KEYS together, checked under the name "futures". 2: a claim's row counts its start, which format 1 did in num_attempts too; no
entry in the indices of ram and gpu where none is needed.

What format 1 wrote is read as it is; `open_cluster` brings about the rest.
"""
