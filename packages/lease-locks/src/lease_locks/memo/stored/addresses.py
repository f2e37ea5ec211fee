"""Which invocation: its address, as rows, locks, arguments and people have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from lease_locks.errors import MemoUriError

_NAME_BYTES: Final = 150


@dataclass(frozen=True, slots=True)
class Memo:
    """The address of an invocation."""

    pipeline: str
    function: str
    digest: bytes

    @property
    def uri(self) -> str:
        """One text for a Shell's arguments and for people."""
        return f"{function_uri(self.pipeline, self.function)}/{self.digest.hex()}"

    @classmethod
    def from_uri(cls, uri: str) -> Memo:
        """The inverse of `uri`. Raises `MemoUriError` for anything else."""
        scheme, _, rest = uri.partition(":")
        parts = rest.split("/")
        if scheme != "memo" or len(parts) != 3:
            raise MemoUriError(f"{uri!r:.120} is no memo URI: memo:PIPELINE/FUNCTION/DIGEST")
        try:
            digest = bytes.fromhex(parts[2])
        except ValueError:
            raise MemoUriError(f"{uri!r:.120} is no memo URI: its last part isn't hexadecimal") from None
        return cls(unquote(parts[0]), unquote(parts[1]), digest)

    @staticmethod
    def prefix(uri: str) -> tuple[str, ...]:
        """(pipeline,) or (pipeline, function) of the front part of a URI. Raises `MemoUriError`."""
        scheme, _, rest = uri.partition(":")
        parts = tuple(unquote(part) for part in rest.split("/"))
        if scheme != "memo" or len(parts) > 2 or not all(parts):
            raise MemoUriError(
                f"{uri!r:.120} is no memo URI: memo:PIPELINE, memo:PIPELINE/FUNCTION or one with a digest"
            )
        return parts

    @property
    def lock_name(self) -> str:
        tail = self.function.encode()[-_NAME_BYTES:].decode("utf-8", "ignore")
        return f"memo/{self.digest.hex()}/{''.join(c if c.isprintable() else '?' for c in tail)}"

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.function}/{self.digest.hex()[:12]}"


def function_uri(pipeline: str, function: str) -> str:
    """The front part of the URIs of a function's invocations."""
    return f"memo:{quote(pipeline, safe='')}/{quote(function, safe='')}"
