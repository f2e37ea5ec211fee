"""Where a running task is: its worker is asked, which asks the task's process."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fdb_datamodel import ClusterSpace, FutureState, describe_future
from fdb_schema import MainspringError
from futures_worker.database import ask
from futures_worker.errors import AuthenticationError, ObjectLostError
from futures_worker.objects.store_client import ObjectFetcher


def stack_of(database: Any, space: ClusterSpace, fetcher: ObjectFetcher, future_id: UUID | bytes) -> str | None:
    """The stacks of the process that runs a future's task, as text; None where no worker runs it now.

    Raises UnknownFutureError, FutureDeletedError; MainspringError where the worker that has it can't be asked.
    """
    info = ask(database, describe_future, space, future_id, strategy="off")
    if info.state is not FutureState.claimed or info.worker is None:
        return None
    try:
        return fetcher.stack(info.worker.address, info.id)
    except (ObjectLostError, AuthenticationError) as error:
        raise MainspringError(
            f"worker {info.address}, which has future {UUID(bytes=info.id)}, can't be asked for its stack: it is gone or can't be "
            f"reached from here, or is of an earlier release ({error})"
        ) from error
