"""The state table as a picture and as text, for the documentation: made from `states`, never drawn by hand.

python -m s3heap_tender.picture svg > states.svg
python -m s3heap_tender.picture moves
"""

from __future__ import annotations

import sys
from html import escape
from typing import Final

from s3heap_tender.rows.states import CELLS, MOVES, NEVER, Cell, Column, Move, Row, cell_name

_WIDTH, _HEIGHT = 980, 640
_BOX_W, _BOX_H = 190, 84
_X: Final = {Column.ON_HEAP: 190, Column.NOT_ON_HEAP: 600}
_Y: Final = {Row.A: 60, Row.B: 280, Row.C: 500}
_WORDS: Final = {Row.A: "not in the sysdb", Row.B: "scheduled or running", Row.C: "waiting for writes"}


def svg() -> str:
    """The six cells and every allowed move, each with its label and operations."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>Where an item may be, and every move it may make</title>",
        '<defs><marker id="tip" markerWidth="9" markerHeight="7" refX="8" refY="3.5" orient="auto">',
        '<path d="M0,0 L9,3.5 L0,7 z" fill="#345"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
    ]
    for column, x in _X.items():
        words = "on the heap" if column is Column.ON_HEAP else "not on the heap"
        parts.append(f'<text x="{x + _BOX_W / 2}" y="32" text-anchor="middle" font-weight="bold">{words}</text>')
    for cell in CELLS:
        x, y = _corner(cell)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="8" fill="#eef3f8" stroke="#345"/>'
            f'<text x="{x + _BOX_W / 2}" y="{y + 36}" text-anchor="middle" font-size="20" font-weight="bold">'
            f'{cell_name(cell)}</text><text x="{x + _BOX_W / 2}" y="{y + 60}" text-anchor="middle">{_WORDS[cell[0]]}</text>'
        )
    parts.extend(_arrow(move) for move in MOVES)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _corner(cell: Cell) -> tuple[int, int]:
    return _X[cell[1]], _Y[cell[0]]


def _arrow(move: Move) -> str:
    (sx, sy), (tx, ty) = _corner(move.source), _corner(move.target)
    if sx != tx:
        path, at, anchor = _within_a_row(sx, tx, sy)
    elif abs(sy - ty) > _BOX_H * 4:
        path, at, anchor = _around_a_row(sx, sy, ty, on_the_left=move.source[1] is Column.ON_HEAP)
    else:
        path, at, anchor = _to_the_next_row(sx, sy, ty)
    alone = move.label in move.operations
    lines = _wrapped(move.label if alone else f"{move.label}: {', '.join(sorted(move.operations))}")
    spans = "".join(
        f'<tspan x="{at[0]}" dy="{0 if number == 0 else 14}">{escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return (
        f'<path d="{path}" fill="none" stroke="#345" marker-end="url(#tip)"/>'
        f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" fill="#234">{spans}</text>'
    )


_Drawn = tuple[str, tuple[float, float], str]
"""An arrow's path, where its label is, and which end of the label is there."""


def _within_a_row(sx: int, tx: int, sy: int) -> _Drawn:
    right = tx > sx
    y = sy + (28 if right else 58)
    start, end = (sx + _BOX_W, tx) if right else (sx, tx + _BOX_W)
    return f"M{start},{y} L{end},{y}", ((start + end) / 2, y - 6), "middle"


def _around_a_row(sx: int, sy: int, ty: int, *, on_the_left: bool) -> _Drawn:
    """Between A and C."""
    outer, edge, inward, anchor = (
        (sx - 90, sx, 15, "end") if on_the_left else (sx + _BOX_W + 90, sx + _BOX_W, -15, "start")
    )
    path = f"M{edge},{sy + 42} C{outer},{sy - 40} {outer},{ty + _BOX_H + 40} {edge},{ty + 42}"
    return path, (outer + inward, sy - 176), anchor


def _to_the_next_row(sx: int, sy: int, ty: int) -> _Drawn:
    if ty > sy:
        x, start, end = sx + 60, sy + _BOX_H, ty
        return f"M{x},{start} L{x},{end}", (x - 6, (start + end) / 2 + 14), "end"
    x, start, end = sx + 130, sy, ty + _BOX_H
    return f"M{x},{start} L{x},{end}", (x + 6, (start + end) / 2 - 8), "start"


def _wrapped(label: str) -> list[str]:
    """Long labels in lines of at most about 26 characters."""
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) > 25:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def moves_table() -> str:
    """The allowed moves and the forbidden ones as a Markdown table."""
    rows = ["| move | label | operations | who | why |", "|---|---|---|---|---|"]
    rows += [
        f"| {cell_name(m.source)} → {cell_name(m.target)} | {m.label} | {', '.join(sorted(m.operations))} | {m.who} | {m.why} |"
        for m in MOVES
    ]
    rows += [
        f"| {cell_name(source)} → {cell_name(target)} | never | | | {why} |" for (source, target), why in NEVER.items()
    ]
    rows.append("| the twelve that change both | never | | | X: no step changes the sysdb and the heap at once |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(moves_table() if sys.argv[1:] == ["moves"] else svg())
