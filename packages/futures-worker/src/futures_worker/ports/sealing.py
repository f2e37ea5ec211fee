"""What is sent after the handshake: each piece carries a tag of the session's key, its place and its kind, and may be encrypted.

    tag        BLAKE2b (16 bytes), keyed by the session, over: counter (8) | kind (1) | length of clear (1) | clear | data
    encrypted  ChaCha20-Poly1305 under the same key, the counter as nonce, kind and clear as what is sent along with it

Either end has a key of its own to send by, and counts what it sent: a piece that was changed, left out, sent twice, moved to
another place or taken from another session ends the connection.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from futures_worker.errors import MainspringError, WireError

Buffer = bytes | bytearray | memoryview

TAG_BYTES: Final = 16
HEADER: Final = 0
PIECE: Final = 1
RECORD: Final = 2

_PLACE: Final = struct.Struct(">QBB")
_LENGTH: Final = struct.Struct(">I")
RECORD_BYTES: Final = 256 << 10
"""Bytes of a record at most; what is longer goes as several."""


class Half:
    """One direction of a session. One thread at a time uses it."""

    __slots__ = ("_aead", "_counter", "_key")

    def __init__(self, key: bytes, encrypted: bool) -> None:
        """`key`: 32 bytes, of this direction of this session and nothing else."""
        self._key = key
        self._counter = 0
        self._aead: Any = _aead(key) if encrypted else None

    def seal(self, kind: int, data: Buffer, clear: bytes = b"") -> tuple[Buffer, bytes]:
        """What to send for `data`, and the tag to send after it. `clear` isn't sent by this, and is vouched for as well."""
        place = _PLACE.pack(self._counter, kind, len(clear))
        self._counter += 1
        if self._aead is None:
            return data, self._tag(place, clear, data)
        sealed = self._aead.encrypt(place[:8].rjust(12, b"\0"), bytes(data), place[8:] + clear)
        return memoryview(sealed)[:-TAG_BYTES], sealed[-TAG_BYTES:]

    def open(self, kind: int, data: memoryview, tag: bytes, clear: bytes = b"") -> None:
        """Check what came, and decrypt it in its place. Raises `WireError` if it isn't what the peer sent next."""
        place = _PLACE.pack(self._counter, kind, len(clear))
        self._counter += 1
        if self._aead is None:
            if not hmac.compare_digest(tag, self._tag(place, clear, data)):
                raise _changed()
            return
        from cryptography.exceptions import InvalidTag

        try:
            data[:] = self._aead.decrypt(place[:8].rjust(12, b"\0"), bytes(data) + tag, place[8:] + clear)
        except InvalidTag:
            raise _changed() from None

    def _tag(self, place: bytes, clear: bytes, data: Buffer) -> bytes:
        digest = blake2b(place + clear, digest_size=TAG_BYTES, key=self._key)
        digest.update(data)
        return digest.digest()


class Halves(NamedTuple):
    """Both directions of a session."""

    sending: Half
    receiving: Half


class Records:
    """A stream of bytes in sealed records: length (4, big endian) | bytes | tag. No I/O."""

    def __init__(self, halves: Halves) -> None:
        self._sending, self._receiving = halves
        self._held = bytearray()

    def pack(self, data: Buffer) -> bytes:
        """What to send for `data`, all of it and in order."""
        parts: list[Buffer] = []
        view = memoryview(data)
        for at in range(0, len(view), RECORD_BYTES):
            piece = view[at : at + RECORD_BYTES]
            length = _LENGTH.pack(len(piece))
            parts += (length, *self._sending.seal(RECORD, piece, length))
        return b"".join(parts)

    def state(self) -> tuple[bytes, int]:
        """What `go_back` needs to receive again what is fed from now on."""
        return bytes(self._held), self._receiving._counter

    def go_back(self, state: tuple[bytes, int]) -> None:
        """To where `state()` was this: what was fed since is to be fed again."""
        held, self._receiving._counter = state
        self._held = bytearray(held)

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """The bytes of the records that are whole now. Raises `WireError`; the connection is over then."""
        held = self._held
        held += data
        at = 0
        try:
            while len(held) - at >= _LENGTH.size:
                length = bytes(held[at : at + _LENGTH.size])
                (size,) = _LENGTH.unpack(length)
                if not 0 < size <= RECORD_BYTES:
                    raise WireError(f"the peer announced a record of {size} bytes, over the limit of {RECORD_BYTES}")
                end = at + _LENGTH.size + size
                if len(held) < end + TAG_BYTES:
                    return
                piece = bytearray(held[at + _LENGTH.size : end])
                self._receiving.open(RECORD, memoryview(piece), bytes(held[end : end + TAG_BYTES]), length)
                at = end + TAG_BYTES
                yield bytes(piece)
        finally:
            del held[:at]


def _changed() -> WireError:
    return WireError("what came isn't what the peer sent: it was changed on its way, or comes from another connection")


def _aead(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError as error:
        raise EncryptionMissingError from error
    return ChaCha20Poly1305(key)


class EncryptionMissingError(MainspringError):
    """The cluster's connections are to be encrypted, and this process can't."""

    def __init__(self) -> None:
        super().__init__(
            "connections of this cluster are encrypted, which needs the package `cryptography`: install it "
            "(the extra `encryption` of futures-worker), or say `futures-worker secret encrypt --off`"
        )
