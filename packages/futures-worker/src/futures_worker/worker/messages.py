"""What a worker and its child processes say to each other.

Worker to child, over a socket that keeps packets whole (SOCK_SEQPACKET), one msgpack list per packet:

    [at, [seq, digest, args, dependencies, future id, epoch, attempt, options, where, gpus, token], ...]

    at             float: when it was sent, by the monotonic clock of the host

    seq            int, counts up within one child
    digest         of the pickled function; the child reads the file `code/<digest in hex>` at its first use, or where
                   memory had no room for it `code_on_disk` of the spill directory
    args           the payload of the arguments: bytes, or the path (str) of a parcel
    dependencies   None; a list: per dependency its result as bytes, or the path (str) of a parcel to map, or the seq
                   (int) of a task sent to this child before, whose inline result it is; or the path of a parcel that
                   holds such a list in msgpack
    options        opaque bytes of the submitter, see `payload`
    where          absent, or the path of the folder that the code runs in, "" if it has none; with it come the variables that
                   the code names. A child keeps to what its first task runs in
    gpus           absent, or what CUDA_VISIBLE_DEVICES is to be, None to leave it as it is. A child keeps to it likewise
    token          absent, or of a program: that of the claim, under which it records what it asks for

A parcel is a file of the worker's private directory that belongs to one task; the worker removes it when the task ends,
and a child that mapped it keeps its view.

A packet that the child has not read yet can be taken back: the worker holds a duplicate of the socket the child reads
from, and the kernel gives each packet to exactly one reader. So a task is either begun by the child or taken back,
never both, without any agreement between the two. What shares a packet with a task that ran for `PACKET_SECONDS` is not
begun either: the child says `SKIPPED` of it once that task ends, and the worker, who has heard nothing of the child for longer
than that, need not wait for it. Both count from when the packet was sent or the task before ended, whichever is later.

Child to worker, over a pipe, a stream of msgpack lists; each result is written as soon as the task ends, so that a
long task never holds back finished ones:

    [RESULT, seq, microseconds, payload]               inline result
    [STORED, seq, microseconds, size, name]            result in a file of that name
    [FAILED, seq, microseconds, kind, failure]         failure as `payload.Failure.to_bytes()`
    [BLOCKED, seq, [seq, ...], [id, ...]]              waits for these futures (some of them, if they are many); the listed
                                                       tasks go back unbegun
    [RESUMED, seq]                                     waits no more
    [SKIPPED, seq]                                     not begun: the result of the task before that it takes isn't at hand,
                                                       or the child leaves for one that loads newer files, or for one in
                                                       which no task has run before, or the packet took too long
    [LEFT, seq, microseconds, kind, name, [id, ...], until, due]
                                                       a program that waits without a process: the fields of an `Away`
"""

from __future__ import annotations

from typing import Any, Final

from futures_worker.failure import Failure

RESULT: Final = 0
STORED: Final = 1
FAILED: Final = 2
BLOCKED: Final = 3
RESUMED: Final = 4
SKIPPED: Final = 5
LEFT: Final = 6

FAIL_RAISED: Final = 0
"""The task's own code raised: counts against `max_retries`."""
FAIL_PERMANENT: Final = 1
"""Another attempt would fail in the same way: code or arguments that don't unpickle, a result that doesn't pickle."""
FAIL_MEMORY: Final = 2
"""MemoryError: counted apart."""
FAIL_SHORT: Final = 3
"""Not begun, as the host was short of something (descriptors, threads): not charged, tried again later or elsewhere."""
FAIL_NO_ROOM: Final = 4
"""The same of a task that ran and whose result found no room."""

CANCEL: Final = 0
"""Why a task is interrupted: it was cancelled, and may clean up. Told through the template, see `interrupts`."""
LIMIT: Final = 1
"""Its soft limit has passed."""

MOST_KEPT: Final = 256
"""Inline results that a child keeps for tasks that take them."""
MOST_AWAITED: Final = 64
"""Futures that a waiting task names to its worker."""
MOST_NAME: Final = 500
"""Characters of an event's name."""
MOST_LEFT_FOR: Final = 500
"""Futures that a program that leaves waits for."""
PACKET_SECONDS: Final = 0.1
"""Seconds of one task after which the rest of its packet is not begun."""
MAX_PACKET: Final = 96 << 10
"""Bytes of a packet to a child; larger arguments and dependencies travel as files."""
PARCEL_BYTES: Final = 32 << 10
"""Arguments and dependencies over this size travel as files."""


_FIELDS: Final = (
    (int, int, int, bytes),
    (int, int, int, int, str),
    (int, int, int, int, bytes),
    (int, int, list, list),
    (int, int),
    (int, int),
    (int, int, int, str, str, list, str, int),
)
"""Types of the fields of what a child says, by kind."""
_MOST_MICROSECONDS: Final = 10**15
_MOST_BYTES: Final = 1 << 60


def code_on_disk(digest: bytes) -> str:
    """Name of a function's file in the spill directory."""
    return f"code.{digest.hex()}"


def well_formed(message: Any) -> bool:
    """Whether a child may have said this. User code can write to any descriptor of its process, the pipe's included."""
    if type(message) is not list or not message or type(message[0]) is not int or not 0 <= message[0] < len(_FIELDS):
        return False
    kind = message[0]
    if tuple(map(type, message)) != _FIELDS[kind] or message[1] < 0:
        return False
    if kind in (RESULT, STORED, FAILED, LEFT) and not 0 <= message[2] <= _MOST_MICROSECONDS:
        return False
    if kind == STORED:
        size: int = message[3]
        return 0 <= size <= _MOST_BYTES
    if kind == FAILED:
        return message[3] in (FAIL_RAISED, FAIL_PERMANENT, FAIL_MEMORY, FAIL_SHORT, FAIL_NO_ROOM) and _is_failure(
            message[4]
        )
    if kind == LEFT:
        why, name, ids, until, due = message[3:]
        known = why in ("sleep", "futures", "event") and until in ("all", "first", "failure") and len(name) <= MOST_NAME
        return known and len(ids) <= MOST_LEFT_FOR and all(map(is_id, ids)) and -1 <= due <= _MOST_BYTES
    if kind == BLOCKED:
        returned, awaits = message[2:]
        return len(awaits) <= MOST_AWAITED and {int} >= set(map(type, returned)) and all(map(is_id, awaits))
    return True


def _is_failure(packed: bytes) -> bool:
    try:
        failure = Failure.from_bytes(packed)
    except Exception:
        return False
    texts: tuple[Any, ...] = (failure.error_type, failure.message, failure.traceback)
    return isinstance(failure.pickled, bytes) and all(isinstance(text, str) for text in texts)


def is_id(value: Any) -> bool:
    """Whether what another process sent may be the id of a future, an actor or a session."""
    return type(value) is bytes and len(value) == 16
