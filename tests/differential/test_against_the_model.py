"""The same streams on a database and on the model: every value, every refusal, every error code must agree."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import seed_params
from tests.differential.replay import DatabaseReplay, ModelReplay
from tests.differential.stream import Operation, Stream

LENGTH = 120


def show(done: list[Operation], expected: object, found: object) -> str:
    lines = [*(f"  {operation!r}" for operation in done[-40:]), f"model:    {expected!r}", f"database: {found!r}"]
    return "\n".join(["they differ at the last of these operations:", *lines])


@pytest.mark.parametrize("seed", seed_params(200))
def test_a_stream_gives_what_the_model_gives(any_url: str, any_db: Any, seed: int) -> None:
    database, model = DatabaseReplay(any_db), ModelReplay()
    done: list[Operation] = []
    for operation in Stream(seed, LENGTH, simple_after_compare=any_url.startswith("fdb:")):
        done.append(operation)
        found = database.run(operation)
        expected = model.run(operation, found)
        assert found == expected, show(done, expected, found)
