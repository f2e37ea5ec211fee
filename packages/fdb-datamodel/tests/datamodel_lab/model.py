"""A Python model of what the transitions promise, kept beside the database and compared with it after every step.

It knows states, edges, budgets, epochs, copies and mail, and nothing of keys: what it says is the design's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ENDED = ("realized", "failed", "deleted")


@dataclass
class Future:
    id: bytes
    session: bytes
    deps: tuple[bytes, ...] = ()
    max_retries: int = 3
    max_losses: int = 3
    max_oom: int = 3
    max_reconstructions: int = 10
    allow_reconstruction: bool = True
    backoff: float = 0.0
    total_timeout: float | None = None
    where: tuple[bytes, bool] | None = None  # (incarnation, pinned) of its assignment
    state: str = ""
    edges: set[bytes] = field(default_factory=set)
    due: int | None = None
    attempts: int = 0
    base: int = 0
    lost: int = 0
    oom: int = 0
    returned: int = 0
    epoch: int = 0
    holder: bytes = b""  # the incarnation that claims it
    token: bytes = b""
    tokens: list[bytes] = field(default_factory=list)
    inline: bool = True
    copies: set[bytes] = field(default_factory=set)  # incarnations
    reason: str = ""
    has_code: bool = True  # False: a put

    @property
    def charged(self) -> int:
        return self.attempts - self.base - self.lost - self.oom - self.returned


class Model:
    def __init__(self) -> None:
        self.futures: dict[bytes, Future] = {}
        self.live: set[bytes] = set()  # incarnations
        self.mail: dict[bytes, list[tuple[bytes, str, int]]] = {}
        self.subscribers: dict[bytes, set[bytes]] = {}
        self.timers: list[tuple[int, bytes, str]] = []
        self.clock = 0

    # --- ends

    def _end(self, f: Future, kind: str) -> None:
        self.mail.setdefault(f.session, []).append((f.id, kind, f.epoch))
        for session in sorted(self.subscribers.pop(f.id, ())):
            self.mail.setdefault(session, []).append((f.id, kind, f.epoch))
        self._settle(f, kind)

    def _settle(self, f: Future, kind: str) -> None:
        for down in list(self.futures.values()):
            if f.id in down.edges:
                down.edges.discard(f.id)
                if kind == "failed":
                    self.fail(down, "upstream")
                elif not down.edges and down.due is None:
                    self.enqueue(down)

    def fail(self, f: Future, reason: str) -> None:
        f.state, f.reason = "failed", reason
        f.edges.clear()
        f.due = None
        f.holder = f.token = b""
        f.copies.clear()
        self._end(f, "failed")

    # --- places

    def enqueue(self, f: Future) -> None:
        f.state = "unclaimed"
        if f.where is not None and f.where[0] not in self.live:
            if f.where[1]:
                self.fail(f, "worker-lost")
                return
            f.where = None
        if f.where is not None and not f.where[1]:
            self.timers.append((self.clock + 1_000_000, f.id, "locality"))

    def place(self, f: Future) -> None:
        for dep in f.deps:
            if self.futures[dep].state in ("failed", "deleted"):
                self.fail(f, "upstream")
                return
        f.edges = {dep for dep in f.deps if self.futures[dep].state != "realized"}
        if f.edges:
            f.state = "waiting"
        else:
            self.enqueue(f)

    # --- transitions

    def submit(self, f: Future) -> None:
        if f.id in self.futures:
            return
        self.futures[f.id] = f
        if f.total_timeout is not None:
            self.timers.append((self.clock + int(f.total_timeout * 1e6), f.id, "total"))
        self.place(f)

    def claim(self, f: Future, holder: bytes, token: bytes, attempt: int, epoch: int) -> None:
        assert f.state == "unclaimed", f"claimed a future that is {f.state}"
        assert all(self.futures[dep].state == "realized" for dep in f.deps), (
            "claimed a future whose inputs aren't there"
        )
        assert f.where is None or f.where[0] == holder, "claimed another worker's assignment"
        assert not f.tokens or token > f.tokens[-1], "a later claim has a greater token"
        f.tokens.append(token)
        f.attempts += 1
        assert (attempt, epoch) == (f.attempts, f.epoch)
        f.state, f.holder, f.token = "claimed", holder, token

    def realize(self, f: Future, inline: bool) -> None:
        f.state, f.inline = "realized", inline
        f.copies = set() if inline else {f.holder}
        f.holder = b""
        self._end(f, "realized")

    def end_attempt(self, f: Future, reason: str, permanently: bool = False, started: bool = True) -> None:
        returned = reason == "drained"
        if reason == "worker-lost":
            f.lost += 1
            over = f.lost > f.max_losses
        elif reason == "oom":
            f.oom += 1
            over = f.oom > f.max_oom
        elif returned:
            f.returned += 1
            over = False
        else:
            over = f.charged > f.max_retries
        once = f.max_retries == f.max_losses == f.max_oom == 0
        if permanently or over or (once and started):
            self.fail(f, reason)
            return
        f.holder = f.token = b""
        if f.backoff and not returned and reason != "worker-lost":
            pause = min(60.0, f.backoff * 2.0 ** (max(1, f.charged + f.oom) - 1))
            f.due = self.clock + round(pause * 1e6)
            self.timers.append((f.due, f.id, "backoff"))
            f.state = "waiting"
        else:
            self.place(f)

    def available(self, f: Future) -> bool:
        return f.state == "realized" and (f.inline or bool(f.copies & self.live))

    def reconstruct(self, f: Future, lost: bool) -> None:
        if lost and (not f.allow_reconstruction or f.epoch >= f.max_reconstructions):
            self.fail(f, "object-lost")
            return
        f.copies.clear()
        f.token = b""
        f.reason = ""
        f.lost = f.oom = f.returned = 0
        f.epoch, f.base = f.epoch + 1, f.attempts
        self.place(f)

    def recover(self, f: Future) -> bool:
        if f.state != "realized":
            return False
        if self.available(f):
            f.copies &= self.live
            return True
        self.reconstruct(f, lost=True)
        return False

    def miss_inputs(self, f: Future, lost: list[bytes]) -> None:
        reachable = [self.recover(self.futures[dep]) for dep in lost]
        f.returned += 1
        f.holder = f.token = b""
        states = {self.futures[dep].state for dep in f.deps}
        if states == {"realized"} and any(reachable):
            f.due = self.clock + 250_000
            self.timers.append((f.due, f.id, "backoff"))
            f.state = "waiting"
        else:
            self.place(f)

    def cancel(self, f: Future) -> None:
        if f.state not in ENDED:
            self.fail(f, "cancelled")

    def delete(self, f: Future) -> None:
        if f.state == "deleted":
            return
        ended = f.state in ENDED
        f.state, f.due, f.holder = "deleted", None, b""
        f.edges.clear()
        f.copies.clear()
        if not ended:
            self.mail.setdefault(f.session, []).append((f.id, "failed", f.epoch))
        for session in sorted(self.subscribers.pop(f.id, ())):
            self.mail.setdefault(session, []).append((f.id, "failed", f.epoch))
        self._settle(f, "failed")

    def reap(self, dead: bytes) -> None:
        for f in list(self.futures.values()):
            if f.state == "claimed" and f.holder == dead:
                self.end_attempt(f, "worker-lost")
        for f in list(self.futures.values()):
            if f.state == "unclaimed" and f.where is not None and f.where[0] == dead:
                if f.where[1]:
                    self.fail(f, "worker-lost")
                else:
                    f.where = None

    def advance(self, now: int) -> None:
        for timer in sorted(self.timers):
            due, future_id, kind = timer
            if due > now:
                continue
            self.timers.remove(timer)
            f = self.futures[future_id]
            if f.state in ENDED:
                continue
            if kind == "backoff" and f.due == due:
                f.due = None
                if not f.edges:
                    self.enqueue(f)
            elif kind == "locality" and f.state == "unclaimed" and f.where is not None and not f.where[1]:
                f.where = None
            elif kind == "total":
                self.fail(f, "timeout")
