"""Fencing tokens: one per grant, strictly increasing per name in the order of the grants."""

from __future__ import annotations

from dataclasses import dataclass

from lease_locks.grants.errors import CannotMaintainLock

STAMP_BYTES = 10
_EPOCH_BYTES = 4


@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """The versionstamp of the grant's commit, behind an epoch that grows where a database's versions went back.

    Orderable; `int(token)` and `token.hex` keep the order, so a resource outside the database compares either.
    """

    epoch: int
    stamp: bytes  # 10 bytes

    def __int__(self) -> int:
        return (self.epoch << (8 * STAMP_BYTES)) | int.from_bytes(self.stamp, "big")

    __index__ = __int__

    @property
    def hex(self) -> str:
        """28 hexadecimal digits; the order of texts is the order of tokens."""
        return bytes(self).hex()

    @property
    def version(self) -> int:
        """Commit version of the grant."""
        return int.from_bytes(self.stamp[:8], "big")

    def __bytes__(self) -> bytes:
        return self.epoch.to_bytes(_EPOCH_BYTES, "big") + self.stamp

    def __str__(self) -> str:
        return self.hex

    @classmethod
    def from_bytes(cls, data: bytes) -> FencingToken:
        """The inverse of `bytes(token)`."""
        if len(data) != _EPOCH_BYTES + STAMP_BYTES:
            raise CannotMaintainLock(f"a fencing token has {_EPOCH_BYTES + STAMP_BYTES} bytes, found {data!r:.80}")
        return cls(int.from_bytes(data[:_EPOCH_BYTES], "big"), data[_EPOCH_BYTES:])

    @classmethod
    def from_hex(cls, text: str) -> FencingToken:
        """The inverse of `token.hex`. Raises `CannotMaintainLock` for anything else."""
        try:
            return cls.from_bytes(bytes.fromhex(text))
        except ValueError:
            raise CannotMaintainLock(
                f"writer id {text!r:.80} isn't one: a writer id is lease.writer_id, 28 hexadecimal digits"
            ) from None
