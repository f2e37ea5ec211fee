"""Submitting futures: their rows, their place in the indices or on edges, and code stored by its content."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from uuid import UUID

from fdb_datamodel.errors import FutureDeletedError, FutureStateError, OversizeError, UnknownFutureError
from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish, write_failure
from fdb_datamodel.lifecycle.placement import add_edges, clear_edges, set_timer, state_keys
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Claim, CodeDigest, Failure, FutureSpec, Locality, WorkerId
from fdb_datamodel.rows.requirements import Shape
from fdb_datamodel.rows.space import (
    ALLOW_RECONSTRUCTION,
    ARGS,
    CLAIM,
    CODE,
    DELETED,
    DUE,
    FAILURE,
    MAX_RETRIES,
    OPTIONS,
    REQUIREMENTS,
)
from fdb_datamodel.transitions.code_use import CODE_REFERRER, use_code
from fdb_schema import ClusterSpace, Transaction, add_reference, get_blob, put_small_blob

INLINE_LIMIT = 90_000  # bytes of a value; more goes to a blob
MOST_DEPENDENCIES = 4_000  # their ids are one value, their edges one transaction
_ASKED_AHEAD = 200  # dependencies whose states are read together; those of one future are anyway, see `add_edges`
_ZERO: Shape = (0, 0, 0)
_LATE_MS = 10_000  # after which a submit is no longer surely the first of its id: no session is taken for dead sooner


def submit_future(tr: Transaction, space: ClusterSpace, spec: FutureSpec) -> UUID:
    """Submit one future; its id. See `submit_futures`."""
    return UUID(bytes=submit_futures(tr, space, [spec])[0])


def submit_futures(tr: Transaction, space: ClusterSpace, specs: Sequence[FutureSpec]) -> list[bytes]:
    """Submit futures (row `submit_future`); their ids, in order.

    An id that exists already, or was deleted, is left as it is, so a submit may be repeated. A future whose dependencies aren't all
    realized is Waiting; one with a failed dependency is Failed at once ("upstream"). Dependencies must exist, or come
    earlier in the same call. Work that becomes claimable rings the pool's bell.

    Keep a call under about 500 specs and 500 kB: a transaction stays under 1 MB.

    Raises UnknownFutureError or FutureDeletedError for a dependency, OversizeError for arguments over about 720 kB
    (store them with `put_blob` and pass the digest).
    """
    ch = Changes(tr, space)
    keys = ch.keys
    futures = keys.futures
    encoded = [encode_id(spec.id) for spec in specs]
    present = _present(ch, specs, encoded)
    if len(specs) > 1:
        ch.read_ahead(_asked_of_others(ch, specs))
    writes = ch.writes
    cpu = keys.index_prefixes(_ZERO, 0)[0]
    code_row = session = code = name = None
    fresh: set[bytes] = set()  # made and unfinished in this call
    seen: set[bytes] = set()
    pooled = False
    for spec, e, exists in zip(specs, encoded, present, strict=True):
        if exists is not None or spec.id in seen:
            continue
        seen.add(spec.id)
        prefix = futures + e
        if spec.code is not code or spec.session is not session or spec.name is not name or code_row is None:
            code, session, name = spec.code, spec.session, spec.name
            code_row = _code_row(ch, spec)
        writes[prefix + CODE] = code_row
        if codec.has_defaults_only(spec) and not spec.dependencies:
            if spec.args:
                writes[prefix + ARGS] = _args_row(ch, spec)
            writes[cpu + e] = b""
            pooled = True
        else:
            unfinished = _submit_special(ch, spec, e, fresh)
            writes = ch.writes  # a read inside flushed them
            if not unfinished:
                continue
        fresh.add(spec.id)
    if pooled:
        ch.ring_pool()
    finish(ch)
    return [spec.id for spec in specs]


def _asked_of_others(ch: Changes, specs: Sequence[FutureSpec]) -> Iterator[tuple[bytes, bytes, int]]:
    """What is read of dependencies and parents, one spec after another."""
    own = {spec.id for spec in specs}
    upstreams = dict.fromkeys(one for spec in specs for one in spec.dependencies if one not in own)
    for one in islice(upstreams, _ASKED_AHEAD):
        for key in state_keys(ch, one):
            yield key, key + b"\x00", 1
    for parent in dict.fromkeys(spec.parent for spec in specs if spec.parent):
        key = ch.keys.future(encode_id(parent), FAILURE)
        yield key, key + b"\x00", 1


def submit_claimed(
    tr: Transaction, space: ClusterSpace, specs: Sequence[FutureSpec], worker: WorkerId, *, ring: bool = True
) -> list[Claim]:
    """Submit futures already claimed by `worker`, which granted the slots (push); no index entry is written.

    Execution starts after the commit, which rings the worker's bell, unless not `ring`: the caller tells it then. An id that exists already gives no second claim: its
    claim is returned if it is this worker's, else it is left out.

    Raises WorkerFencedError if the worker's incarnation isn't the live one: submit to the pool then. Specs with
    dependencies are refused (FutureStateError): the pool and edges are for them.
    """
    ch = Changes(tr, space)
    encoded = [encode_id(spec.id) for spec in specs]
    live, *present = _present(ch, specs, encoded, ch.keys.incarnation(worker.ip, worker.port))
    ch.check_fence(worker, live)
    head = codec.claim_head(worker, ch.token, ch.wall_us)
    row = codec.pack_claim_row(worker, ch.token)
    held = ch.keys.claim_rows(worker.ip, worker.port)
    claims: list[Claim] = []
    for spec, e, exists in zip(specs, encoded, present, strict=True):
        if spec.dependencies or spec.after or spec.limits:
            raise FutureStateError(
                f"future {show_id(spec.id)} has dependencies or limits, or is to begin later: submit it to the pool, not to a worker"
            )
        shape = spec.requirements.shape if spec.requirements else _ZERO
        token, attempt, claimed_with = ch.token, 1, b""
        if exists is not None:
            found = ch.load(spec.id)
            held_now = found.claim
            if held_now is None or not found.claimed or held_now[1] != worker:
                continue
            token, attempt, claimed_with = held_now[0], held_now[3], found.claimed_with
        else:
            f = FutureRows(spec.id, e, {})
            ch.put(f, CODE, _code_row(ch, spec))
            _write_options(ch, f, spec)
            _set_timers(ch, spec, e)
            if spec.parent and not _adopt(ch, f, spec):
                continue
            if (args := _args_row(ch, spec)) is not None:
                ch.put(f, ARGS, args)
            ch.put(f, CLAIM, head + codec.pack(1))
            ch.set(held + e, row)
        claim = Claim(spec.id, worker, token, attempt, 0, spec.session, spec.code, spec.args, (), {}, shape)
        claim.run_timeout, claim.name, claim.call_options = spec.run_timeout, spec.name, spec.call_options
        claim.claimed_with = claimed_with
        claims.append(claim)
    if claims and ring:
        ch.ring_session(worker.incarnation)
    finish(ch)
    return claims


def _present(ch: Changes, specs: Sequence[FutureSpec], encoded: Sequence[bytes], *before: bytes) -> list[bytes | None]:
    """The rows of the keys `before`, then one of each future that is there or was deleted, None of others.

    An id that was made for one submit (UUIDv7) a moment ago can't have been deleted before it; one that a key names can, and a call
    of an actor, which its host may have recorded; and one that is submitted late, by a client that was stopped or cut off: its
    future may have been there, and its session been dead.
    """
    futures = ch.keys.futures
    found = ch.get_many([*before, *[futures + e + CODE for e in encoded]])
    named = [at for at, spec in enumerate(specs) if spec.id[6] >> 4 != 7 or not spec.code or _is_late(ch, spec.id)]
    if named:
        tombstones = ch.get_many([ch.keys.future(encoded[at], DELETED) for at in named])
        for at, tombstone in zip(named, tombstones, strict=True):
            found[at + len(before)] = found[at + len(before)] or tombstone
    return found


def _is_late(ch: Changes, future_id: bytes) -> bool:
    """By the clock that its id was made with, which may have been set since."""
    return abs(ch.wall_us // 1000 - int.from_bytes(future_id[:6], "big")) > _LATE_MS


def _submit_special(ch: Changes, spec: FutureSpec, e: bytes, fresh: set[bytes]) -> bool:
    """Whatever isn't a plain future: options, requirements, dependencies, locality, timers. False if it ended at once."""
    f = FutureRows(spec.id, e, {CODE: ch.writes[ch.keys.future(e, CODE)] or b""})
    if spec.dependencies:
        _check_dependencies(ch, spec, fresh)
    if (args := _args_row(ch, spec)) is not None:
        ch.put(f, ARGS, args)
    _write_options(ch, f, spec)
    _set_timers(ch, spec, e)
    if spec.parent and not _adopt(ch, f, spec):
        return False
    if spec.after:
        ch.put(f, DUE, codec.pack(set_timer(ch, e, "backoff", spec.after)))
    if spec.dependencies:
        for upstream in dict.fromkeys(spec.dependencies):
            ch.set(ch.keys.named_by(encode_id(upstream), e), b"")
        waits, failure = add_edges(ch, f, spec.dependencies, fresh)
        if failure is not None:
            clear_edges(ch, f)
            ch.put(f, DUE, None)
            write_failure(ch, f, dataclasses.replace(failure, wall_us=ch.wall_us))
            return False
        if waits:
            return True
    if f.backing_off:
        return True
    enqueue_or_fail(ch, f)
    return not f.failed


def _adopt(ch: Changes, f: FutureRows, spec: FutureSpec) -> bool:
    """Note whose child it is; False if it ended because that one was cancelled (its state is read serializably)."""
    parent = encode_id(spec.parent)
    ch.set(ch.keys.child(parent, f.e), b"")
    row = ch.get_many([ch.keys.future(parent, FAILURE)])[0]
    if row is None or codec.unpack_failure(row).reason != "cancelled":
        return True
    gone = Failure("cancelled", f"future {show_id(spec.parent)}, whose task submitted this one, was cancelled")
    write_failure(ch, f, dataclasses.replace(gone, wall_us=ch.wall_us))
    return False


def _set_timers(ch: Changes, spec: FutureSpec, e: bytes) -> None:
    """Limits count from when it may begin."""
    for kind in ("queue", "total", "unschedulable"):
        seconds = getattr(spec, kind + "_timeout")
        if seconds is not None:
            set_timer(ch, e, kind, seconds + (spec.after or 0.0))


def _check_dependencies(ch: Changes, spec: FutureSpec, fresh: set[bytes]) -> None:
    if len(spec.dependencies) > MOST_DEPENDENCIES:
        raise OversizeError(
            f"future {show_id(spec.id)} depends on {len(spec.dependencies):,} futures, {MOST_DEPENDENCIES:,} are possible: "
            f"combine them by futures in between"
        )
    unknown = [upstream for upstream in dict.fromkeys(spec.dependencies) if upstream not in fresh]
    keys = [ch.keys.future(encode_id(upstream), name) for upstream in unknown for name in (CODE, DELETED)]
    found = ch.get_many(keys) if keys else []
    for upstream, code, deleted in zip(unknown, found[::2], found[1::2], strict=True):
        if code is None:
            kind = UnknownFutureError if deleted is None else FutureDeletedError
            state = "isn't there" if deleted is None else "was deleted"
            raise kind(
                f"future {show_id(spec.id)} depends on {show_id(upstream)}, which {state} in cluster "
                f"{ch.keys.space.cluster!r}: submit what it depends on first"
            )


def _write_options(ch: Changes, f: FutureRows, spec: FutureSpec) -> None:
    if codec.has_defaults_only(spec):
        return
    locality: Locality | None = spec.locality
    shape = spec.requirements.shape if spec.requirements else _ZERO
    ch.put(f, REQUIREMENTS, codec.pack_requirements(shape, spec.priority, locality))
    options = codec.options_of(spec)
    if codec.name_with_code(spec.name):
        options.pop("name", None)
    ch.put(f, OPTIONS, codec.pack_options(options))
    f.know_options(options)
    if spec.durable:
        ch.set(ch.keys.program(f.e), codec.pack(ch.wall_us))
    if spec.max_retries != 3:
        ch.put(f, MAX_RETRIES, codec.pack(spec.max_retries))
    if not spec.allow_reconstruction:
        ch.put(f, ALLOW_RECONSTRUCTION, codec.pack(False))


def _code_row(ch: Changes, spec: FutureSpec) -> bytes:
    if len(spec.session) != 16:
        raise ValueError(f"a session is named by 16 bytes, not {len(spec.session)}")
    code = spec.code
    if len(code) > INLINE_LIMIT:
        code = put_code(ch.tr, ch.keys.space, code)
    return codec.pack_code(spec.session, code, ch.wall_us, spec.name if codec.name_with_code(spec.name) else "")


def _args_row(ch: Changes, spec: FutureSpec) -> bytes | None:
    args = spec.args
    if len(args) > INLINE_LIMIT:
        args = _put(ch.tr, ch.keys.space, args, spec.id, f"the arguments of future {show_id(spec.id)}")
    elif isinstance(args, CodeDigest):
        add_reference(ch.tr, ch.keys.space, bytes(args), spec.id)
    return codec.pack_args(args, spec.dependencies)


def put_code(
    tr: Transaction, space: ClusterSpace, data: bytes, session: bytes | None = None, folder: bytes | None = None
) -> CodeDigest:
    """Store code under its SHA-256, once however often it is put; the digest goes into `FutureSpec.code`.

    It stays while a future has it, or `session` lives, which may then submit more futures with the digest alone; and as long as
    it stays the blob `folder`, in whose files it runs.

    Raises OversizeError over about 720 kB: store larger code with `fdb_schema.put_blob` and wrap its digest. BlobMissingError where
    `folder` isn't there.
    """
    digest = _put(tr, space, data, CODE_REFERRER, "the code")
    use_code(tr, space, bytes(digest), session, folder)
    return digest


def refer_to_code(
    tr: Transaction, space: ClusterSpace, digest: bytes, session: bytes | None = None, folder: bytes | None = None
) -> None:
    """As `put_code`, of code that was stored by `fdb_schema.put_blob` because of its size. Raises BlobMissingError."""
    add_reference(tr, space, digest, CODE_REFERRER)
    use_code(tr, space, digest, session, folder)


def get_code(tr: Transaction, space: ClusterSpace, code: CodeDigest | bytes) -> bytes:
    """The bytes behind `Claim.code` or `Claim.args` (plain bytes are themselves). Raises BlobMissingError."""
    return get_blob(tr, space, bytes(code)) if isinstance(code, CodeDigest) else code


def _put(tr: Transaction, space: ClusterSpace, data: bytes, referrer: bytes, what: str) -> CodeDigest:
    try:
        return CodeDigest(put_small_blob(tr, space, data, referrer))
    except OversizeError as error:
        raise OversizeError(
            f"{what} has {len(data):,} bytes, too many for one transaction: store it with put_blob and pass its digest, "
            f"or pass large data as a future"
        ) from error
