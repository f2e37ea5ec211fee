"""What an error out of a commit says about the commit: one table, for every strategy.

| out of `commit()`                                                    | the transaction      | then                      |
|----------------------------------------------------------------------|----------------------|---------------------------|
| retryable, not committed (1007 1009 1020 1037 1038 1042 1051 …)      | did not commit       | the body runs again       |
| 2000 to 2999, refused by the client before anything was sent         | did not commit       | the error is raised       |
| 1022 (the client itself could not find out)                          | nobody can tell      | `CommitUnknownResultFatal`|
| 1021 1031 1039 1025 1101 1100                                        | unknown: resolved    | success, or the body again|
| any other code                                                       | unknown: resolved    | success, or the error     |
| an interruption (KeyboardInterrupt, …) of the waiting thread         | unknown: resolved    | the interruption goes on  |
"""

from __future__ import annotations

from typing import Final

from fdb_schema import errors as fdb

RETRYABLE_NOT_COMMITTED: Final = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1235})
"""Certainly not committed, and running again may help (`fdb_error_predicate`)."""

SERVER_PACED: Final = frozenset({1037, 1042, 1051, 1078, 1213, 1223, 1235})
"""The cluster is short of something: its client knows how long to wait, so `on_error` sets the pause."""

MAYBE_COMMITTED: Final = frozenset({fdb.COMMIT_UNKNOWN_RESULT, fdb.CLUSTER_VERSION_CHANGED})

RESOLVED_THEN_RETRIED: Final = MAYBE_COMMITTED | {fdb.TRANSACTION_TIMED_OUT, fdb.TRANSACTION_CANCELLED, 1100, 1101}
"""Unknown outcomes after which, once it is known that nothing committed, the body runs again."""

GIVEN_UP: Final = RESOLVED_THEN_RETRIED - MAYBE_COMMITTED
"""Its time was over, or it was cancelled: an engine may know that it was never begun."""

RETRYABLE_IN_BODY: Final = RETRYABLE_NOT_COMMITTED | MAYBE_COMMITTED
"""Errors of reads in the body (or of a commit nested in it) after which FoundationDB's own loop runs it again."""

CANCELLATIONS: Final = frozenset({fdb.TRANSACTION_CANCELLED, 1101})


def is_not_committed(code: int) -> bool:
    """Whether `code`, out of a commit, proves that the transaction did not commit."""
    return code in RETRYABLE_NOT_COMMITTED or 2000 <= code < 3000
