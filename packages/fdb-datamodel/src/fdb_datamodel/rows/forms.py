"""What keys can look like: the table of `space` as patterns, so that a key which no release wrote is told from the others."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows.space import Layout
from fdb_datamodel.rows.table import KEYS, TIMER_KINDS

_ID = rb"\x01(?:[^\x00]|\x00\xff){16}\x00"
_TEXT = rb"\x02(?:[^\x00]|\x00\xff)*\x00"
_LARGER = b"|".join(rb"%b[^\x00].{%d}" % (re.escape(bytes((0x15 + more,))), more) for more in range(8))
_BELOW_ZERO = b"|".join(rb"%b[^\xff].{%d}" % (re.escape(bytes((0x13 - more,))), more) for more in range(8))
_COUNT = rb"(?:\x14|" + _LARGER + rb")"

_FIELDS: Final[dict[str, bytes]] = {
    **dict.fromkeys(("id", "upstream", "downstream", "child", "outer", "session", "incarnation"), _ID),
    **dict.fromkeys(("cpu", "ram", "gpu", "cpu rounded", "ram rounded", "gpu rounded"), _COUNT),
    **dict.fromkeys(("port", "attempt", "due µs"), _COUNT),
    "-priority": rb"(?:\x14|" + _LARGER + b"|" + _BELOW_ZERO + rb")",
    "n": rb"\x1c.{8}",
    "part": _COUNT,
    "versionstamp": rb"\x33[^\xff].{11}",  # those that begin with 0xff aren't complete
    "ip": _TEXT,
    "named": rb"\x02[^\x00]+\x00",
    "name": _TEXT,
    "kind": b"(?:" + b"|".join(rb"\x02%b\x00" % re.escape(kind.encode()) for kind in TIMER_KINDS) + b")",
}


def _pattern(key: str) -> bytes:
    fields = key.strip("()").split(", ")
    return b"".join(
        re.escape(b"\x02" + field[1:-1].encode() + b"\x00") if field.startswith("'") else _FIELDS[field]
        for field in fields
    )


@cache
def _form(subspace: str) -> re.Pattern[bytes]:
    """Made for the first key that is looked at: most processes look at few of them, and all start sooner."""
    return re.compile(b"|".join(_pattern(doc.key) for doc in KEYS if doc.subspace == subspace), re.DOTALL)


def is_known(keys: Layout, subspace: str, key: bytes) -> bool:
    """Whether a key of a subspace is one that the table has."""
    return _form(subspace).fullmatch(key, len(keys.bases[subspace])) is not None


def check_key(keys: Layout, subspace: str, key: bytes) -> None:
    """Raises StrayKeyError."""
    if not is_known(keys, subspace, key):
        raise StrayKeyError(key, f"isn't one of {subspace}")
