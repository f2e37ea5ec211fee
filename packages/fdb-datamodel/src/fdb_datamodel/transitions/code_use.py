"""Who needs a blob: the names under which sessions pin uploads and refer to code, and the mark of code that seems unused."""

from __future__ import annotations

from fdb_schema import ClusterSpace, Transaction, add_reference, drop_reference

CODE_REFERRER = b"code"
"""Code is shared by its content and kept as lineage; it goes once no future and no session needs it."""
UNUSED = b"unused"
"""A referrer too: set when a pass met no future with the code, dropped when the code is put again."""
SESSION_PREFIX = b"session:"
OF_CODE = b"code:"
"""Before the digest of code: it needs the blob (the folder it runs in), for as long as the code itself is stored."""


def session_referrer(session: bytes) -> bytes:
    """What a client's session pins its uploads under, and refers to the code it has put."""
    return SESSION_PREFIX + session


def use_code(
    tr: Transaction, space: ClusterSpace, digest: bytes, session: bytes | None, folder: bytes | None = None
) -> None:
    """Code is put, again or for the first time: it is in use, by `session` until that ends if one is named.

    `folder`: a blob that the code needs, which is there and stays as long. Raises BlobMissingError.
    """
    if folder is not None:
        add_reference(tr, space, folder, OF_CODE + digest)
    ref = space.blobs[digest]["ref"]
    tr.set(ref.pack((CODE_REFERRER,)), b"")
    drop_reference(tr, space, digest, UNUSED)
    if session is not None:
        tr.set(ref.pack((session_referrer(session),)), b"")
