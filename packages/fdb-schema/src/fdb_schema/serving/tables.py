"""Tables for people: in a terminal as wide as it is, elsewhere a line a row; no character of what flows or is whole is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from fdb_schema.serving.figures import WHOLE, told
from fdb_schema.serving.logs import printable

_GAP: Final = 2
_INDENT: Final = 4  # of what flows and stands under its row
_LEAST: Final = 16  # of columns that are read with ease; where no more are left, text goes under its row


@dataclass(frozen=True)
class Table:
    """Cells under headings; one column flows over several lines, those of `whole` are never cut, the others at their ends."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]
    flowing: int
    whole: frozenset[int]
    under: bool = (
        False  # what flows stands under its row as soon as the table is too wide, and not only where little is left
    )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(console, options.max_width)

    def lines(self, console: Console, width: int | None) -> Iterator[Text]:
        """The table in so many columns; None: as many as it takes."""
        widths = [max(map(cell_len, each)) for each in zip(self.headings, *self._plain(), strict=True)]
        below = False
        if width is not None:
            room = width - self._sum(widths) + widths[self.flowing]
            least = widths[self.flowing] if self.under else min(widths[self.flowing], _LEAST)
            heading = cell_len(self.headings[self.flowing])
            below = room < max(least, heading)
            # Of little room is made what can be: short texts stay in their rows.
            widths[self.flowing] = (
                min(room, widths[self.flowing]) if room >= heading and not (below and self.under) else 0
            )
            self._narrow(widths, width)
        headings = [Text(name, style="bold") for name in self.headings]
        for cells in (headings, *self.rows):
            under = below and cell_len(cells[self.flowing].plain) > widths[self.flowing]
            yield from self._row(console, cells, widths, under)
            if under and cells is not headings:
                for line in cells[self.flowing].wrap(console, max(_LEAST, (width or 0) - _INDENT), overflow="fold"):
                    if line.plain:
                        yield _whole_line(Text(" " * _INDENT) + line)

    def _plain(self) -> Iterator[list[str]]:
        for row in self.rows:
            yield [cell.plain for cell in row]

    @staticmethod
    def _sum(widths: Sequence[int]) -> int:
        shown = [width for width in widths if width]
        return sum(shown) + _GAP * (len(shown) - 1)

    def _narrow(self, widths: list[int], width: int) -> None:
        """Take from the widest columns that may be cut, down to their headings, what the table is too wide."""
        while self._sum(widths) > width:
            able = [
                (widths[at], at)
                for at, name in enumerate(self.headings)
                if at != self.flowing and at not in self.whole and widths[at] > cell_len(name)
            ]
            if not able:
                return  # too wide: the terminal goes on in the next line, and nothing is lost
            widths[max(able)[1]] -= 1

    def _row(self, console: Console, cells: Sequence[Text], widths: list[int], below: bool) -> Iterator[Text]:
        shown: list[list[Text]] = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            if at == self.flowing:
                shown.append([] if below else list(cell.wrap(console, max(1, width), overflow="fold")))
            else:
                one = cell.copy()
                one.truncate(width, overflow="ellipsis")
                shown.append([one])
        for line in range(max(map(len, shown))):
            text = Text()
            for at, (parts, width) in enumerate(zip(shown, widths, strict=True)):
                if at and width:
                    text.append(" " * _GAP)
                part = parts[line] if line < len(parts) else Text()
                text = text + part
                text.append(" " * (width - cell_len(part.plain)))
            yield _whole_line(text)


def _whole_line(text: Text) -> Text:
    text.rstrip()
    text.no_wrap, text.overflow = True, "ignore"
    return text


def table_of(
    rows: list[dict[str, Any]],
    columns: Sequence[str],
    show: Callable[[str, Any], str] | None = None,
    style: Callable[[str, Any], str] | None = None,
    *,
    flowing: str | None = None,
    whole: Collection[str] = WHOLE,
    under: bool = False,
) -> Table:
    """The table that `print_rows` prints."""
    shown = [
        [
            Text(_cell(column, row.get(column), show), style="" if style is None else style(column, row.get(column)))
            for column in columns
        ]
        for row in rows
    ]
    return Table(
        [column.replace("_", " ") for column in columns],
        shown,
        columns.index(flowing or columns[-1]),
        frozenset(at for at, column in enumerate(columns) if column in whole),
        under,
    )


def _cell(column: str, value: Any, show: Callable[[str, Any], str] | None) -> str:
    return printable(told(value) if show is None else show(column, value)).replace("\n", "\\n")
