"""Secrets that change and rows that are damaged, while a cluster works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel.rows.space import ARGS, CODE, encode_id, layout_of
from futures_worker import FutureFailedError
from futures_worker.objects import store_secret
from idempotent_txn import run

WAIT = 90.0


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, size: int) -> bytes:
        self.count += 1
        return bytes(size)


def large(size: int) -> bytes:
    return bytes(size)


def use(client: Any) -> None:
    """Objects by the network and by file, lone requests, an actor with small and large calls and answers."""
    up = client.submit(large, 400_000)
    assert client.submit(len, up).result(WAIT) == 400_000
    assert up.result(WAIT) == bytes(400_000)
    for number in range(6):
        assert client.submit(abs, -number).result(WAIT) == number
    actor = client.actor(Counter)
    assert [len(call.result(WAIT)) for call in [actor.add(size) for size in (1, 100, 300_000)]] == [1, 100, 300_000]


@pytest.mark.parametrize("encrypted", [False, True])
def test_secrets_are_changed_while_a_cluster_works(cluster: Callable[..., Any], encrypted: bool) -> None:
    if encrypted:
        pytest.importorskip("cryptography")
    demo = cluster(2, 1)
    early = demo.client()
    use(early)
    if encrypted:
        run(early._context.db, store_secret.set_encryption, early._context.space, True)
    run(early._context.db, store_secret.rotate_secret, early._context.space)
    late = demo.client()
    use(late)
    use(early)
    demo.check()


def test_one_damaged_future_fails_and_workers_and_listings_go_on(cluster: Callable[..., Any]) -> None:
    demo = cluster(0, 1)
    client = demo.client()
    before, bad, worse, after = [client.submit(abs, -number) for number in range(4)]
    below = client.submit(abs, worse)
    client.flush()
    keys = layout_of(client._context.space)

    def damage(tr: Any) -> None:
        tr.set(keys.future(encode_id(bad._record.id), CODE), b"\xc1 not what it was")
        tr.set(keys.future(encode_id(worse._record.id), ARGS), b"\x2a")

    run(client._context.db, damage)
    worker = demo.start()
    assert before.result(WAIT) == 0
    assert after.result(WAIT) == 3
    for future in (worse, below):
        with pytest.raises(FutureFailedError, match="damaged"):
            future.result(WAIT)
    with pytest.raises(FutureFailedError, match="damaged"):
        client.get_future(bad.id).result(WAIT)
    listed = subprocess.run(
        [sys.executable, "-m", "futures_worker", "ls", "--db", demo.url, "--cluster", demo.name],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert listed.stdout.count("damaged") >= 2
    assert client.submit(abs, -9).result(WAIT) == 9
    assert worker.process.poll() is None
    demo.check()
