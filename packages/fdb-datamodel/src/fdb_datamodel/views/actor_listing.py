"""The actors of a cluster, for people: what each is, where it takes calls, and what waits for it."""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.actors import ActorPlace, find_actor
from fdb_datamodel.errors import FutureDeletedError, StrayKeyError, UnknownFutureError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id, split_id
from fdb_datamodel.rows.records import FutureInfo
from fdb_datamodel.rows.space import EDGE, PLACE
from fdb_datamodel.views.reading import describe_future
from fdb_schema import ClusterSpace, RecordError, Transaction, read_range

MOST_WAITING = 100
_ROWS_OF_ACTOR = 2
_IDS, _IDS_END = b"\x01", b"\x02"  # what the keys of actors begin with; those of names come after them


class ActorStatus(NamedTuple):
    """An actor. name: that it was begun with, or "". info: of its own future.

    place: where it takes calls. waiting: recorded calls that haven't run, and what else waits for its end, at most
    `MOST_WAITING`; a call that its process has in hand is in no row yet.
    """

    id: bytes
    name: str
    info: FutureInfo
    place: ActorPlace
    waiting: int


def list_actors(
    tr: Transaction, space: ClusterSpace, after: bytes | None = None, limit: int = 50
) -> tuple[list[ActorStatus], bytes | None]:
    """A page of actors, the newest first, those that ended too, and the id after which the next begins (None: the last).

    By snapshot; a page may be short where some were deleted meanwhile.
    """
    ch = Changes(tr, space)
    base = ch.keys.actors
    end = base + (encode_id(after) if after is not None else _IDS_END)
    # One actor more than asked for: so that all rows of those asked for are there, wherever the page was cut.
    rows = read_range(tr, base + _IDS, end, limit=(limit + 1) * _ROWS_OF_ACTOR, reverse=True, snapshot=True)
    names: dict[bytes, str] = {}
    for key, value in rows:
        try:
            e, what = split_id(key, len(base))
            names.setdefault(decode_id(e), "")
            if what != PLACE:
                names[decode_id(e)] = str(codec.unpack(value))
        except (StrayKeyError, RecordError):
            continue
    page = list(names)[:limit]
    found = [status for one in page if (status := _status(ch, space, one, names[one])) is not None]
    return found, page[-1] if len(names) > limit else None


def _status(ch: Changes, space: ClusterSpace, actor: bytes, name: str) -> ActorStatus | None:
    try:
        info, place = describe_future(ch.tr, space, actor), find_actor(ch.tr, space, actor)
    except (UnknownFutureError, FutureDeletedError):
        return None
    waiting = ch.read_ids(ch.keys.listeners + encode_id(actor) + EDGE, limit=MOST_WAITING, snapshot=True)
    return ActorStatus(actor, name, info, place, len(waiting))
