"""Every decoder of stored or received bytes: what was mutated is read, or refused by the decoder's own error, and cheaply.

A decoder that is added is added to the table, with a good input and the error that it raises for anything else. What an
integer in the input says is never allocated.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import io
import json
import os
import random
import struct
import tracemalloc
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import pytest

import fdb_datamodel as dm
from fdb_datamodel.rows import codec
from fdb_embedded.errors import EmbeddedError
from fdb_embedded.pure import conflict, idempotency, keys
from fdb_embedded.storage import formats, journal
from fdb_embedded.tools import archive
from fdb_schema import RecordError
from fdb_schema import records as schema_records
from fdb_schema.records import Record
from fdb_schema.serving.configuration import ConfigurationError, read_configuration
from futures_worker.errors import WireError
from futures_worker.failure import Failure
from futures_worker.objects import object_names, store_secret
from futures_worker.ports import line
from futures_worker.ports.handshake import (
    ClientHandshake,
    Destination,
    FixedSecret,
    Identity,
    ServerHandshake,
)
from futures_worker.ports.sealing import Half, Halves, Records
from futures_worker.worker import messages
from idempotent_txn.ids import rows
from lease_locks import CannotMaintainLock
from lease_locks.grants.tokens import FencingToken
from lease_locks.memo.stored.addresses import Memo
from s3heap_tender.errors import CorruptObjectError, NewerFormatError
from s3heap_tender.rows.items import HeapItem, ObjectHeader, decode_object, encode_object
from s3heap_tender.rows.naming import ObjectName

SEED = int(os.environ.get("MAINSPRING_DECODER_SEED", "1"))
MUTATIONS = int(os.environ.get("MAINSPRING_DECODER_MUTATIONS", "400"))
MOST_BYTES = 4 << 20
"""A decoder of inputs under a kilobyte takes no more memory than this."""
GIANTS = [
    b"\xce\x7f\xff\xff\xff",
    b"\xcf\x7f" + b"\xff" * 7,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
]

for module in (
    "fdb_schema.clock",
    "fdb_schema.blobs",
    "lease_locks.memo.stored.records",
    "lease_locks.grants.records",
    "lease_locks.duties",
    "s3heap_tender.rows.records",
):
    importlib.import_module(module)


class Decoder(typing.NamedTuple):
    name: str
    decode: Callable[[bytes], Any]
    good: bytes
    errors: tuple[type[Exception], ...]


def _sample(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if args and type(None) in args:
        return _sample(next(one for one in args if one is not type(None)))
    if origin is tuple:
        return (_sample(args[0]),) if args[-1] is Ellipsis else tuple(map(_sample, args))
    if origin in (list, dict):
        return origin()
    if isinstance(hint, type) and issubclass(hint, Record):
        return record(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    plain = {
        int: 300,
        float: 1.5,
        str: "text",
        bytes: b"bytes",
        bool: True,
        UUID: UUID(int=5),
        tuple: (),
        dict: {},
        list: [],
    }
    return plain.get(hint)


def record(kind: type[Record]) -> Record:
    hints = typing.get_type_hints(kind)
    return kind(**{one.name: _sample(hints[one.name]) for one in dataclasses.fields(kind) if one.name != "extra"})


def _all_records(kind: type[Record] = Record) -> list[type[Record]]:
    found = [one for sub in kind.__subclasses__() for one in (sub, *_all_records(sub))]
    # A class with slots is made anew by its decorator: the one that its module knows counts.
    named = {(one.__module__, one.__name__) for one in found}
    ours = [one for one in sorted(named) if one[0].split(".")[0] in ("fdb_schema", "lease_locks", "s3heap_tender")]
    return [getattr(importlib.import_module(module), name) for module, name in ours]


def _dump(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(archive.read(io.StringIO(data.decode("utf-8", "replace"))))


def _hello(data: bytes) -> Any:
    return ServerHandshake(FixedSecret(b"s" * 32), Identity("objects", "127.0.0.1", 1)).answer(
        data.ljust(177, b"\0")[:177]
    )


def _good_hello() -> bytes:
    return ClientHandshake(FixedSecret(b"s" * 32), Destination("objects", "127.0.0.1", 1)).hello(
        b"mspring2" + bytes(32)
    )


def _line(read: Callable[..., Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        unpacker = line.unpacker()
        unpacker.feed(data)
        return [read(message, WORKER) for message in unpacker]

    return decode


def _configuration(tmp: Path) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        tmp.write_bytes(data)
        return read_configuration(tmp)

    return decode


WORKER = dm.WorkerId("10.0.0.1", 4000, b"i" * 16)
RESULT = dm.FutureResult(None, 5, "name", WORKER, b"t" * 10, 7)
CLAIM = dm.Claim(b"f" * 16, WORKER, b"t" * 10, code=dm.CodeDigest(b"c" * 32), args=b"a", name="n")
OPTIONS = dm.FutureSpec(b"c", name="n", run_timeout=5.0, call_options=b"o", backoff=dm.Backoff(1, 2, 3))
ITEM = HeapItem(UUID(int=1), UUID(int=2), 3, 4)
DUMP = "\n".join(
    [
        json.dumps({"fdb_embedded_dump": 1, "version": 5}),
        json.dumps({"k": "YQ==", "v": "Yg=="}),
        '{"rows": 1, "crc32": 2659403885}',
        "",
    ]
)
STORED = (RecordError,)
ENGINE = (EmbeddedError,)


def table(tmp: Path) -> list[Decoder]:
    found = [
        Decoder("msgpack of fdb-schema", schema_records.unpack, schema_records.pack({"a": (1, b"x")}), STORED),
        *(Decoder(f"record {kind.__name__}", kind.decode, record(kind).encode(), STORED) for kind in _all_records()),
        Decoder("settings", _configuration(tmp / "settings.toml"), b'db = "memory:"\n[worker]\nslots = 4\n', (ConfigurationError,)),
        Decoder("code", codec.unpack_code, codec.pack_code(b"s" * 16, dm.CodeDigest(b"c" * 32), 5), STORED),
        Decoder("arguments", codec.unpack_args, codec.pack_args(b"args", (b"d" * 16,)) or b"", STORED),
        Decoder("arguments by digest", codec.unpack_args, codec.pack_args(dm.CodeDigest(b"c" * 32), ()) or b"", STORED),
        Decoder("claim", codec.unpack_claim, codec.pack_claim(WORKER, b"t" * 10, 5, 1), STORED),
        Decoder("claim of a worker", codec.unpack_claim_row, codec.pack_claim_row(WORKER, b"t" * 10), STORED),
        Decoder("claims of a worker", codec.unpack_claims_row, codec.pack_claims_row(b"i" * 16, [b"f" * 16, b"g" * 16]), STORED),
        Decoder("what a claim was made with", codec.claimed_with, codec.claim_head(WORKER, b"t" * 10, 5, together=True) + codec.pack(1) + codec.pack(b"f" * 16), STORED),
        Decoder("result", codec.unpack_latest_result, codec.pack_latest_result(RESULT, b"t" * 10, 5), STORED),
        Decoder("copy", codec.unpack_result_row, codec.pack_result_row(RESULT, b"t" * 10, 5), STORED),
        Decoder("failure row", codec.unpack_failure, codec.pack_failure(dm.Failure("error", "m", b"p", "t", (b"c" * 16,))), STORED),
        Decoder("requirements", codec.unpack_requirements, codec.pack_requirements((1, 2, 3), 4, dm.Locality(WORKER)) or b"", STORED),
        Decoder("assignment", codec.unpack_assignment, codec.pack_assignment(dm.Locality(WORKER), (1, 2, 3)), STORED),
        Decoder("options", codec.unpack_options, codec.pack_options(codec.options_of(OPTIONS)) or b"", STORED),
        Decoder("worker", codec.unpack_worker_info, codec.pack_worker_info(b"i" * 16, dm.WorkerInfo(boot_id="b")), STORED),
        Decoder("heartbeat", codec.unpack_heartbeat, codec.pack_heartbeat(dm.Heartbeat(1)), STORED),
        Decoder("mail", codec.unpack_mail, codec.pack([(b"i" * 16, "realized", b"v", 1)]), STORED),
        Decoder("session", codec.unpack_session, codec.pack((1, 2, "h", 3)), STORED),
        Decoder("shape", codec.unpack_shape, codec.pack((1, 2, 3)), STORED),
        Decoder("name", codec.unpack_bytes, codec.pack(b"n"), STORED),
        Decoder("number", codec.unpack_int, codec.pack(300), STORED),
        Decoder("failure", Failure.from_bytes, Failure("ValueError", "m", "t", b"p").to_bytes(), STORED),
        Decoder("secrets", store_secret.unpack_secrets, store_secret.pack_secrets(store_secret.StoredSecrets((b"s" * 32,))), STORED),
        Decoder("hello", _hello, _good_hello(), (WireError,)),
        Decoder("records of a stream", _records, bytes(_sender().pack(b"data")), (WireError,)),
        Decoder("request of a line", _line(line.read_request), line.request(CLAIM) or b"", (ValueError, msgpack.UnpackException)),
        Decoder("answer of a line", _line(line.read_answer), line.answer(CLAIM, b"r"), (ValueError, msgpack.UnpackException)),
        Decoder("message of a child", _message, msgpack.packb([messages.RESULT, 0, 10, 5, b"v"]), (ValueError, msgpack.UnpackException)),
        Decoder("name of an object", lambda data: object_names.parse_name(data.decode("latin-1")), b"0" * 32 + b"-copy-00000000", ()),
        Decoder("row of ids", lambda data: rows.decode_row(b"p", b"p" + bytes(9), data), rows.row_value([(b"id", 1)], 5), (rows.RowError,)),
        Decoder("key of ids", lambda key: rows.decode_row(b"p", key, bytes(16)), b"p" + bytes(9), (rows.RowError,)),
        Decoder("expired version", rows.decode_expired_version, rows.encode_expired_version(5) + bytes(30), (rows.RowError,)),
        Decoder("commit record", conflict.unpack_record, conflict.pack_record((b"k",), [(b"a", b"b")], [(b"id", 1, True)], 5), ENGINE),
        Decoder("node of long keys", lambda data: keys.stem_of(b"node", data), keys.STEMS + bytes(keys.STEM - len(keys.STEMS)), ENGINE),
        Decoder("long keys of format 2", lambda data: formats._rows(b"node", data, None), struct.pack("<II", 6, 5) + b"suffixvalue", ENGINE),
        Decoder("engine's row of ids", lambda data: idempotency.parse_row(b"\0" * 40, data), idempotency.rows_of(5, [(b"id", 1, True)], 5)[0][1], ENGINE),
        Decoder("journal", lambda data: journal.find(data, 0), journal.pack(1, 2, [], b"record"), ENGINE),
        Decoder("dump", _dump, DUMP.encode(), ENGINE),
        Decoder("heap object", lambda data: decode_object("k", data), encode_object(ObjectHeader(1, 2, 0, 3, 4, b"w"), [ITEM.pack()]), (CorruptObjectError, NewerFormatError)),
        Decoder("key of a heap object", lambda data: ObjectName.parse(data.decode("latin-1")), ObjectName(1, 3600).key.encode(), ()),
        Decoder("memo uri", lambda data: Memo.from_uri(data.decode("latin-1")), b"memo:p/f/00ff", (ValueError,)),
        Decoder("token", FencingToken.from_bytes, bytes(FencingToken(1, b"v" * 10)), (CannotMaintainLock,)),
    ]  # fmt: skip
    return found


def _sender() -> Records:
    return Records(Halves(Half(b"a" * 32, False), Half(b"b" * 32, False)))


def _records(data: bytes) -> Any:
    return list(Records(Halves(Half(b"b" * 32, False), Half(b"a" * 32, False))).feed(data))


def _message(data: bytes) -> bool:
    return messages.well_formed(msgpack.unpackb(data))


def mutated(good: bytes, rng: random.Random) -> bytes:
    bad = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(bad) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(bad):
            bad[at] = rng.randrange(256)
        elif kind == 1:
            del bad[at:]
        elif kind == 2:
            bad[at:at] = rng.randbytes(rng.randint(1, 5))
        elif kind == 3 and at < len(bad):
            bad[at] ^= 1 << rng.randrange(8)
        elif kind == 4:
            bad[at : at + rng.randint(0, 6)] = rng.choice(GIANTS)
        else:
            begin = rng.randrange(len(bad) + 1)
            bad[at:at] = bad[begin : begin + rng.randint(1, 20)]
    return bytes(bad)


def inputs(good: bytes, rng: random.Random) -> list[bytes]:
    odd = [b"", b"\0" * 40, b"\xff" * 40, b"\x91" * 5000, b"[" * 5000, b"a=" + b"[" * 5000, b"\x81" * 3000, *GIANTS]
    giants = [good[:at] + giant + good[at + 1 :] for at in range(len(good)) for giant in GIANTS[:2]]
    return [*odd, *giants[:400], *(mutated(good, rng) for _ in range(MUTATIONS))]


def test_what_was_mutated_is_refused_by_the_decoders_own_error_and_costs_little(tmp_path: Path) -> None:
    decoders = table(tmp_path)
    assert len(decoders) > 50
    assert len({one.name for one in decoders}) == len(decoders)
    wrong: list[str] = []
    tracemalloc.start()
    try:
        for one in decoders:
            rng = random.Random(f"{SEED} {one.name}")
            one.decode(one.good)
            for data in inputs(one.good, rng):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                try:
                    one.decode(data)
                except one.errors:
                    pass
                except Exception as error:
                    wrong.append(f"{one.name}: {type(error).__name__}: {error} for {data[:60]!r}")
                    break
                peak = tracemalloc.get_traced_memory()[1] - before
                if peak > MOST_BYTES:
                    wrong.append(f"{one.name}: {peak:,} bytes allocated for {data[:60]!r}")
                    break
    finally:
        tracemalloc.stop()
    assert wrong == [], f"seed {SEED}"


@pytest.mark.parametrize("kind", _all_records(), ids=lambda kind: kind.__name__)
def test_a_record_takes_no_field_of_another_type(kind: type[Record]) -> None:
    good = record(kind)
    assert kind.decode(good.encode()) == good
    array = list(schema_records.unpack(good.encode()))
    for at, value in enumerate(array):
        other = {"not": "this"} if not isinstance(value, dict) else 5
        bad = schema_records.pack([*array[:at], other, *array[at + 1 :]])
        with pytest.raises(RecordError):
            kind.decode(bad)
