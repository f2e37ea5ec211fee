"""What sessions that are gone left behind in lines, or held, where nobody waits who would see it."""

from __future__ import annotations

from fdb_datamodel.coordination.grants import SUBSPACES
from fdb_datamodel.coordination.lines import Line, name_in, put_in_order, sessions_in
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import span
from fdb_datamodel.transitions.collect import Page
from fdb_schema import ClusterSpace, Transaction, read_range


def erase_shared(tr: Transaction, space: ClusterSpace) -> None:
    """Forget every queue, semaphore and event. Who waits for one is told."""
    bases = Changes(tr, space).keys.bases
    for subspace in (*SUBSPACES, "events"):
        tr.clear_range(*span(bases[subspace]))


def shared_page(tr: Transaction, space: ClusterSpace, subspace: str, after: bytes) -> Page:
    """Look at one name: how many sessions left something there, which is in order now."""
    ch = Changes(tr, space)
    base = ch.keys.bases[subspace]
    rows = read_range(tr, after or base, span(base)[1], limit=1, snapshot=True)
    if not rows:
        return Page(0, None)
    key = rows[0][0]
    name = name_in(ch, subspace, key)
    if name is None:
        return Page(0, key + b"\x00")
    seen = sorted(sessions_in(ch, subspace, name))
    rows_of = ch.get_many([ch.keys.session(one) for one in seen], snapshot=True)
    gone = [one for one, row in zip(seen, rows_of, strict=True) if row is None]
    if gone:
        put_in_order(tr, space, Line(subspace, name), gone)
    return Page(len(gone), ch.keys.shared(subspace, name) + b"\xff")
