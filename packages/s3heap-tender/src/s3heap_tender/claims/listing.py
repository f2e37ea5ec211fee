"""What there is: tasks and dead letters, page by page; what can't be read is stepped over, and said."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from fdb_schema import RecordError, get_many
from s3heap_tender.claims import outbox
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.records import DeadLetter, DeadLetterRow, Task, TaskRow, dead_letter_of, task_of
from s3heap_tender.rows.settings import partition_id

log = logging.getLogger("s3heap_tender.sysdb")
_PAGE: Final = 1000


def tasks(sysdb: SysDbBase, partition: UUID | str | None, after: UUID | None) -> Iterator[Task]:
    """All tasks, or a partition's, in the order of their ids."""
    keys = sysdb.layout.keys
    begin, end = keys.tasks_range() if partition is None else keys.part_range(partition_id(partition))
    if after is not None:
        key = keys.task(after) if partition is None else keys.part(partition_id(partition), after)
        begin = max(begin, key + b"\x00")
    while True:
        rows = sysdb.read(lambda tr, _at, b=begin: read_known(tr, b, end, _PAGE, keys.task_of))
        ids = [id for id, _, _ in rows]
        if partition is None:
            found = [outbox.row_of(id, value) for id, _, value in rows]
        else:
            found = sysdb.read(outbox.read_rows, ids)
        payloads = sysdb.read(lambda tr, _at, ids=ids: get_many(tr, [keys.payload(id) for id in ids], snapshot=True))
        for id, row, payload in zip(ids, found, payloads, strict=True):
            if isinstance(row, TaskRow):
                yield task_of(id, row, bytes(payload or b""))
            elif row is not None:
                log.warning("%s", row)
        if len(rows) < _PAGE:
            return
        begin = rows[-1][1] + b"\x00"


def dead_letters(sysdb: SysDbBase, id: UUID | None) -> list[DeadLetter]:
    """Every dead letter, or one task's."""
    keys = sysdb.layout.keys
    begin, end = keys.dlq_range(id)
    found: list[DeadLetter] = []
    while True:
        rows = sysdb.read(lambda tr, _at, b=begin: read_known(tr, b, end, _PAGE, keys.dead_letter_of))
        found.extend(letter for of, _, value in rows if (letter := _dead_letter(of, value)) is not None)
        if len(rows) < _PAGE:
            return found
        begin = rows[-1][1] + b"\x00"


def _dead_letter(of: tuple[UUID, int], value: bytes) -> DeadLetter | None:
    try:
        return dead_letter_of(*of, DeadLetterRow.decode(value))
    except RecordError as error:
        log.warning("the dead letter of task %s, generation %d, can't be read: %s", *of, error)
        return None
