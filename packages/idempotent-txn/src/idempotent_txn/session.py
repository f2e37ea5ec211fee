"""What a process keeps per `Database` object: the strategies it uses there. Nothing of it survives a fork."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any, Final

from idempotent_txn.attempts.strategy import OFF, STRATEGIES, Strategy, StrategyName
from idempotent_txn.errors import IdempotencyIdError, StrategyError
from idempotent_txn.ids import native
from idempotent_txn.ids.lookup import NATIVE, USER_SPACE, IdStore
from idempotent_txn.ids.stored import StoredIds
from idempotent_txn.lanes import Lanes

_ATTRIBUTE: Final = "_idempotent_txn_session"
REMEMBERED_COMMITS: Final = 10_000
_mutex = threading.RLock()
_generation = 0


def _after_fork_in_child() -> None:
    # A child that went on with its parent's lanes would take their sequence numbers twice.
    global _generation, _mutex
    _generation += 1
    _mutex = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Session:
    """The strategies of one `Database` object, made when first asked for."""

    def __init__(self, db: Any, generation: int) -> None:
        self.db: Final = db
        self.generation: Final = generation
        self.client_id: bytes | None = None
        self.quick: Strategy | None = None
        """The default strategy, once chosen, where it does all its work in `begin`."""
        self._chosen: Final[dict[tuple[str | None, bool], Strategy]] = {}
        self._made: Final[dict[str, Strategy]] = {}
        self._native: bool | None = None
        self._versions: Final[OrderedDict[bytes, int]] = OrderedDict()

    def strategy(self, name: StrategyName | None, explicit: bool) -> Strategy:
        """The strategy called `name`, or the best that the database offers; `explicit` where the caller gave an id.

        | name    | without an id of the caller's                                | with one                                 |
        |---------|--------------------------------------------------------------|------------------------------------------|
        | None    | native where offered (lanes with a stable client id or else) | native where offered, else ids           |
        | native  | native                                                       | native                                   |
        | lanes   | lanes                                                        | ids: a lane has no room for an id        |
        | ids     | ids                                                          | ids                                      |
        | off     | off                                                          | refused: nothing would be kept           |

        Raises:
            StrategyError: there is no such strategy, or the database doesn't offer it.
        """
        try:
            return self._chosen[name, explicit]
        except (KeyError, TypeError):
            pass
        with _mutex:
            strategy = self._chosen[name, explicit] = self._make(self._choose(name, explicit))
            if name is None and not explicit and strategy.name == "native":
                self.quick = strategy
            return strategy

    def stores(self) -> list[IdStore]:
        """Where ids of this database's transactions may be."""
        return [NATIVE, USER_SPACE] if self.offers_native() else [USER_SPACE]

    def offers_native(self) -> bool:
        """Whether the engine keeps ids by itself."""
        if self._native is None:
            self._native = native.is_offered(self.db)
        return self._native

    def remember(self, id: bytes, version: int) -> None:
        """Keep the commit version of an explicit id, so that expiring it needs no search."""
        if version < 0:
            return  # some clients answer -1 for a commit that they found again: a search finds it
        with _mutex:
            self._versions[id] = version
            if len(self._versions) > REMEMBERED_COMMITS:
                self._versions.popitem(last=False)

    def recall(self, id: bytes) -> int | None:
        """The commit version of an explicit id that this process committed, where it is remembered; forgets it."""
        with _mutex:
            return self._versions.pop(id, None)

    def use_client_id(self, client_id: bytes) -> None:
        if not 1 <= len(client_id) <= 200:
            raise IdempotencyIdError(f"a stable client id has 1 to 200 bytes, not {len(client_id)}")
        with _mutex:
            if "lanes" in self._made and self.client_id != client_id:
                raise StrategyError(
                    "the client id must be given before the first transaction on lanes of this Database object"
                )
            self.client_id = client_id
            self._chosen.clear()
            self.quick = None
            lanes = self._make("lanes")
            assert isinstance(lanes, Lanes)
        lanes.start()  # without the mutex, which all databases of this process share: this one may not answer

    def _choose(self, name: str | None, explicit: bool) -> str:
        if name is not None and name not in STRATEGIES:
            raise StrategyError(f"there is no idempotency strategy {name!r}: use one of {', '.join(STRATEGIES)}")
        if name == "native" and not self.offers_native():
            raise StrategyError(
                "the idempotency strategy 'native' needs FoundationDB 7.3 or later, or the embedded engine: "
                "leave the choice open, or use 'lanes'"
            )
        if explicit:
            if name == "off":
                raise StrategyError("the idempotency strategy 'off' keeps no ids: leave out idempotency_id or strategy")
            if name == "lanes":
                return "ids"
            return name or ("native" if self.offers_native() else "ids")
        if name is None:
            return "native" if self.client_id is None and self.offers_native() else "lanes"
        return name

    def _make(self, name: str) -> Strategy:
        made = self._made.get(name)
        if made is None:
            if name == "off":
                made = OFF
            elif name == "lanes":
                made = Lanes(self.db, self.client_id)
            elif name == "ids":
                made = StoredIds(self.db)
            else:
                made = native.Native(self.db)
            self._made[name] = made
        return made


def session_of(db: Any) -> Session:
    """The session of `db` in this process. Raises `TypeError` where `db` is no open database."""
    try:
        session: Session | None = db.__dict__.get(_ATTRIBUTE)
    except AttributeError:
        raise _no_database(db) from None
    if session is None or session.generation != _generation:
        with _mutex:
            session = db.__dict__.get(_ATTRIBUTE)
            if session is None or session.generation != _generation:
                if not hasattr(db, "create_transaction"):
                    raise _no_database(db)
                session = Session(db, _generation)
                setattr(db, _ATTRIBUTE, session)
    return session


def _no_database(found: Any) -> TypeError:
    what = f"the text {found!r:.100}" if isinstance(found, str) else f"an object of type {type(found).__name__}"
    return TypeError(f"a Database is needed, not {what}: open it first, with fdb_schema.open_database(URL)")


def use_client_id(db: Any, client_id: bytes) -> None:
    """Give this process a stable client id (host and slot, say) in `db`; call it before the first transaction.

    Whatever a previous process of that id left in flight can't commit afterwards; should it still run, its next
    transaction raises `ClientFenced`. Transactions without an explicit strategy then go by `lanes`.

    Raises:
        IdempotencyIdError: the id is empty or over 200 bytes.
        StrategyError: transactions went by lanes already, under another client id.
    """
    session_of(db).use_client_id(bytes(client_id))
