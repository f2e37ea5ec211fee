"""The invariants of the data model, checked over a live cluster in pages; each violation is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fdb_datamodel.coordination.checking import check_event, check_shared
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.pages import after_future, read_futures
from fdb_datamodel.rows.records import Violation
from fdb_datamodel.rows.space import span
from fdb_datamodel.rows.table import SUBSPACES
from fdb_datamodel.views import invariants
from fdb_schema import ClusterSpace, Database, Transaction
from fdb_schema.database import as_database
from idempotent_txn import run

_PAGE_ROWS = 400

_Check = Callable[[Changes, bytes, bytes], Iterator[Violation]]


def _nothing(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    yield from ()


_CHECKS: dict[str, _Check] = {
    "resource_requirements_cpu": lambda ch, k, v: invariants.check_index_row(ch, "resource_requirements_cpu", k, v),
    "resource_requirements_ram": lambda ch, k, v: invariants.check_index_row(ch, "resource_requirements_ram", k, v),
    "resource_requirements_gpu": lambda ch, k, v: invariants.check_index_row(ch, "resource_requirements_gpu", k, v),
    "results": invariants.check_result,
    "workers": invariants.check_worker_row,
    "worker_assignments": invariants.check_assignment,
    "dependencies": invariants.check_dependency,
    "listeners": invariants.check_listener,
    "unsettled": invariants.check_unsettled,
    "dead_workers": invariants.check_dead_worker,
    "waits": _nothing,  # those of an attempt that ended are followed by nobody
    "timers": _nothing,  # a timer without a use does nothing when it is due
    "mailboxes": _nothing,
    "bells": _nothing,
    "logs": _nothing,
    "sessions": _nothing,
    "references": _nothing,  # of a holder that is gone: collected by the next pass
    "lineage": invariants.check_lineage,
    "garbage": _nothing,  # a mark is judged anew before it leads to anything
    "collector": _nothing,
    "children": _nothing,
    "streams": _nothing,
    "programs": _nothing,
    "limits": invariants.check_limit,
    "queues": lambda ch, k, v: check_shared(ch, "queues", k, v),
    "semaphores": lambda ch, k, v: check_shared(ch, "semaphores", k, v),
    "events": check_event,
    "schedules": invariants.check_schedule,
    "actors": _nothing,  # a place counts while the claim is that start's, a name until its actor ended
}


def validate(db: Database | str, cluster: str | ClusterSpace) -> list[Violation]:
    """Check every invariant (`INVARIANTS`) of every future and worker of a cluster; [] is what a healthy one gives.

    Pages are transactions of their own, each consistent in itself, so it may run while the cluster works. Reads only.
    """
    db = as_database(db)
    space = cluster if isinstance(cluster, ClusterSpace) else ClusterSpace(cluster)
    found: list[Violation] = []
    after: bytes | None = None
    while True:
        violations, after = run(db, _check_futures, space, after)
        found += violations
        if after is None:
            break
    left = [subspace for subspace in SUBSPACES if subspace != "futures"]
    at: bytes | None = None
    while left:
        violations, left, at = run(db, _check_rows, space, left, at)
        found += violations
    return list(dict.fromkeys(found))


def _check_futures(tr: Transaction, space: ClusterSpace, after: bytes | None) -> tuple[list[Violation], bytes | None]:
    ch = Changes(tr, space)
    base = ch.keys.futures
    begin = after_future(ch, encode_id(after)) if after is not None else base
    page = read_futures(ch, begin, span(base)[1], _PAGE_ROWS)
    found = [_stray("futures", key) for key in page.strays]
    for f in page.futures:
        found += _guarded(f"future {show_id(f.id)}", partial(invariants.check_future, ch, f))
        keys = [base + f.e + name for name in f.rows]
        found += [_stray("futures", key) for key in keys if not is_known(ch.keys, "futures", key)]
    return found, page.futures[-1].id if page.more and page.futures else None


def _check_rows(
    tr: Transaction, space: ClusterSpace, subspaces: list[str], begin: bytes | None
) -> tuple[list[Violation], list[str], bytes | None]:
    """A page of the first of `subspaces` from `begin` on, and of those after it; which are left, and where the first goes on."""
    ch = Changes(tr, space)
    found: list[Violation] = []
    room = _PAGE_ROWS
    for number, subspace in enumerate(subspaces):
        start, end = span(bytes(space[subspace].key()))
        rows = ch.read(begin or start, end, limit=room, snapshot=True)
        for key, value in rows:
            if is_known(ch.keys, subspace, key):
                found += _guarded(f"row {key!r} of {subspace}", partial(_CHECKS[subspace], ch, key, value))
            else:
                found.append(_stray(subspace, key))
        room -= len(rows)
        if room == 0:
            return found, subspaces[number:], rows[-1][0] + b"\x00"
        begin = None
    return found, [], None


def _stray(subspace: str, key: bytes) -> Violation:
    return Violation("known-keys", f"row {key!r} of {subspace}", "its key is none that the reference has")


def _guarded(subject: str, check: Callable[[], Iterable[Violation]]) -> list[Violation]:
    """What a check finds; a row that can't be read as what its key says is a violation too."""
    try:
        return list(check())
    except (ValueError, TypeError, LookupError) as error:
        return [Violation("known-keys", subject, f"can't be read: {error}")]
