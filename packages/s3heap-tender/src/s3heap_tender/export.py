"""The heap as a Parquet file, for other tools to look at. Only ever an export: the heap itself is never Parquet."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any, Final

from s3heap_tender.errors import HeapTenderError
from s3heap_tender.heap import Heap
from s3heap_tender.objects.heap_io import Content
from s3heap_tender.rows.items import HeapItem

EXPORT_VERSION: Final = 1


class ExportError(HeapTenderError):
    """The export can't be written."""


def export_parquet(heap: Heap, path: str | os.PathLike[str]) -> int:
    """Write every item of the heap to a Parquet file, one row group for each object; returns how many items.

    Columns: partition and task (UUIDs as text), gen, due_ms (cluster clock), verdict ("live", "done" or "unknown", what
    the sysdb says of it), shard, bucket (start, s of the cluster clock), object (its key). The file's metadata hold the
    cluster clock and the wall clock of the export, for turning one into the other. The file appears whole or not at all.
    Objects that can't be read are left out; `heap.unreadable` names them.

    Raises:
        ExportError: pyarrow isn't installed, or the file can't be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("a Parquet export needs pyarrow: pip install pyarrow") from error
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    schema = pa.schema(
        [
            ("partition", pa.string()),
            ("task", pa.string()),
            ("gen", pa.uint64()),
            ("due_ms", pa.uint64()),
            ("verdict", pa.dictionary(pa.int8(), pa.string())),
            ("shard", pa.uint16()),
            ("bucket", pa.int64()),
            ("object", pa.string()),
        ],
        metadata=_metadata(heap),
    )
    count = 0
    try:
        with pq.ParquetWriter(scratch, schema) as writer:
            for content in heap.scan():
                columns = _columns(heap, content)
                writer.write_table(pa.table(columns, schema=schema))
                count += len(content.records)
        os.replace(scratch, target)
    except OSError as error:
        raise ExportError(f"{target} can't be written: {error}") from error
    finally:
        scratch.unlink(missing_ok=True)
    return count


def _metadata(heap: Heap) -> dict[str, str]:
    return {
        "s3heap.export": str(EXPORT_VERSION),
        "s3heap.sysdb": str(heap.sysdb.id),
        "s3heap.cluster": heap.sysdb.cluster,
        "s3heap.clock_ms": str(round(heap.sysdb.now() * 1000)),
        "s3heap.wall_ms": str(round(time.time() * 1000)),
    }


def _columns(heap: Heap, content: Content) -> dict[str, Any]:
    items = [HeapItem.unpack(record) for record in content.records]
    verdicts = heap.sysdb.verdicts(items)
    name = content.name
    return {
        "partition": [str(item.partition) for item in items],
        "task": [str(item.task) for item in items],
        "gen": [item.gen for item in items],
        "due_ms": [item.due_ms for item in items],
        "verdict": [verdict.value for verdict in verdicts],
        "shard": [name.shard] * len(items),
        "bucket": [name.bucket] * len(items),
        "object": [name.key] * len(items),
    }
