"""No mail is lost, whatever else the transaction does that writes it."""

from __future__ import annotations

import uuid
from concurrent.futures import CancelledError
from typing import Any

import pytest

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.space import encode_id, layout_of
from fdb_schema import open_database
from futures_worker import Client, UpstreamDependencyFailedException
from idempotent_txn import run

WAIT = 20.0


def test_mail_of_a_submit_outlives_the_mail_that_the_submit_clears() -> None:
    url = f"memory:{uuid.uuid4()}"
    with Client(url, "test") as client:
        session = client._context()
        first = client.submit(abs, -1)
        assert first.cancel()
        with pytest.raises(CancelledError):
            first.result(WAIT)
        another = b"\xfe" * 16

        def mail(tr: Any) -> None:
            key = layout_of(session.space).stamped_mail(session.id, encode_id(another))
            tr.set_versionstamped_key(key, codec.pack([(another, "stream", None, 0)]))

        run(open_database(url), mail)  # of the commit that the next transaction reads at
        session.reader.read()
        second = client.submit(abs, first)
        with pytest.raises(UpstreamDependencyFailedException) as caught:
            second.exception(WAIT)
        assert isinstance(caught.value, CancelledError) and second.cancelled(), (
            "what was cancelled upstream reads as cancelled"
        )
