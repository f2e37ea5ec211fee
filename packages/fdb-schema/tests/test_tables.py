"""Tables: a terminal is filled and not overrun, nothing that must stay whole loses a character, a pipe gets a row a line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support import terminal

from fdb_schema.cli import print_rows

ROWS: list[dict[str, Any]] = [
    {
        "count": 12,
        "last": "12s ago",
        "name": "…_of_a_long_name_",
        "error": "ResultPickleError",
        "id": "01a22211-bae7-7000-8000-000000000001",
        "message": "the quick brown fox jumps over the lazy dog, and then sat down for tea",
    },
    {"count": 2, "last": "1s ago", "name": "f", "error": "No", "id": "01a22211-bae8", "message": "no"},
]
COLUMNS = list(ROWS[0])


def shown(columns: int, rows: list[dict[str, Any]] = ROWS, **options: Any) -> str:
    def main() -> None:
        print_rows(rows, COLUMNS, as_json=False, **options)

    return terminal.screen(main, columns=columns)


@pytest.mark.parametrize("columns", [20, 40, 60, 76, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("under", [False, True])
def test_what_flows_and_what_is_whole_loses_no_character_in_any_width(columns: int, under: bool) -> None:
    text = shown(columns, under=under)
    squeezed = re.sub(r"\s+", "", text)
    for row in ROWS:
        assert row["id"] in text
        words = str(row["message"]).split()
        assert all(word in squeezed for word in words), text
    longest = len(ROWS[0]["id"])
    assert max(map(len, text.splitlines())) <= max(columns, longest + 2 + sum(len(name) + 2 for name in COLUMNS[:4]))


def test_what_doesnt_fit_beside_stands_under_its_row() -> None:
    assert shown(80, [row | {"id": row["id"][:13]} for row in ROWS], under=True) == (
        "count  last     name               error              id\n"
        "12     12s ago  …_of_a_long_name_  ResultPickleError  01a22211-bae7\n"
        "    the quick brown fox jumps over the lazy dog, and then sat down for tea\n"
        "2      1s ago   f                  No                 01a22211-bae8\n"
        "    no"
    )
    wide = [row | {"id": row["id"][:13]} for row in ROWS]
    assert "tea" in shown(100, wide).splitlines()[-2], "beside, over several lines"
    assert len(shown(100, wide, under=True).splitlines()) == 5
    assert len(shown(160, wide, under=True).splitlines()) == 3, "it fits"


def test_of_texts_that_have_little_room_the_short_ones_stay_in_their_rows() -> None:
    rows = [row | {"id": row["id"][:13]} for row in ROWS]
    assert shown(80 - 6, rows).splitlines()[2:] == [
        "    the quick brown fox jumps over the lazy dog, and then sat down for tea",
        "2      1s ago   f                  No                 01a22211-bae8",
        "    no",
    ]
    assert shown(79, rows) == (
        "count  last     name               error              id             message\n"
        "12     12s ago  …_of_a_long_name_  ResultPickleError  01a22211-bae7\n"
        "    the quick brown fox jumps over the lazy dog, and then sat down for tea\n"
        "2      1s ago   f                  No                 01a22211-bae8  no"
    )


def test_a_pipe_gets_one_line_a_row_however_long_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"message": f"begins {'word ' * 200}and\nends"} for row in ROWS]
    print_rows(rows, COLUMNS, as_json=False)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == COLUMNS
    assert len(lines) == 2
    assert all(line.endswith("and\\nends") for line in lines)


def test_wide_characters_take_two_columns() -> None:
    rows = [{"name": "東京", "message": "x"}, {"name": "abcd", "message": "y"}]

    def main() -> None:
        print_rows(rows, ["name", "message"], as_json=False)

    assert terminal.screen(main) == "name  message\n東京  x\nabcd  y"
