"""The names of stored objects, by which a worker finds out whether anybody recorded them.

    <future>-<epoch>-<attempt>     the result of an attempt
    <future>-put-<session>         put by a client's session
    <future>-copy-<random>         cloned or moved to another worker
    <future>-item-<n>-<attempt>    the n-th item that a generator yielded

Ids and sessions are 32 hexadecimal digits.
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"([0-9a-f]{32})-(?:(\d+-\d+)|put-([0-9a-f]{32})|copy-[0-9a-f]{8}|item-(\d+)-\d+)")


class ObjectName(NamedTuple):
    """future_id: whose result it is. session: the client that puts it (b"": no put). item: its number (-1: no item)."""

    future_id: bytes
    session: bytes = b""
    item: int = -1


def result_name(future_id: bytes, epoch: int, attempt: int) -> str:
    """Of the object that holds a result: unique to one attempt."""
    return f"{future_id.hex()}-{epoch}-{attempt}"


def put_name(future_id: bytes, session: bytes) -> str:
    """Of an object that a client's session puts."""
    return f"{future_id.hex()}-put-{session.hex()}"


def copy_name(future_id: bytes) -> str:
    """Of a further copy of a result."""
    return f"{future_id.hex()}-copy-{secrets.token_hex(4)}"


def item_name(future_id: bytes, number: int, attempt: int) -> str:
    """Of the object that holds what a generator yielded."""
    return f"{future_id.hex()}-item-{number}-{attempt}"


def parse_name(name: str) -> ObjectName | None:
    """What a name says; None for names of other kinds, which are none of the audit's business."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    item = int(match[4]) if match[4] else -1
    return ObjectName(bytes.fromhex(match[1]), bytes.fromhex(match[3] or ""), item)
