"""`queues`: the queues and semaphores that processes share, and who waits for them."""

from __future__ import annotations

from fdb_datamodel.coordination.lines import KINDS
from fdb_datamodel.coordination.listing import SharedStatus, list_shared
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, LimitOption, command_app, print_rows
from futures_worker.commands.opening import look_into, nothing
from idempotent_txn import run

queues_app = command_app("queues", "Queues and semaphores that processes share (`Client.queue`, `Client.semaphore`).")


@queues_app.command("ls")
def list_all(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List queues and semaphores by name: how much there is of how much, what is held, and who waits."""
    database, space = look_into(db, cluster)
    found: list[SharedStatus] = []
    for kind in sorted(KINDS.values()):
        after: str | None = ""
        while after is not None and (limit is None or len(found) < limit):
            page, after = run(database, list_shared, space, kind, after, strategy="off")
            found += page
    rows = [one._asdict() for one in (found if limit is None else found[:limit])]
    columns = ["name", "kind", "size", "bound", "held", "getters", "putters"]
    print_rows(rows, columns, as_json=as_json, empty=nothing("queues and semaphores", database, cluster))
