"""`stack`: where a task is just now."""

from __future__ import annotations

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, JsonOption, fail, print_json, printable, say
from futures_worker.commands.choosing import IdArgument, parse_id, resolve_id, said_once
from futures_worker.commands.opening import find_future, look_into
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.operations.rows import dashed
from futures_worker.operations.stacks import stack_of


def stack(
    future: IdArgument,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show where a running task is: the calls that each thread of its process is in. Also where native code is stuck."""
    meant = parse_id(future)
    database, space = look_into(db, cluster)
    future_id = resolve_id(database, space, meant)
    info = find_future(database, space, future_id)
    fetcher = ObjectFetcher(ClusterSecrets(database, space))
    try:
        found = stack_of(database, space, fetcher, future_id)
    finally:
        fetcher.close()
    if as_json:
        print_json({"id": str(future_id), "stack": found})
    elif found is not None:
        say(printable(found))
    if found is None:
        why = said_once(dashed(info.reason), str(future_id))
        fail(f"future {future_id} isn't running: it is {info.state.value}" + (f" ({why})" if why else ""))
