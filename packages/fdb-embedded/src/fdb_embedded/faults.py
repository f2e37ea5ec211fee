"""Injected faults: what FoundationDB's simulation does to its own clients, for tests of yours.

Which commit meets which fault depends on the seed and on the order of commits alone.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import weakref
from typing import Protocol

from . import errors
from .errors import InvalidOption

ENVIRONMENT = "MAINSPRING_FAULTS"
LATE_AFTER = 0.03  # seconds after which a late commit lands though no other commit came
MAX_DELAY = 0.01
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 7.0  # seconds: what is under way may be too old afterwards
JUMP = 100_000_000


_all: weakref.WeakSet[Faults] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for faults in list(_all):
        faults.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Landing(Protocol):
    """Holds late commits."""

    def land_all(self) -> None: ...
    def after_fork(self) -> None: ...


@dataclasses.dataclass(eq=False)
class Faults:
    """What goes wrong, each a probability per commit (`future_version`, `process_behind`, `version_jump`: per read version).

    not_committed     the commit fails with 1020
    too_old           the commit fails with 1007
    unknown_before    the commit is lost and the caller gets 1021
    unknown_after     the commit is made and the caller gets 1021
    unknown_late      the caller gets 1021 and the commit is tried later, when other commits may have come before it
    timed_out_late    the same with 1031
    future_version    the first read fails with 1009
    process_behind    the first read fails with 1037
    delay             the commit waits up to 10 ms
    version_jump      the version jumps by 100,000,000, as in a recovery: transactions under way become too old
    killed            this process is killed (SIGKILL), before the commit is made or after it and before the caller knows
    paused            this process is stopped (SIGSTOP) before the commit, and goes on after 0.1 to 7 s
    """

    seed: int = 0
    not_committed: float = 0.0
    too_old: float = 0.0
    unknown_before: float = 0.0
    unknown_after: float = 0.0
    unknown_late: float = 0.0
    timed_out_late: float = 0.0
    future_version: float = 0.0
    delay: float = 0.0
    version_jump: float = 0.0
    process_behind: float = 0.0
    killed: float = 0.0
    paused: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "seed":
                if not isinstance(value, int) or isinstance(value, bool):
                    raise InvalidOption(f"Faults(seed={value!r}): a seed is a whole number")
            elif not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
                raise InvalidOption(f"Faults({field.name}={value!r}): a probability is between 0 and 1")
        self._random = random.Random(self.seed)
        self._reads = random.Random(f"{self.seed} reads")
        self._lock = threading.Lock()
        self._landing: weakref.WeakSet[Landing] = weakref.WeakSet()
        _all.add(self)

    def after_fork(self) -> None:
        """In a child: late commits are the parent's to make, a thread of which may have held a lock."""
        self._lock = threading.Lock()
        for landing in list(self._landing):
            landing.after_fork()

    def attach(self, landing: Landing) -> None:
        """A database handle was opened with these faults."""
        self._landing.add(landing)

    def land_all(self) -> None:
        """Let every late commit land now, in all databases of this process that were opened with these faults."""
        for landing in list(self._landing):
            landing.land_all()

    @classmethod
    def parse(cls, text: str) -> Faults:
        """The faults of `k=v,...`, as in the environment variable MAINSPRING_FAULTS."""
        known = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = part.partition("=")
            name = name.strip()
            if not equals or name not in known:
                raise InvalidOption(f"faults {text!r}: {part!r} isn't one of {', '.join(sorted(known))} with =value")
            try:
                values[name] = int(value) if name == "seed" else float(value)
            except ValueError:
                raise InvalidOption(f"faults {text!r}: {value!r} isn't a number") from None
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls) -> Faults | None:
        """The faults of MAINSPRING_FAULTS, or None when it isn't set."""
        text = os.environ.get(ENVIRONMENT, "").strip()
        return cls.parse(text) if text else None

    def for_commit(self) -> Fate:
        """What happens to the next commit."""
        with self._lock:
            draw = self._random.random
            fate = Fate()
            if self.delay and draw() < self.delay:
                fate.delay = draw() * MAX_DELAY
            if self.paused and draw() < self.paused:
                fate.pause = SHORTEST_PAUSE + draw() * (LONGEST_PAUSE - SHORTEST_PAUSE)
            if self.killed and draw() < self.killed:
                fate.kills = True
                fate.lands = self._random.choice((NEVER, NOW))
                return fate
            for name, code, lands in _FATES:
                probability = getattr(self, name)
                if probability and draw() < probability:
                    fate.code = code
                    fate.lands = lands
                    if lands == LATE:
                        fate.after_commits = self._random.randrange(4)
                    break
            return fate

    def for_read_version(self) -> tuple[int, bool]:
        """The code with which the next read version fails (0: it doesn't), and whether the version jumps before it."""
        if not self.future_version and not self.version_jump and not self.process_behind:
            return 0, False
        with self._lock:
            draw = self._reads.random
            code = errors.FUTURE_VERSION if self.future_version and draw() < self.future_version else 0
            jump = bool(self.version_jump) and draw() < self.version_jump
            if self.process_behind and draw() < self.process_behind:
                code = code or errors.PROCESS_BEHIND
            return code, jump


NEVER, NOW, LATE = "never", "now", "late"

_FATES: tuple[tuple[str, int, str], ...] = (
    ("not_committed", errors.NOT_COMMITTED, NEVER),
    ("too_old", errors.TRANSACTION_TOO_OLD, NEVER),
    ("unknown_before", errors.COMMIT_UNKNOWN_RESULT, NEVER),
    ("unknown_after", errors.COMMIT_UNKNOWN_RESULT, NOW),
    ("unknown_late", errors.COMMIT_UNKNOWN_RESULT, LATE),
    ("timed_out_late", errors.TRANSACTION_TIMED_OUT, LATE),
)


class Fate:
    """What happens to one commit: the code its caller gets (0 for the true outcome), when it is made, and whether the
    process is killed then.
    """

    __slots__ = ("after_commits", "code", "delay", "kills", "lands", "pause")

    def __init__(self) -> None:
        self.code = 0
        self.lands = NOW
        self.delay = 0.0
        self.pause = 0.0
        self.kills = False
        self.after_commits = 0
