"""Submitting futures: their rows, their place in the indices or on edges, and code stored by its content."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fdb_schema import ClusterSpace, Transaction

from ..records import Claim, CodeDigest, FutureSpec, WorkerId


def submit_future(tr: Transaction, space: ClusterSpace, spec: FutureSpec) -> UUID:
    """Submit one future; its id. See `submit_futures`."""
    return UUID(bytes=submit_futures(tr, space, [spec])[0])


def submit_futures(tr: Transaction, space: ClusterSpace, specs: Sequence[FutureSpec]) -> list[bytes]:
    """Submit futures (row `submit_future`); their ids, in order.

    An id that exists already is left as it is, so a submit may be repeated. A future whose dependencies aren't all
    realized is Waiting; one with a failed dependency is Failed at once ("upstream"). Dependencies must exist, or be in the
    same call. Work that becomes claimable rings the pool's bell.

    Keep a call under about 500 specs and 500 kB: a transaction stays under 1 MB.

    Raises UnknownFutureError or FutureDeletedError for a dependency, OversizeError for arguments over 64 MiB.
    """
    raise NotImplementedError


def submit_claimed(tr: Transaction, space: ClusterSpace, specs: Sequence[FutureSpec], worker: WorkerId) -> list[Claim]:
    """Submit futures already claimed by `worker`, which granted the slots (push); no index entry is written.

    Execution starts after the commit. Raises WorkerFencedError if the worker's incarnation isn't the live one:
    submit to the pool then. Specs with unfinished dependencies are refused (FutureStateError).
    """
    raise NotImplementedError


def put_code(tr: Transaction, space: ClusterSpace, data: bytes) -> CodeDigest:
    """Store code under its SHA-256, once however often it is put; the digest goes into `FutureSpec.code`.

    Raises OversizeError over about 720 kB: store larger code with `upload_code`.
    """
    raise NotImplementedError


def get_code(tr: Transaction, space: ClusterSpace, code: CodeDigest | bytes) -> bytes:
    """The code behind `Claim.code` (plain bytes are the code itself). Raises BlobMissingError."""
    raise NotImplementedError
