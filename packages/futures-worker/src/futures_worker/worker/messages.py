"""What a worker and its child processes say to each other.

Worker to child, over a socket that keeps packets whole (SOCK_SEQPACKET), one msgpack list of tasks per packet:

    [[seq, digest, args, dependencies, future id, epoch, attempt, options], ...]

    seq            int, counts up within one child
    digest         of the pickled function; the child reads the file `code/<digest in hex>` at its first use
    args           the payload of the arguments: bytes, or the path (str) of a parcel
    dependencies   None; a list: per dependency its result as bytes, or the path (str) of a parcel to map, or the seq
                   (int) of a task sent to this child before, whose inline result it is; or the path of a parcel that
                   holds such a list in msgpack
    options        opaque bytes of the submitter, see `payload`

A parcel is a file of the worker's private directory that belongs to one task; the worker removes it when the task ends,
and a child that mapped it keeps its view.

A packet that the child has not read yet can be taken back: the worker holds a duplicate of the socket the child reads
from, and the kernel gives each packet to exactly one reader. So a task is either begun by the child or taken back,
never both, without any agreement between the two.

Child to worker, over a pipe, a stream of msgpack lists; each result is written as soon as the task ends, so that a
long task never holds back finished ones:

    [RESULT, seq, microseconds, payload]               inline result
    [STORED, seq, microseconds, size, name]            result in a file of that name
    [FAILED, seq, microseconds, kind, failure]         failure as `payload.Failure.to_bytes()`
    [BLOCKED, seq, [seq, ...], [id, ...]]              waits for these futures (some of them, if they are many); the listed
                                                       tasks go back unbegun
    [RESUMED, seq]                                     waits no more
    [SKIPPED, seq]                                     not begun: the result of the task before that it takes isn't at hand
"""

from __future__ import annotations

from typing import Any, Final

RESULT: Final = 0
STORED: Final = 1
FAILED: Final = 2
BLOCKED: Final = 3
RESUMED: Final = 4
SKIPPED: Final = 5

FAIL_RAISED: Final = 0
"""The task's own code raised: counts against `max_retries`."""
FAIL_PERMANENT: Final = 1
"""Another attempt would fail in the same way: code or arguments that don't unpickle, a result that doesn't pickle."""
FAIL_MEMORY: Final = 2
"""MemoryError: counted apart."""

MOST_KEPT: Final = 256
"""Inline results that a child keeps for tasks that take them."""
MOST_AWAITED: Final = 64
"""Futures that a waiting task names to its worker."""
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
)
"""Types of the fields of what a child says, by kind."""


def well_formed(message: Any) -> bool:
    """Whether a child may have said this. User code can write to any descriptor of its process, the pipe's included."""
    if type(message) is not list or not message or type(message[0]) is not int or not 0 <= message[0] < len(_FIELDS):
        return False
    return tuple(map(type, message)) == _FIELDS[message[0]]
