"""What a client and a worker say on a line: a connection for lone requests, claimed for the worker when they are sent.

After the handshake and `{"op": "push"}` of the object server, both ends send msgpack lists, in either direction:

    client to worker   [id, token, code, args, name, call options, run_timeout]    after the commit that claimed it
    worker to client   [id, token, inline result or nil, size, object name]        after the commit that realized it
                       [id]                                                        it goes another way: look in the database

The line carries nothing that the database doesn't hold: whoever loses it, or waits too long, looks there.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from fdb_datamodel import Claim, CodeDigest, FutureResult, MailEntry, WorkerId

MAX_MESSAGE: Final = 256 << 10
"""Bytes of a message; what is larger goes by the database alone."""

_ID = 16
_TOKEN = 10

pack: Final = msgpack.Packer(autoreset=True).pack


def unpacker() -> Any:
    """Of one end of a line: raises `msgpack.UnpackException` or ValueError for what is over the limit, or no msgpack."""
    return msgpack.Unpacker(max_buffer_size=2 * MAX_MESSAGE)


def request(claim: Claim) -> bytes | None:
    """A claim as it is sent; None if it is too large."""
    if isinstance(claim.args, CodeDigest) or len(claim.args) + len(claim.call_options) > MAX_MESSAGE // 2:
        return None
    fields = (claim.id, claim.token, bytes(claim.code), claim.args, claim.name, claim.call_options, claim.run_timeout)
    packed: bytes = pack(fields)
    return packed


def read_request(message: Any, worker: WorkerId) -> Claim:
    """The claim of a request. Its session is left out: the answer goes by the line. Raises ValueError."""
    if not isinstance(message, list) or len(message) != 7:
        raise ValueError("a request has seven fields")
    future_id, token, code, args, name, call_options, run_timeout = message
    for value in (future_id, token, code, args, call_options):
        if type(value) is not bytes:
            raise ValueError("the fields of a request are bytes")
    if len(future_id) != _ID or len(token) != _TOKEN or len(code) != 32 or type(name) is not str:
        raise ValueError("a request names a future, a token, a code and a name")
    if run_timeout is not None and type(run_timeout) not in (int, float):
        raise ValueError("a timeout is a number of seconds")
    return Claim(
        future_id,
        worker,
        token,
        code=CodeDigest(code),
        args=args,
        name=name,
        call_options=call_options,
        run_timeout=run_timeout,
    )


def answer(claim: Claim, result: FutureResult | bytes) -> bytes:
    """A realized claim as it is told."""
    if isinstance(result, FutureResult):
        fields: tuple[Any, ...] = (claim.id, claim.token, result.inline, result.size, result.name)
    else:
        fields = (claim.id, claim.token, result, len(result), "")
    packed: bytes = pack(fields)
    return packed


def no_answer(future_id: bytes) -> bytes:
    """That the answer goes another way."""
    packed: bytes = pack((future_id,))
    return packed


def read_answer(message: Any, worker: WorkerId) -> tuple[bytes, MailEntry | None]:
    """The future of an answer, and its end; None: look in the database. Raises ValueError."""
    if not isinstance(message, list) or len(message) not in (1, 5) or type(message[0]) is not bytes:
        raise ValueError("an answer has one field or five")
    if len(message) == 1:
        return message[0], None
    future_id, token, inline, size, name = message
    return future_id, MailEntry(future_id, "realized", FutureResult(inline, size, name, worker, token))
