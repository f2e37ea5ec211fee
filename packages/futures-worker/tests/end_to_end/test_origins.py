"""Handles that travel between a client and the tasks of its cluster, whatever clients and directories those use besides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from futures_worker import Client, current_client

WAIT = 60.0
Cluster = Callable[..., Any]


class Box:
    def __init__(self, held: Any) -> None:
        self.held = held

    def get(self) -> Any:
        return self.held


def test_a_task_uses_the_scripts_client_and_its_handles_beside_another_one(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    demo = shared_cluster(workers=1, slots=2)
    client = demo.client()
    box = client.actor(Box, 7)

    def task(folder: str) -> dict[str, Any]:
        os.makedirs(folder)
        os.chdir(folder)
        with Client("embedded:./own", "own") as own:
            assert current_client() is own
            there = own.put("of another database")
            seen = {"actor": box.get().result(WAIT), "nested": client.submit(abs, -3).result(WAIT)}
            return {**seen, "returned": client.submit(abs, -4), "there": there, "files": os.listdir(folder)}

    answer = client.submit(task, str(tmp_path / "task"), max_retries=0).result(WAIT)
    with Client("memory:", "another"):
        assert answer["returned"].result(WAIT) == 4
        assert answer["there"].result(WAIT) == "of another database"
    assert (answer["actor"], answer["nested"], answer["files"]) == (7, 3, ["own"])
    demo.check()
