"""The code of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded

ROOT = Path(__file__).parents[3]
PAGES = ("packages/fdb-embedded/README.md", "docs/fdb-embedded/tutorial.md")


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page):
        exec(block.replace("watch.wait()", "watch.cancel()"), names)
    assert names["db"] is not None
    fdb_embedded.close(names["db"])


def test_the_example_of_faults() -> None:
    opening, test = blocks("docs/fdb-embedded/faults.md")
    names: dict[str, Any] = {}
    exec(opening, names)

    def place(db: Any, order: int) -> None:
        tr = db.create_transaction()
        while True:
            try:
                tr.set_idempotency_id(b"order %010d" % order)
                tr.set_versionstamped_key(b"booking" + bytes(10) + (7).to_bytes(4, "little"), b"%d" % order)
                tr.commit().wait()
                return
            except names["fdb_embedded"].load().FDBError as error:
                tr.on_error(error).wait()

    names["place"] = place
    exec(test, names)
    for seed in range(20):
        names["test_each_order_is_booked_once"](seed)
    fdb_embedded.close(names["db"])
