"""Keys and values as people type and read them: tuples where they are tuples, else text with `\\xNN` escapes."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import InvalidOption


def parse(text: str, tuples: Any) -> bytes:
    """Bytes of `('a', 1)` (a packed tuple) or of text with escapes as Python's; raises `InvalidOption`.

    What starts with a parenthesis is a tuple: half of one would be a key that nobody means.
    """
    if text.startswith("("):
        try:
            value = ast.literal_eval(text)
            packed: bytes = tuples.pack(value if isinstance(value, tuple) else (value,))
        except (ValueError, SyntaxError, TypeError) as error:
            why = error.msg if isinstance(error, SyntaxError) else error
            raise InvalidOption(
                f"{text} isn't a tuple of literals ({why}): write one as ('a', 1), or a text that starts with ( as \\x28…"
            ) from error
        return packed
    try:
        return text.encode("utf8").decode("unicode_escape").encode("latin1") if "\\" in text else text.encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InvalidOption(f"{text!r} has a broken escape: {error}") from error


def printable(text: str) -> str:
    """What others named, for a terminal: what would command it, or not be seen, is shown as escapes."""
    return "".join(one if one.isprintable() or one in " \t\n" else ascii(one)[1:-1] for one in text)


def show(data: bytes, tuples: Any, raw: bool = False) -> str:
    """What `parse` takes back: a tuple where the bytes are one, else text with escapes."""
    if data and not raw:
        try:
            value = tuples.unpack(data)
            plain = ast.literal_eval(repr(value)) == value and tuples.pack(value) == data
        except Exception:
            plain = False
        if plain and value:
            return repr(value)
    text = "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data)
    return f"\\x28{text[1:]}" if text.startswith("(") else text
