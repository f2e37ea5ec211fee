"""The same streams on two engines side by side, step by step: no answer may differ.

Unlike the comparison with the model this leaves nothing open: the engines must refuse the same transactions.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from conftest import ENGINES, seed_params
from tests.differential.replay import DatabaseReplay
from tests.differential.stream import Operation, Stream

import fdb_embedded
from fdb_schema import open_database

LENGTH = 120
BINDING = fdb_embedded.load(private=True)
"""The engine beside the official client, under another name than `fdb`."""


def compare(one: DatabaseReplay, two: DatabaseReplay, seed: int, **options: bool) -> None:
    done: list[Operation] = []
    for operation in Stream(seed, LENGTH, **options):
        done.append(operation)
        first, second = one.run(operation), two.run(operation)
        assert first == second, "\n".join([*(f"  {o!r}" for o in done[-40:]), f"{first!r}", f"{second!r}"])


@pytest.mark.skipif("embedded" not in ENGINES, reason="this process runs on a cluster")
@pytest.mark.parametrize("seed", seed_params(200))
def test_memory_and_a_directory_give_the_same(database_dir: Path, seed: int) -> None:
    memory, directory = open_database("memory:"), open_database(f"embedded:{database_dir}")
    compare(DatabaseReplay(memory), DatabaseReplay(directory), seed)


@pytest.mark.skipif("fdb" not in ENGINES, reason="no disposable cluster is offered")
@pytest.mark.parametrize("seed", seed_params(200 if "fdb" in ENGINES else 1, most=None if "fdb" in ENGINES else 1))
def test_a_cluster_and_memory_give_the_same(shared_url: str, seed: int) -> None:
    memory = DatabaseReplay(BINDING.open(f"memory:{uuid.uuid4().hex}"), BINDING)
    compare(DatabaseReplay(open_database(shared_url)), memory, seed, simple_after_compare=True)
