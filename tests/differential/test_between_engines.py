"""The same streams on two engines side by side, step by step: no answer may differ.

Unlike the comparison with the model this leaves nothing open: the engines must refuse the same transactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ENGINES, seed_params
from tests.differential.replay import DatabaseReplay
from tests.differential.stream import Operation, Stream

import fdb_embedded
from fdb_schema import open_database

LENGTH = 120


def compare(left: Any, right: Any, seed: int) -> None:
    one, two = DatabaseReplay(left), DatabaseReplay(right)
    done: list[Operation] = []
    for operation in Stream(seed, LENGTH):
        done.append(operation)
        first, second = one.run(operation), two.run(operation)
        assert first == second, "\n".join([*(f"  {o!r}" for o in done[-40:]), f"{first!r}", f"{second!r}"])


@pytest.mark.skipif("embedded" not in ENGINES, reason="this process runs on a cluster")
@pytest.mark.parametrize("seed", seed_params(200))
def test_memory_and_a_directory_give_the_same(database_dir: Path, seed: int) -> None:
    compare(open_database("memory:"), open_database(f"embedded:{database_dir}"), seed)


@pytest.mark.skipif("fdb" not in ENGINES, reason="no disposable cluster is offered")
@pytest.mark.parametrize("seed", seed_params(200 if "fdb" in ENGINES else 1, most=None if "fdb" in ENGINES else 1))
def test_a_cluster_and_memory_give_the_same(shared_url: str, seed: int) -> None:
    compare(open_database(shared_url), fdb_embedded.load(private=True).open(":memory:"), seed)
