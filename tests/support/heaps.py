"""What simulations of the heap share: a store that is reached through something, an operator's requests, and laws of what was started."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from s3heap_tender import Backoff, SysDb

MOST_TASKS: Final = 4


class ReachedStore:
    """An object store; what becomes of a request on its way is `_before`'s and `_write`'s to say."""

    def __init__(self, inner: Any, url: str) -> None:
        self.inner = inner
        self.url = url

    def get(self, key: str, *, if_none_match: str | None = None) -> Any:
        self._before()
        return self.inner.get(key, if_none_match=if_none_match)

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Any:
        self._before()
        return self.inner.list(prefix, before=before, since=since)

    def put(self, key: str, body: bytes, *, if_match: str | None) -> Any:
        return self._write(lambda: self.inner.put(key, body, if_match=if_match))

    def delete(self, key: str, *, if_match: str) -> None:
        self._write(lambda: self.inner.delete(key, if_match=if_match))

    def close(self) -> None:
        pass

    def _before(self) -> None:
        raise NotImplementedError

    def _write(self, write: Callable[[], Any]) -> Any:
        raise NotImplementedError


def ask(rng: random.Random, sysdb: SysDb, partitions: Sequence[uuid.UUID], tasks: list[uuid.UUID]) -> str:
    """One request of an operator: another task, until there are `MOST_TASKS`, or something of one that there is. What was asked."""
    if len(tasks) < MOST_TASKS and (not tasks or rng.random() < 0.4):
        id = uuid.UUID(int=rng.getrandbits(128))
        settings: dict[str, Any] = {
            "cadence": rng.choice((0.0, 2.0, 10.0)),
            "max_attempts": 3,
            "overlap": rng.choice(("skip", "buffer_one", "buffer_all", "cancel_other")),
            "catch_up": rng.choice(("once", "all")),
            "backoff": Backoff(initial=0.5, maximum=4.0, obey_cadence=rng.random() < 0.5),
        }
        if rng.random() < 0.3:
            settings.update(min_records=3, max_wait=5.0)
        tasks.append(id)
        sysdb.create_task(rng.choice(partitions), id.hex, id=id, **settings)
        return f"create {id}"
    id = rng.choice(tasks)
    request = rng.choice(("pause", "resume", "resume", "run_now", "backfill", "delete", "redrive"))
    if request == "backfill":
        sysdb.backfill(id, rng.randint(1, 2))
    elif request == "redrive":
        sysdb.redrive(id, sysdb.get(id).gen)
    elif request == "delete":
        if rng.random() < 0.3:
            sysdb.delete(id)
    else:
        getattr(sysdb, request)(id)
    return f"{request} {id}"


def check_starts(starts: Mapping[uuid.UUID, Iterable[tuple[int, int, int]]], lines: Sequence[str]) -> None:
    """G1 and G3 of what was started: (clock in µs, generation, epoch) of each task, whose cadence the trace tells."""
    for id, started in starts.items():
        ordered = sorted(started)
        cadence = _cadence(id, lines)
        for (clock, gen, _), (next_clock, next_gen, _) in pairwise(ordered):
            assert gen == next_gen or next_clock - clock >= cadence, f"G1: task {id} {ordered}"
        epochs = [epoch for _, _, epoch in ordered]
        assert len(set(epochs)) == len(epochs), f"G3: task {id} {ordered}"


def _cadence(id: uuid.UUID, lines: Sequence[str]) -> int:
    for text in lines:
        line = json.loads(text)
        if line.get("task") == str(id) and line.get("after"):
            return int(line["after"]["cadence"])
    raise AssertionError(f"no line of task {id}")
