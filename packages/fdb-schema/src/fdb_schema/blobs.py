"""Values over one row's size, stored once by their content.

    (cluster, "blobs", digest, "manifest")       → BlobManifest(size, chunks), msgpack
    (cluster, "blobs", digest, "chunk", i)       → bytes, at most 90 kB
    (cluster, "blobs", digest, "ref", referrer)  → b"": `referrer` (bytes) needs the blob
    (cluster, "blobs", digest, "pin", session)   → b"": an upload in progress by `session` (bytes)

`digest` is the SHA-256 of the content. Rules that keep a reference from pointing at nothing:

- an upload writes its pin first and its manifest last;
- the transaction that adds a reference reads the manifest serializably (`add_reference`);
- deletion reads references and pins serializably and clears the manifest (`collect_blob`), so of an addition and a
  deletion at once one conflicts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema.bulk import read_range, set_many
from fdb_schema.errors import BlobDamagedError, BlobMissingError, OversizeError, RecordError
from fdb_schema.keyspace import ClusterSpace
from fdb_schema.records import Record

CHUNK_BYTES: Final = 90_000
CHUNKS_PER_TRANSACTION: Final = 8  # about 0.7 MB: transactions stay under 1 MB
MAX_BLOB_BYTES: Final = 64 * 1024 * 1024
MOST_UPLOADS: Final = 16
"""So often one upload is begun anew."""
_CHUNKS_PER_READ: Final = 64  # about 6 MB, far from what one transaction's 5 s allow

Run = Callable[..., Any]
"""A retry loop as `idempotent_txn.run(db, fn, *args)`: this package opens no transaction by itself."""


@dataclass(frozen=True, slots=True)
class BlobManifest(Record):
    """Size in bytes and number of chunks of a blob that is there in full."""

    size: int
    chunks: int


def blob_digest(data: bytes) -> bytes:
    """The name of a blob: 32 bytes, the SHA-256 of its content."""
    return hashlib.sha256(data).digest()


def _chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    for index, start in enumerate(range(0, max(1, len(data)), CHUNK_BYTES)):
        yield index, data[start : start + CHUNK_BYTES]


LEASE_PIN: Final = b"lease:"
"""Before the id of a lease session that pins an upload, whose row is (cluster, "lease", "s", id)."""


def check_blob_size(data: bytes, what: str) -> None:
    """Raises `OversizeError` where `data` is over `MAX_BLOB_BYTES`; `what` names it."""
    if len(data) > MAX_BLOB_BYTES:
        raise OversizeError(
            f"{what} has {len(data):,} bytes, the limit is {MAX_BLOB_BYTES:,}: pass large data as a future or by reference"
        )


def put_small_blob(tr: Any, space: ClusterSpace, data: bytes, referrer: bytes | None = None) -> bytes:
    """Store `data`, at most one transaction's worth, within `tr`; its digest. Nothing is written where it is there.

    `referrer` is recorded as needing it. Raises `OversizeError` over `CHUNKS_PER_TRANSACTION` chunks.
    """
    if len(data) > CHUNK_BYTES * CHUNKS_PER_TRANSACTION:
        raise OversizeError(f"{len(data):,} bytes don't fit one transaction: use put_blob")
    digest = blob_digest(data)
    blob = space.blobs[digest]
    if not tr.get(blob.pack(("manifest",))).present():
        set_many(tr, [(blob.pack(("chunk", index)), chunk) for index, chunk in _chunks(data)])
        count = sum(1 for _ in _chunks(data))
        tr.set(blob.pack(("manifest",)), BlobManifest(len(data), count).encode())
    if referrer is not None:
        tr.set(blob.pack(("ref", referrer)), b"")
    return digest


def put_blob(
    run: Run,
    db: Any,
    space: ClusterSpace,
    data: bytes,
    *,
    session: bytes,
    what: str = "blob",
    limited: bool = True,
) -> bytes:
    """Store `data` in as many transactions as it takes, pinned to `session`; its digest.

    The caller adds a reference (`add_reference`), then lets the pin go (`unpin_blob`). Raises `OversizeError`, unless
    it isn't `limited`: what is larger than `MAX_BLOB_BYTES` is to be read by `read_blob`.
    """
    if limited:
        check_blob_size(data, what)
    digest = blob_digest(data)
    for _ in range(MOST_UPLOADS):
        if _uploaded(run, db, space.blobs[digest], data, session):
            return digest
    raise BlobMissingError(
        f"the upload of blob {digest.hex()} was collected while it ran, again and again: upload it again"
    )


def _uploaded(run: Run, db: Any, blob: Any, data: bytes, session: bytes) -> bool:
    """Whether the blob is there in full; False where the pin went meanwhile: another thread of the session had uploaded the same, or the
    session is over. What was written before may have been collected then.
    """

    def begin(tr: Any) -> bool:
        tr.set(blob.pack(("pin", session)), b"")
        return bool(tr.get(blob.pack(("manifest",))).present())

    if run(db, begin):
        return True
    pieces = list(_chunks(data))
    rows = [(blob.pack(("chunk", index)), chunk) for index, chunk in pieces]
    pages = [rows[start : start + CHUNKS_PER_TRANSACTION] for start in range(0, len(rows), CHUNKS_PER_TRANSACTION)]
    for page in [*pages, [(blob.pack(("manifest",)), BlobManifest(len(data), len(pieces)).encode())]]:

        def write(tr: Any, page: list[tuple[bytes, bytes]] = page) -> bool:
            if not tr.get(blob.pack(("pin", session))).present():
                return False
            set_many(tr, page)
            return True

        if not run(db, write):
            return False
    return True


def unpin_blob(tr: Any, space: ClusterSpace, digest: bytes, session: bytes) -> None:
    """Let go of an upload's pin; harmless where there is none."""
    tr.clear(space.blobs[digest].pack(("pin", session)))


def add_reference(tr: Any, space: ClusterSpace, digest: bytes, referrer: bytes) -> None:
    """Record that `referrer` needs the blob. Raises `BlobMissingError` where it isn't there."""
    blob = space.blobs[digest]
    if not tr.get(blob.pack(("manifest",))).present():
        raise BlobMissingError(
            f"blob {digest.hex()} of cluster {space.cluster!r} is not there: upload it before referring to it"
        )
    tr.set(blob.pack(("ref", referrer)), b"")


def drop_reference(tr: Any, space: ClusterSpace, digest: bytes, referrer: bytes) -> None:
    """Record that `referrer` no longer needs the blob; `collect_blob` removes it once nobody does."""
    tr.clear(space.blobs[digest].pack(("ref", referrer)))


def get_blob(tr: Any, space: ClusterSpace, digest: bytes) -> bytes:
    """The content. Reads up to `MAX_BLOB_BYTES` by snapshot: content never changes under its name.

    Raises `BlobMissingError` where it isn't there in full, `BlobDamagedError` where it isn't what was stored.
    """
    manifest = _manifest(tr, space, digest)
    return _checked(space, digest, manifest, _read_chunks(tr, space, digest, 0, manifest.chunks))


def read_blob(run: Run, db: Any, space: ClusterSpace, digest: bytes) -> bytes:
    """The content, of any size: in as many transactions as it takes. Raises as `get_blob` does."""
    manifest = run(db, _manifest, space, digest)
    parts = []
    for start in range(0, manifest.chunks, _CHUNKS_PER_READ):
        parts.append(run(db, _read_chunks, space, digest, start, min(manifest.chunks, start + _CHUNKS_PER_READ)))
        if not parts[-1]:
            break  # whatever number the manifest says, there is no more
    return _checked(space, digest, manifest, b"".join(parts))


def _manifest(tr: Any, space: ClusterSpace, digest: bytes) -> BlobManifest:
    data = tr.snapshot.get(space.blobs[digest].pack(("manifest",))).value
    if data is None:
        raise BlobMissingError(
            f"blob {digest.hex()} of cluster {space.cluster!r} is not there: it was deleted or never stored"
        )
    try:
        manifest = BlobManifest.decode(data)
        if manifest.chunks < 0:
            raise RecordError(f"it counts {manifest.chunks} chunks")
        return manifest
    except RecordError as error:
        raise BlobDamagedError(
            f"blob {digest.hex()} of cluster {space.cluster!r} is damaged: its manifest can't be read ({error})"
        ) from error


def _read_chunks(tr: Any, space: ClusterSpace, digest: bytes, start: int, stop: int) -> bytes:
    chunk = space.blobs[digest]["chunk"]
    rows = read_range(tr, chunk.pack((start,)), chunk.pack((stop,)), snapshot=True)
    return b"".join(value for _, value in rows)


def _checked(space: ClusterSpace, digest: bytes, manifest: BlobManifest, content: bytes) -> bytes:
    if len(content) != manifest.size:
        raise BlobMissingError(
            f"blob {digest.hex()} of cluster {space.cluster!r} is incomplete: {len(content)} of {manifest.size} bytes"
        )
    if blob_digest(content) != digest:
        raise BlobDamagedError(
            f"blob {digest.hex()} of cluster {space.cluster!r} is damaged: its content has the SHA-256 "
            f"{blob_digest(content).hex()}; restore it, or forget what refers to it"
        )
    return content


def collect_blob(tr: Any, space: ClusterSpace, digest: bytes) -> bool:
    """Remove the blob where nobody refers to it and no upload is in progress; whether it was removed."""
    blob = space.blobs[digest]
    for kind in ("ref", "pin"):
        span = blob[kind].range(())
        if read_range(tr, span.start, span.stop, limit=1):
            return False
    tr.clear(blob.pack(("manifest",)))
    span = blob.range(())
    tr.clear_range(span.start, span.stop)
    return True
