"""Heap items and the bytes of a heap object: a msgpack header and packed 48-byte records in order.

    object  = header length (4 bytes, big endian) + header (msgpack map) + records
    header  = {v, shard, bucket, part, epoch, seq, writer, count, sum}
    record  = partition (16) + task (16) + generation (8) + due in ms of the cluster clock (8), big endian

`writer` is random per writing process and `seq` grows with each of its writes, so that no two versions of an object
ever have equal bytes: an ETag made from content never repeats.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgpack

from fdb_schema import NewerFormatError
from s3heap_tender.errors import CorruptObjectError

OBJECT_VERSION: Final = 1
RECORD: Final = struct.Struct(">16s16sQQ")
RECORD_BYTES: Final = RECORD.size
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, order=True)
class HeapItem:
    """One entry of the heap: this generation of this task is due then."""

    partition: UUID
    task: UUID
    gen: int
    due_ms: int  # cluster clock

    @property
    def due(self) -> float:
        """Seconds of the cluster clock."""
        return self.due_ms / 1000

    def pack(self) -> bytes:
        """The item's 48 bytes."""
        return RECORD.pack(self.partition.bytes, self.task.bytes, self.gen, self.due_ms)

    @classmethod
    def unpack(cls, record: bytes) -> HeapItem:
        """The item of 48 bytes."""
        partition, task, gen, due_ms = RECORD.unpack(record)
        return cls(UUID(bytes=partition), UUID(bytes=task), gen, due_ms)


def due_of(record: bytes) -> int:
    """Due time in ms of a packed record, without unpacking the rest."""
    return int.from_bytes(record[40:48], "big")


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What an object says of itself."""

    shard: int
    bucket: int  # start, in seconds of the cluster clock
    part: int  # 0, or the number of the overflow object
    epoch: int  # of the shard's owner; 0 where none owned it
    seq: int
    writer: bytes


def encode_object(header: ObjectHeader, records: Iterable[bytes]) -> bytes:
    """The bytes of an object that holds `records`."""
    body = b"".join(sorted(records))
    fields = {
        "v": OBJECT_VERSION,
        "shard": header.shard,
        "bucket": header.bucket,
        "part": header.part,
        "epoch": header.epoch,
        "seq": header.seq,
        "writer": header.writer,
        "count": len(body) // RECORD_BYTES,
        "sum": _checksum(body),
    }
    head: bytes = msgpack.packb(fields, use_bin_type=True)
    return _LENGTH.pack(len(head)) + head + body


def decode_object(key: str, data: bytes) -> tuple[ObjectHeader, list[bytes]]:
    """Header and packed records of an object.

    Raises `NewerFormatError` for an object of a newer release, `CorruptObjectError` for anything else that can't be read.
    """
    if len(data) < _LENGTH.size:
        raise CorruptObjectError(f"heap object {key} has {len(data)} bytes, too few for a header", key=key)
    (length,) = _LENGTH.unpack_from(data)
    try:
        fields = msgpack.unpackb(data[_LENGTH.size : _LENGTH.size + length], raw=False)
        version = fields["v"]
    except Exception as error:
        raise CorruptObjectError(f"heap object {key} has no readable header ({error!r:.120})", key=key) from error
    if type(version) is not int:
        raise CorruptObjectError(f"heap object {key} has no readable header (format {version!r:.40})", key=key)
    if version > OBJECT_VERSION:
        raise NewerFormatError(
            f"heap object {key} has format {version!r}, this release reads up to {OBJECT_VERSION}: upgrade s3heap-tender"
        )
    body = data[_LENGTH.size + length :]
    try:
        header = ObjectHeader(
            fields["shard"], fields["bucket"], fields["part"], fields["epoch"], fields["seq"], fields["writer"]
        )
        count, checksum = fields["count"], fields["sum"]
    except (KeyError, TypeError) as error:
        raise CorruptObjectError(f"heap object {key} lacks {error} in its header", key=key) from error
    numbers = (header.shard, header.bucket, header.part, header.epoch, header.seq, count)
    if {type(one) for one in numbers} != {int} or type(header.writer) is not bytes or type(checksum) is not bytes:
        raise CorruptObjectError(f"heap object {key} has fields of other types in its header", key=key)
    if len(body) != count * RECORD_BYTES:
        raise CorruptObjectError(
            f"heap object {key} should hold {count} records, found {len(body)} bytes of {RECORD_BYTES} each", key=key
        )
    if _checksum(body) != checksum:
        raise CorruptObjectError(f"heap object {key} is damaged: its checksum does not match its records", key=key)
    return header, [body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES)]


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
