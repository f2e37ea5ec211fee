"""The page of the report: HTML that needs nothing beside it, with plots as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from bench_growth import judged
from report_figures import Figure

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 240, 62, 32, 24, 34
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #566072; --rule: #d5dae2; --line: #2f62c9; --good: #22743e; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --soft: #a9b3c3; --rule: #3a4352; --line: #7ea2ee; --good: #62bd82; --bad: #ea8078 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .6rem 0 } th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--rule) }
th { font-weight: 600; vertical-align: bottom } th:first-child, td:first-child, td.unit, td.words { text-align: left }
section > div { overflow-x: auto } small, .unit, .soft { color: var(--soft) } .met { color: var(--good) } .missed { color: var(--bad); font-weight: 600 }
svg { width: 26rem; max-width: 100%; font: 12px system-ui, sans-serif } svg text { fill: var(--soft) } .title { fill: var(--ink); font-weight: 600 }
.grid { stroke: var(--rule) } .curve { fill: none; stroke: var(--line); stroke-width: 2 } .dot { fill: var(--line) }
.nlogn { fill: none; stroke: var(--soft); stroke-dasharray: 4 4 }
"""


@dataclass(frozen=True)
class Section:
    """What came of one benchmark: figures, or why there are none; which peers were left out, and why."""

    title: str
    command: str
    seconds: float
    figures: Sequence[Figure] = ()
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""


def plot(name: str, points: Sequence[tuple[int, float]], unit: str = "µs each") -> str:
    """A curve on log axes, whose decades are as long as they come; dashed, where n·log n for all would go from the first point."""
    decades = [
        (math.floor(math.log10(min(values))), max(math.ceil(math.log10(max(values))), math.floor(math.log10(min(values))) + 1))
        for values in ([n for n, _ in points], [cost for _, cost in points])
    ]  # fmt: skip

    def across(n: float) -> float:
        first, last = decades[0]
        return LEFT + (math.log10(n) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def down(cost: float) -> float:
        first, last = decades[1]
        return HEIGHT - BOTTOM - (math.log10(cost) - first) / (last - first) * (HEIGHT - TOP - BOTTOM)

    def line(kind: str, along: Sequence[tuple[float, float]]) -> str:
        return (
            f'<polyline class="{kind}" points="{" ".join(f"{across(n):.1f},{down(cost):.1f}" for n, cost in along)}"/>'
        )

    parts = [f'<text class="title" x="{LEFT}" y="14">{escape(name)}: {escape(unit)}, by how many</text>']
    for power in range(decades[0][0], decades[0][1] + 1):
        x = across(10.0**power)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(decades[1][0], decades[1][1] + 1):
        y = down(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    first, cost = points[0]
    if first > 1:
        top = 10.0 ** decades[1][1]
        by_log = [(float(n), min(top, cost * math.log(n) / math.log(first))) for n, _ in points]
        parts.append(line("nlogn", by_log))
    parts.append(line("curve", points))
    for n, cost in points:
        said = f"<title>{n:,}: {cost:,.1f} {escape(unit)}</title>"
        parts.append(f'<circle class="dot" cx="{across(n):.1f}" cy="{down(cost):.1f}" r="3.5">{said}</circle>')
    label = escape(f"{name}: {judged(points)[0]}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def number(value: float) -> str:
    """With three digits at least, where it has them."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def verdict(figure: Figure) -> str:
    """A target, and whether it's met."""
    of = "" if figure.system == "ours" else f"{escape(figure.system)} "
    if figure.met is None:
        return f"{of}{escape(figure.target)}"
    word = "met" if figure.met else "missed"
    return f'{of}{escape(figure.target)} <span class="{word}">{word}</span>'


def figures_table(figures: Sequence[Figure]) -> Iterator[str]:
    """A row for each row, a column for each system; beside a peer's number, how often it goes into ours."""
    systems = list(dict.fromkeys(figure.system for figure in figures))
    judged_at_all = any(figure.target for figure in figures)
    yield "<div><table><tr><th></th><th></th>" + "".join(f"<th>{escape(one)}</th>" for one in systems)
    yield ("<th>target</th>" if judged_at_all else "") + "</tr>"
    for row, unit in dict.fromkeys((figure.row, figure.unit) for figure in figures):
        found = {one.system: one for one in figures if (one.row, one.unit) == (row, unit)}
        yield f'<tr><td>{escape(row)}</td><td class="unit">{escape(unit)}</td>'
        for system in systems:
            cell, ours = found.get(system), found.get("ours")
            ratio = ours.value / cell.value if cell and ours and cell is not ours and cell.value else None
            times = "" if ratio is None else f" <small>{ratio:.2f}</small>"
            yield f"<td>{number(cell.value)}{times}</td>" if cell else "<td></td>"
        words = "; ".join(verdict(one) for one in found.values() if one.target)
        yield (f'<td class="words">{words}</td>' if judged_at_all else "") + "</tr>"
    yield "</table></div>"


def section_html(section: Section) -> Iterator[str]:
    """A benchmark's part of the page."""
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield f'<p class="soft"><code>{escape(section.command)}</code>, {section.seconds:,.0f} s</p>'
    if section.failed:
        yield f'<p class="missed">no figures: {escape(section.failed)}</p>'
    for name, why in section.absent.items():
        yield f"<p>without {escape(name)}: {escape(why)}</p>"
    yield "".join(plot(name, points) for name, points in section.curves.items() if points)
    if section.figures:
        yield from figures_table(section.figures)
    yield "</section>"


def page(about: Mapping[str, str], sections: Sequence[Section], quick: bool) -> str:
    """The whole page; `about`: the machine, the commit and so on."""
    every = [figure for section in sections for figure in section.figures if figure.met is not None]
    missed = [figure for figure in every if not figure.met]
    failed = [section.title for section in sections if section.failed]
    parts = ["<h1>Mainspring, measured</h1>", "<table>"]
    parts += [
        f'<tr><td>{escape(name)}</td><td class="words">{escape(value)}</td></tr>' for name, value in about.items()
    ]
    if quick:
        parts.append(
            "</table><p><b>A quick report</b>: its sizes only show that everything runs, and no target is judged."
        )
    else:
        parts.append(f"</table><p>Of {len(every)} targets {len(every) - len(missed)} are met and {len(missed)} missed.")
    parts.append(f" Without figures: {escape(', '.join(failed))}.</p>" if failed else "</p>")
    parts += [f"<li>{escape(figure.row)}: {verdict(figure)}</li>" for figure in missed]
    parts.append('<p class="soft">Small, beside a number of another system: how often that goes into ours.</p>')
    parts += ["".join(section_html(section)) for section in sections]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Mainspring, measured</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
