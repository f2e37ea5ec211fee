"""What a process keeps per `Database` object: the strategies it uses there. Nothing of it survives a fork."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from idempotent_txn.errors import StrategyError
from idempotent_txn.lanes import Lanes
from idempotent_txn.strategy import STRATEGIES, Off, Strategy

_ATTRIBUTE: Final = "_idempotent_txn_session"
_mutex = threading.Lock()
_generation = 0


def _after_fork_in_child() -> None:
    # A child that went on with its parent's lanes would take their sequence numbers twice.
    global _generation, _mutex
    _generation += 1
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Session:
    """The strategies of one `Database` object, made when first asked for."""

    def __init__(self, db: Any, generation: int) -> None:
        self.db: Final = db
        self.generation: Final = generation
        self.client_id: bytes | None = None
        self.strategies: Final[dict[str | None, Strategy]] = {}

    def strategy(self, name: str | None) -> Strategy:
        """The strategy called `name`, or the best that the database offers.

        Raises:
            StrategyError: there is no such strategy, or the database doesn't offer it.
        """
        try:
            return self.strategies[name]
        except KeyError:
            pass
        with _mutex:
            if name is None:
                chosen = self._make("lanes")
            elif name in STRATEGIES:
                chosen = self._make(name)
            else:
                raise StrategyError(f"there is no idempotency strategy {name!r}: use one of {', '.join(STRATEGIES)}")
            self.strategies[name] = chosen
            return chosen

    def _make(self, name: str) -> Strategy:
        known = self.strategies.get(name)
        if known is None:
            if name == "off":
                known = Off()
            elif name == "lanes":
                known = Lanes(self.db, self.client_id)
            else:
                raise StrategyError(f"the idempotency strategy {name!r} isn't offered by this database")
            self.strategies[name] = known
        return known


def session_of(db: Any) -> Session:
    """The session of `db` in this process."""
    session: Session | None = db.__dict__.get(_ATTRIBUTE)
    if session is None or session.generation != _generation:
        with _mutex:
            session = db.__dict__.get(_ATTRIBUTE)
            if session is None or session.generation != _generation:
                session = Session(db, _generation)
                setattr(db, _ATTRIBUTE, session)
    return session
