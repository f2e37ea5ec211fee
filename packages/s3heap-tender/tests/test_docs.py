"""The documentation says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

import s3heap_tender
from s3heap_tender import picture
from s3heap_tender.rows import keys

DOCS = Path(__file__).resolve().parents[3] / "docs" / "s3heap-tender"

if not DOCS.is_dir():
    pytest.skip("the documentation is not beside the package", allow_module_level=True)


def test_the_picture_of_the_states_is_made_from_the_table() -> None:
    assert (DOCS / "states.svg").read_text() == picture.svg()


def test_the_moves_of_the_guarantee_are_the_tables() -> None:
    text = (DOCS / "guarantee.md").read_text()
    assert picture.moves_table() in text


def test_the_reference_lists_every_key_of_the_sysdb() -> None:
    text = (DOCS / "reference.md").read_text()
    lines = [line.strip() for line in (keys.__doc__ or "").splitlines() if line.startswith("    (")]
    assert len(lines) > 10
    assert [line for line in lines if line not in text] == []


def test_every_public_name_has_a_docstring() -> None:
    for name in s3heap_tender.__all__:
        found = getattr(s3heap_tender, name)
        assert name == "Trigger" or found.__doc__, name
