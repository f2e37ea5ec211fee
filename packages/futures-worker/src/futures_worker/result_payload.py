"""Results to bytes and back: pickle protocol 5, plain values and large buffers apart.

Large buffers stay out of band, so that storing or sending them copies nothing and a reader on the same host uses them where
they lie.

A framed result (what `ResultPayload.to_bytes` writes and an object store holds), offsets from its first byte:

    b"MSB1" | uint32 n | uint64 length of the pickle | n x uint64 length of a buffer | pickle
            | each buffer, starting at the next multiple of 64

A result without large buffers is the pickle alone, which starts with 0x80; the two can't be confused.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from futures_worker import value_pickler
from futures_worker.code.code_modules import refers_to_local_module
from futures_worker.code.function_code import PYTHON_VERSION
from futures_worker.contained import inside, of_cluster
from futures_worker.errors import ResultPickleError
from futures_worker.failure import text_of

INLINE_RESULT_BYTES: Final = 16_384  # results up to this size live in the database and survive their worker
OUT_OF_BAND_BYTES: Final = 4_096  # a smaller buffer is cheaper to copy than to describe

_FRAMED: Final = b"MSB1"
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose pickles name no module, hold no future, and are one piece."""
_ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class ResultPayload:
    """A pickled result: the pickle and the buffers that stayed out of it."""

    pickled: bytes
    buffers: tuple[memoryview, ...] = ()  # flat bytes, each over OUT_OF_BAND_BYTES, in the order of the pickle
    contained: tuple[bytes, ...] = ()  # ids of the futures inside
    clusters: tuple[bytes, ...] = ()  # identities of their clusters, in the same order; b"": not known

    def contained_in(self, identity: bytes) -> tuple[bytes, ...]:
        """The futures inside that are of the cluster with this identity."""
        if not self.contained:
            return ()
        return of_cluster(dict(zip(self.contained, self.clusters, strict=True)), identity)

    @property
    def nbytes(self) -> int:
        """Bytes that `to_bytes` and `parts` produce."""
        if not self.buffers:
            return len(self.pickled)
        size = _header_bytes(len(self.buffers)) + len(self.pickled)
        for buffer in self.buffers:
            size = _aligned(size) + buffer.nbytes
        return size

    def parts(self) -> Iterator[bytes | memoryview]:
        """The framed bytes piece by piece, no buffer copied: for a vectored write, or a copy into an arena."""
        if not self.buffers:
            yield self.pickled
            return
        lengths = [buffer.nbytes for buffer in self.buffers]
        yield struct.pack(f"<4sIQ{len(lengths)}Q", _FRAMED, len(lengths), len(self.pickled), *lengths)
        yield self.pickled
        position = _header_bytes(len(lengths)) + len(self.pickled)
        for buffer in self.buffers:
            if gap := _aligned(position) - position:
                yield bytes(gap)
            yield buffer
            position = _aligned(position) + buffer.nbytes

    def write_into(self, target: memoryview) -> int:
        """Copy the framed bytes to the start of a writable flat memoryview of at least `nbytes`; returns nbytes."""
        position = 0
        for part in self.parts():
            length = len(part)
            target[position : position + length] = part
            position += length
        return position

    def to_bytes(self) -> bytes:
        """The framed bytes in one piece."""
        return self.pickled if not self.buffers else b"".join(self.parts())


def dump_result(value: Any) -> ResultPayload:
    """Pickle what a task returned. Raises ResultPickleError (permanent: another attempt would fail in the same way)."""
    if type(value) in _PLAIN:
        return ResultPayload(pickle.dumps(value, 5))
    buffers: list[memoryview] = []
    contained: dict[bytes, bytes] = {}
    outer, inside.futures = inside.futures, contained

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: pickle copies it
            return True
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        try:
            pickled = pickle.dumps(value, 5, buffer_callback=keep_in_band)
        except Exception:
            pickled = b""
        if not pickled or refers_to_local_module(pickled):
            buffers.clear()
            contained.clear()
            pickled = value_pickler.dumps(value, buffer_callback=keep_in_band, begin_again=buffers.clear)
    except Exception as error:
        raise ResultPickleError(
            f"the task returned a {type(value).__module__}.{type(value).__qualname__}, which can't be pickled: "
            f"{type(error).__name__}: {text_of(error)}. Return plain data, or what the object is made from"
        ) from error
    finally:
        inside.futures = outer
    return ResultPayload(pickled, tuple(buffers), tuple(contained), tuple(contained.values()))


def load_result(data: bytes | bytearray | memoryview) -> Any:
    """The value of a framed result. Large buffers are views into `data`, which must outlive the value.

    Arrays over a read-only `data` are read-only. Raises ResultPickleError where this process can't load it.
    """
    try:
        if data[:1] == b"\x80":
            return pickle.loads(data)
        pickled, buffers = _split_frame(memoryview(data))
        return pickle.loads(pickled, buffers=buffers)
    except ResultPickleError:
        raise
    except Exception as error:
        missing = f" (the module {error.name!r} is missing here)" if isinstance(error, ModuleNotFoundError) else ""
        raise ResultPickleError(
            f"the result can't be unpickled by this process{missing}: {type(error).__name__}: {error} (Python "
            f"{PYTHON_VERSION})"
        ) from error


def load_own(data: bytes | bytearray | memoryview) -> Any:
    """As `load_result`, and arrays can be written to whatever their size: what is read-only is copied first."""
    framed = data[:1] != b"\x80"
    return load_result(bytearray(data) if framed and memoryview(data).readonly else data)


def _split_frame(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
    if bytes(data[:4]) != _FRAMED:
        raise ResultPickleError(f"these {data.nbytes} bytes are no result: they start with {bytes(data[:4])!r}")
    count, length = struct.unpack_from("<IQ", data, 4)
    lengths = struct.unpack_from(f"<{count}Q", data, 16)
    position = _header_bytes(count)
    pickled = data[position : position + length]
    position += length
    buffers = []
    for size in lengths:
        position = _aligned(position)
        buffers.append(data[position : position + size])
        position += size
    if position > data.nbytes:
        raise ResultPickleError(f"the result is cut off: {data.nbytes} bytes of {position}")
    return pickled, buffers


def _header_bytes(buffers: int) -> int:
    return 16 + 8 * buffers


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
