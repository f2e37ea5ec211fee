"""Every key of the futures' data model: the code that builds them. The table that people read is `table`.

All keys are FoundationDB tuples under `(cluster, subspace, …)`, all values msgpack arrays that grow by appending. A key
that is absent means its default, so that a plain future costs few rows. Prefixes are packed once; per future only the
encoded id and a constant are joined.
"""

from __future__ import annotations

from functools import lru_cache

from fdb import tuple as fdb_tuple

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows.elements import encode_id, token_stamp
from fdb_datamodel.rows.records import WorkerId
from fdb_datamodel.rows.requirements import Named, Shape, named_of, round_named, round_up, shape_of
from fdb_datamodel.rows.table import SUBSPACES
from fdb_schema import ClusterSpace, prefix_end

_INDEX_PREFIXES_KEPT = 4096
_NAMES_KEPT = 1024
STAMP_BYTES = 13
"""Of a versionstamp as the last element of a key."""
_STAMP_PLACE = b"\xff" * 10  # replaced by the transaction's versionstamp at commit


@lru_cache(maxsize=_NAMES_KEPT)
def _name(text: str) -> bytes:
    return bytes(fdb_tuple.pack((text,)))


CODE = _name("code")
ARGS = _name("args")
CLAIM = _name("claim")
NUM_ATTEMPTS = _name("num_attempts")
LATEST_RESULT = _name("latest_result")
LATEST_EXCEPTION = _name("latest_exception")
FAILURE = _name("failure")
MAX_RETRIES = _name("max_retries")
ALLOW_RECONSTRUCTION = _name("allow_reconstruction")
REQUIREMENTS = _name("requirements")
OPTIONS = _name("options")
EPOCH = _name("epoch")
UNCHARGED = _name("uncharged")
LATE = _name("late")
DUE = _name("due")
AWAY = _name("away")
LIMITS = _name("limits")
LISTENERS = _name("listeners")
DELETED = _name("deleted")
EDGE = _name("edge")
SESSION = _name("session")
WAKE = _name("wake")
FUTURE = _name("future")
QUEUE = _name("queue")
HEARTBEAT = _name("heartbeat")
INCARNATION = _name("incarnation")
PLACE = _name("place")
_REQUEST = _name("request") + b"\x1c"
_VALUE = _name("value") + b"\x1c"


class Layout:
    """Builds the keys of one cluster. Arguments named `e` are encoded ids (`encode_id`)."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space = space
        self.bases: dict[str, bytes] = {name: bytes(space[name].key()) for name in SUBSPACES}
        subspace = self.bases.__getitem__
        self.futures = subspace("futures")
        self.cpu = subspace("resource_requirements_cpu")
        self.ram = subspace("resource_requirements_ram")
        self.gpu = subspace("resource_requirements_gpu")
        self.results = subspace("results")
        self.workers = subspace("workers")
        self.worker_assignments = subspace("worker_assignments")
        self.dependencies = subspace("dependencies")
        self.listeners = subspace("listeners")
        self.waits = subspace("waits")
        self.unsettled = subspace("unsettled")
        self.timers = subspace("timers")
        self.mailboxes = subspace("mailboxes")
        self.dead_workers = subspace("dead_workers")
        self.logs = subspace("logs")
        self.sessions = subspace("sessions")
        self.references = subspace("references")
        self.lineage = subspace("lineage")
        self.garbage = subspace("garbage")
        self.next_pass = bytes(space["collector"].pack(("pass",)))
        self.next_sweep = bytes(space["collector"].pack(("sweep",)))
        self.actors = subspace("actors")
        self.streams = subspace("streams")
        self.children = subspace("children")
        self.programs = subspace("programs")
        self.schedules = subspace("schedules")
        self.limits = subspace("limits")
        self.events = subspace("events")
        self.pool_bell = bytes(space["bells"].pack(("pool",)))
        self.session_bells = bytes(space["bells"]["session"].key())
        self._index_prefixes: dict[tuple[Shape, int], tuple[bytes, bytes, bytes, bool]] = {}
        self._worker_prefixes: dict[tuple[str, int], bytes] = {}

    # --- futures

    def future(self, e: bytes, name: bytes) -> bytes:
        return self.futures + e + name

    # --- resource indices

    def index_prefixes(self, shape: Shape, priority: int) -> tuple[bytes, bytes, bytes, bool]:
        """What comes before the id in the cpu, ram and gpu index, and whether the cpu index's key holds the exact shape.

        b"" for ram and gpu where none is needed: there is no entry then.
        """
        found = self._index_prefixes.get((shape, priority))
        if found is None:
            if len(self._index_prefixes) >= _INDEX_PREFIXES_KEPT:
                self._index_prefixes.clear()
            cpu, ram, gpu = shape[:3]
            up = rounded(shape)
            cpu_up, ram_up, gpu_up = up[:3]
            pack, lane = fdb_tuple.pack, _lane(named_of(up))
            found = self._index_prefixes[shape, priority] = (
                self.cpu + lane + bytes(pack((cpu, ram_up, gpu_up, -priority))),
                self.ram + lane + bytes(pack((ram, cpu_up, gpu_up, -priority))) if ram else b"",
                self.gpu + lane + bytes(pack((gpu, cpu_up, ram_up, -priority))) if gpu else b"",
                ram_up == ram and gpu_up == gpu and named_of(up) == named_of(shape),
            )
        return found

    def lane(self, named: Named) -> bytes:
        """What the entries of the cpu index start with that need these, rounded up; those that need nothing named come after all lanes."""
        return self.cpu + _lane(named)

    def lane_names(self, named: Named, then: str = "") -> bytes:
        """What the lanes start with whose first resources are these, and the next one of this name."""
        return self.cpu + _name(",".join([*_texts(named), *([f"{then}="] if then else [])]))[:-1]

    def lanes(self) -> tuple[bytes, bytes]:
        """The range of the cpu index where entries need what is named."""
        return self.cpu + b"\x02", self.cpu + b"\x03"

    def shape_prefix(self, shape: Shape) -> bytes:
        """What every entry of the cpu index with this shape starts with."""
        up = rounded(shape)
        return self.lane(named_of(up)) + bytes(fdb_tuple.pack((shape[0], up[1], up[2])))

    # --- workers

    def worker(self, ip: str, port: int) -> bytes:
        """What every key of a worker starts with, after the subspace."""
        found = self._worker_prefixes.get((ip, port))
        if found is None:
            if len(self._worker_prefixes) >= _INDEX_PREFIXES_KEPT:
                self._worker_prefixes.clear()
            found = self._worker_prefixes[ip, port] = bytes(fdb_tuple.pack((ip, port)))
        return found

    def incarnation(self, ip: str, port: int) -> bytes:
        return self.workers + self.worker(ip, port) + INCARNATION

    def heartbeat(self, ip: str, port: int) -> bytes:
        return self.workers + self.worker(ip, port) + HEARTBEAT

    def claim_rows(self, ip: str, port: int) -> bytes:
        """The prefix of a worker's `claim_future` rows; an encoded id follows."""
        return self.workers + self.worker(ip, port) + b"\x02claim_future\x00"

    def assignment_rows(self, ip: str, port: int) -> bytes:
        """The prefix of a worker's assignments; an encoded id follows."""
        return self.worker_assignments + self.worker(ip, port) + b"\x02assignment\x00"

    def dead_worker(self, worker: WorkerId) -> bytes:
        return self.dead_workers + self.worker(worker.ip, worker.port) + encode_id(worker.incarnation)

    # --- edges, subscriptions, timers

    def dependency(self, e: bytes, upstream: bytes) -> bytes:
        return self.dependencies + e + upstream

    def edge(self, e: bytes, downstream: bytes) -> bytes:
        return self.listeners + e + EDGE + downstream

    def wake(self, e: bytes, downstream: bytes) -> bytes:
        return self.listeners + e + WAKE + downstream

    def wait(self, e: bytes, upstream: bytes) -> bytes:
        return self.waits + e + upstream

    def subscription(self, e: bytes, session: bytes) -> bytes:
        return self.listeners + e + SESSION + encode_id(session)

    def timer(self, due_us: int, e: bytes, kind: str) -> bytes:
        return self.timers + bytes(fdb_tuple.pack((due_us,))) + e + _name(kind)

    # --- children, streams, actors

    def child(self, e: bytes, child: bytes) -> bytes:
        return self.children + e + child

    def stream(self, e: bytes, name: str) -> bytes:
        return self.streams + e + _name(name)

    def stream_item(self, e: bytes, number: int) -> bytes:
        return self.streams + e + _name("item") + b"\x1c" + number.to_bytes(8, "big")

    def program(self, e: bytes) -> bytes:
        return self.programs + _name("all") + e

    def program_row(self, e: bytes, name: str) -> bytes:
        return self.programs + e + _name(name)

    def program_request(self, e: bytes, number: int) -> bytes:
        return self.programs + e + _REQUEST + number.to_bytes(8, "big")

    def program_requests(self, e: bytes, start: int = 0) -> tuple[bytes, bytes]:
        """The range of the requests from number `start` on."""
        begin = self.program_request(e, start)
        return begin, begin[:-8] + b"\xff" * 9

    def program_value(self, e: bytes, number: int, part: int) -> bytes:
        return self.programs + e + _VALUE + number.to_bytes(8, "big") + bytes(fdb_tuple.pack((part,)))

    def program_events(self, e: bytes, name: str) -> bytes:
        """The prefix of the events of a name; a versionstamp follows."""
        return self.programs + e + _name("event") + _name(name)

    def stamped_event(self, e: bytes, name: str) -> bytes:
        """The parameter of `set_versionstamped_key` for an event's row."""
        return stamped(self.program_events(e, name))

    def program_published(self, e: bytes, name: str) -> bytes:
        return self.programs + e + _name("published") + _name(name)

    def schedule(self, name: str) -> bytes:
        return self.schedules + bytes(fdb_tuple.pack(("all", name)))

    def schedule_due(self, due_us: int, name: str) -> bytes:
        return self.schedules + bytes(fdb_tuple.pack(("due", due_us, name)))

    def limit(self, name: str) -> bytes:
        return self.limits + _name(name) + _name("config")

    def limit_held(self, name: str, e: bytes) -> bytes:
        return self.limits + _name(name) + _name("held") + e

    def limit_queue(self, name: str) -> bytes:
        """The prefix of the queue of a limit; the negated priority and an encoded id follow."""
        return self.limits + _name(name) + _name("queue")

    def limit_queued(self, name: str, priority: int, e: bytes) -> bytes:
        return self.limit_queue(name) + bytes(fdb_tuple.pack((-priority,))) + e

    # --- what is shared by its name: `fdb_datamodel.coordination`

    def shared(self, subspace: str, name: str, kind: str = "") -> bytes:
        """The key of one thing that a queue or a semaphore has one of, or the prefix of what it has many of, or of all it has."""
        return self.bases[subspace] + _name(name) + (_name(kind) if kind else b"")

    def event(self, name: str) -> bytes:
        return self.events + _name(name)

    def held_by_queue(self, e: bytes, name: str) -> bytes:
        """What the row of a future inside of an item starts with; the item's versionstamp follows."""
        return self.references + e + QUEUE + _name(name)

    def items_holding(self, rest: bytes) -> tuple[bytes, bytes]:
        """Where the item is that holds a future by `held_by_queue`, of which `rest` is what follows 'queue'."""
        queue, stamp = self.bases["queues"] + rest[:-STAMP_BYTES], rest[-STAMP_BYTES:]
        return queue + _name("item") + stamp, queue + _name("taken") + stamp

    def actor_name(self, name: str) -> bytes:
        return self.actors + bytes(fdb_tuple.pack(("name", name)))

    def name_of_actor(self, e: bytes) -> bytes:
        return self.actors + e + _name("name")

    def actor_place(self, e: bytes) -> bytes:
        return self.actors + e + PLACE

    def log(self, e: bytes, attempt: int) -> bytes:
        return self.logs + e + bytes(fdb_tuple.pack((attempt,)))

    # --- who needs it

    def session(self, session: bytes) -> bytes:
        return self.sessions + encode_id(session)

    def held_by_session(self, e: bytes, session: bytes) -> bytes:
        return self.references + e + SESSION + encode_id(session)

    def held_by_future(self, e: bytes, outer: bytes) -> bytes:
        return self.references + e + FUTURE + outer

    def named_by(self, e: bytes, downstream: bytes) -> bytes:
        return self.lineage + e + downstream

    # --- results, mail

    def result(self, e: bytes, token: bytes) -> bytes:
        return self.results + e + token_stamp(token)

    def stamped_result(self, e: bytes) -> bytes:
        """The parameter of `set_versionstamped_key` for a further copy's row."""
        return stamped(self.results + e)

    def mailbox(self, session: bytes) -> bytes:
        return self.mailboxes + encode_id(session)

    def stamped_mail(self, session: bytes, e: bytes) -> bytes:
        """The parameter of `set_versionstamped_key` for a mailbox row whose first entry is of future `e`."""
        head = self.mailboxes + encode_id(session) + b"\x33"
        return head + _STAMP_PLACE + b"\x00\x00" + e + len(head).to_bytes(4, "little")

    def session_bell(self, session: bytes) -> bytes:
        return self.session_bells + encode_id(session)


def stamped(prefix: bytes, number: int = 0) -> bytes:
    """The parameter of `set_versionstamped_key` for a key that ends with its stamp. `number`: of several of one transaction."""
    head = prefix + b"\x33"
    return head + _STAMP_PLACE + number.to_bytes(2, "big") + len(head).to_bytes(4, "little")


def number_in(key: bytes) -> int:
    """The number that a key ends with: of an item of a stream, or a request of a program."""
    return int.from_bytes(key[-8:], "big")


def rounded(shape: Shape) -> Shape:
    """The shape as index keys hold what isn't their first element."""
    cpu, ram, gpu = round_up(shape[0], 1000), round_up(shape[1], 1), round_up(shape[2], 1000)
    return shape_of(cpu, ram, gpu, round_named(named_of(shape)))


def _lane(named: Named) -> bytes:
    return _name(",".join(_texts(named))) if named else b""


def _texts(named: Named) -> list[str]:
    return [f"{name}={amount}" for name, amount in named]


def named_in(key: bytes, at: int) -> tuple[Named, int]:
    """What the entries of a lane need, which begins at `at` of a key, and where it ends. Raises StrayKeyError."""
    end = key.find(0, at)
    try:
        pairs = [one.rpartition("=") for one in key[at + 1 : end].decode().split(",")]
        named = tuple((name, int(amount)) for name, _, amount in pairs)
    except ValueError as error:
        raise StrayKeyError(key, "names no resources") from error
    if end < 0 or key[at : end + 1] != _lane(named) or any(not name or amount <= 0 for name, amount in named):
        raise StrayKeyError(key, "names no resources")
    return named, end + 1


def span(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of all keys that start with `prefix`."""
    return prefix, prefix_end(prefix)


@lru_cache(maxsize=256)
def layout_of(space: ClusterSpace) -> Layout:
    """The layout of a cluster, made once."""
    return Layout(space)
