"""The report: what benchmarks print is read, growth is judged, peers that aren't here are named, and one page comes of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import bench_growth  # noqa: E402
import make_site  # noqa: E402
import report  # noqa: E402
import report_page  # noqa: E402
from report_figures import READERS, Figure, parsed  # noqa: E402

SCRIPTS = {path.stem.removeprefix("bench_") for path in (ROOT / "tools").glob("bench_*.py")}
PRINTED = {
    "adapters": {"ours": {"calls": 9.0}, "Dask.distributed": {"nodes": 3.0}},
    "datamodel": {"futures/s": {"submit": 5.0}, "ms of a claim": {"empty": 1.0}},
    "engine": {
        "rates": [{"part": "work", "case": "set", "contestant": "lmdb", "per_second": 7.0}],
        "targets": [{"what": "set, by SQLite", "found": 0.9, "target": 1.0, "unit": "x", "met": False}],
    },
    "futures": {"results": {"ours": {"throughput": 90.0, "put": 0.7}, "ray": {"throughput": 10.0}}},
    "growth": {"set": [[1000, 5.0], [10000, 5.1]], "workers": [[1, 5.0]]},
    "heap": {"rows": {"push_rate": 5.0, "scan_s": 1.0}, "targets": {"push_rate": [">=", 4.0]}},
    "heap_requests": [{"tasks": 1000, "objects": 5.0}],
    "idempotency": {
        "modes": [
            {"work": "write", "threads": 1, "mode": "baseline", "ratio": 1.0, "target": None},
            {"work": "write", "threads": 1, "mode": "lanes", "ratio": 0.8, "target": 0.85},
        ]
    },
    "leases": {
        "targets": {"memo": ["ms p50", 0.11]},
        "results": {"memo": {"lease-locks": 0.1, "joblib.Memory": 0.09}},
    },
    "objects": {"ms": {"put": 3.0}, "ratio": 0.8, "target": 0.7},
    "programs": {
        "rows": {"steps": "steps per second", "resume": "resume (ms)"},
        "results": {"ours": {"steps": 100.0, "resume": 900.0}, "Celery Redis": {"steps": 50.0}},
        "targets": {"steps": 1000.0, "resume": 1000.0},
    },
    "transaction": [{"work": "set", "microseconds": 9.0, "parts": [{"layer": "LMDB", "microseconds": 3.0}]}],
}  # fmt: skip
"""One of each kind of line that each benchmark prints."""
JUDGED = {
    "engine": [False], "futures": [False, True], "growth": [True], "heap": [True], "idempotency": [False], "leases": [False],
    "objects": [True], "programs": [False, True],
}  # fmt: skip


def test_every_benchmark_is_read_and_is_in_the_report() -> None:
    assert set(READERS) == set(PRINTED) == {bench.script for bench in report.BENCHES.values()} == SCRIPTS


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_benchmark_prints_becomes_figures(name: str) -> None:
    printed = PRINTED[name]
    figures, found = parsed(name, f"something before\n{json.dumps(printed)}\n")
    assert found == printed
    assert [figure.met for figure in figures if figure.met is not None] == JUDGED.get(name, [])
    numbers = re.findall(r"[\d.]+", json.dumps(printed))
    assert all(str(figure.value) in numbers for figure in figures)
    assert all(figure.row and figure.system for figure in figures)


def test_a_figure_is_held_to_a_multiple_of_its_peer_and_a_memo_to_joblib() -> None:
    ours, _, theirs = parsed("futures", json.dumps(PRINTED["futures"]))[0]
    assert (ours.target, ours.met, theirs.system) == ("≥ 10 x ray (9.00)", False, "ray")
    assert parsed("leases", json.dumps(PRINTED["leases"]))[0][0].target == "≤ 0.09"


@pytest.mark.parametrize("printed", ["", "no json", "[]", '{"results": 3}', '{"results": {"ours": {"x": null}}}'])
def test_what_is_no_figure_names_the_benchmark(printed: str) -> None:
    with pytest.raises(ValueError, match=r"bench_futures\.py printed no figures"):
        parsed("futures", printed)


@pytest.mark.parametrize("title", report.BENCHES)
def test_the_arguments_of_a_run_are_options_of_its_benchmark(title: str) -> None:
    bench = report.BENCHES[title]
    source = (ROOT / "tools" / f"bench_{bench.script}.py").read_text()
    for option in re.findall(r"--[\w-]+", f"{bench.full} {bench.quick} --json"):
        assert f'"{option}"' in source, f"bench_{bench.script}.py has no {option}"


# --- growth


def test_the_power_of_a_curve_is_found() -> None:
    counts = bench_growth.counts(1_000, 100_000)
    assert counts == [1_000, 3_000, 10_000, 30_000, 100_000]
    assert bench_growth.exponent([(n, 7 * n**0.5) for n in counts]) == pytest.approx(0.5)
    assert bench_growth.exponent([(1_000, 3.0)]) is None


@pytest.mark.parametrize(
    ("cost", "words", "good"),
    [
        (lambda n: 5.0, "flat", True),
        (lambda n: 100 / n, "flat", True),
        (lambda n: bench_growth.math.log(n), "n·log n", True),
        (lambda n: n**0.4, "grows", False),
        (lambda n: 1.0 + n / 1e5, "grows", False),
    ],
)
def test_flat_and_n_log_n_and_more(cost: object, words: str, good: bool) -> None:
    curve = [(n, cost(n)) for n in bench_growth.counts(1_000, 1_000_000)]
    said, judged = bench_growth.judged(curve)
    assert (said.split(":")[0], judged) == (words, good)


def test_of_few_or_of_one_size_log_n_excuses_nothing() -> None:
    assert bench_growth.judged([(1, 5.0), (64, 15.0)])[1] is False
    assert bench_growth.judged([(1_000, 5.0)]) == ("one size: no growth to judge", None)


@pytest.mark.parametrize("points", [[(1000, 5.0)], [(1, 3.0), (64, 700.0)], [(1000, 0.02), (1_000_000, 80.0)]])
def test_a_plot_has_every_point_within_it_and_says_its_judgement(points: list[tuple[int, float]]) -> None:
    plot = ElementTree.fromstring(report_page.plot("a < b", points))
    assert bench_growth.judged(points)[0] in plot.attrib["aria-label"]
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in plot.iter("circle")]
    assert len(dots) == len(points)
    assert all(
        report_page.LEFT <= x <= report_page.WIDTH and report_page.TOP <= y <= report_page.HEIGHT for x, y in dots
    )
    assert sorted(dots) == dots


# --- peers and the page


@pytest.mark.parametrize(
    ("need", "says"),
    [
        (report.Need("json"), ""),
        (report.Need("no_such.module"), "no_such.module isn't installed"),
        (report.Need("json", "NOBODY"), "MAINSPRING_NOBODY_PYTHON isn't set"),
        (report.Need("json", "GONE"), "/gone/python of MAINSPRING_GONE_PYTHON doesn't run"),
        (report.Need("no_such_module", "THIS"), "can't import it: ModuleNotFoundError"),
        (report.Need("json", "THIS"), ""),
        (report.Need(commands=("no-such-command", "nor-this")), "no no-such-command nor nor-this on the PATH"),
        (report.Need(commands=("no-such-command", "sh")), ""),
        (report.Need(variable="NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE isn't set"),
    ],
)
def test_why_a_peer_is_left_out(need: report.Need, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_THIS_PYTHON", sys.executable)
    monkeypatch.setenv("MAINSPRING_GONE_PYTHON", "/gone/python")
    found = need.missing()
    assert says in found if says else found == ""


def test_a_page_has_numbers_ratios_targets_and_reasons_and_needs_nothing() -> None:
    figures = [
        Figure("rate", "ours", 30.0, "per s").held_to(">=", 2.0, 3.0, " x ray"),
        Figure("rate", "ray", 10.0, "per s"),
        Figure("cost <b>", "ours", 2.0, "ms").held_to("<=", 1.0),
    ]
    good = report_page.Section("one", "python one", 3, figures, {"rows": [(10, 1.0)]}, {"dask": "it isn't set"})
    bad = report_page.Section("two", "python two", 1, failed="exit code 3: <broken>")
    html = report_page.page({"commit": "abc"}, [good, bad], quick=False)
    for text in (
        "abc", "Of 2 targets 1 are met and 1 missed", "Without figures: two", "without dask: it isn&#x27;t set", "&lt;broken&gt;",
        "<td>10 <small>3.00</small></td>", '≥ 2 x ray (3.00) <span class="met">met</span>', '<span class="missed">missed</span>',
        "cost &lt;b&gt;", "<svg ",
    ):  # fmt: skip
        assert text in html, text
    assert not re.search(r"<script|<link|<img|src=|https?:", html)


def test_the_site_has_the_last_report_if_there_is_one(tmp_path: Path) -> None:
    for folder, written in (("without", False), ("with", True)):
        site, last = tmp_path / folder, tmp_path / f"report-{folder}"
        site.mkdir()
        (site / "report.md").write_text("# How to read it\n")
        if written:
            last.mkdir()
            (last / "index.html").write_text("the page")
        make_site.add_report(site, last)
        assert ('href="report/index.html"' in (site / "report.md").read_text()) is written
        assert (site / "extra" / "report" / "index.html").is_file() is written


# --- as a whole: one benchmark at its smallest size, one that fails and one that doesn't end


def test_a_report_of_one_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "made" / "index.html"
    arguments = ["--quick", "--most", "100", "--only", "growth: rows", "--output", str(output)]
    assert report.main(arguments) == 0
    assert f"open {output}" in capfd.readouterr().out
    written = json.loads(output.with_suffix(".json").read_text())
    assert set(written["printed"]["growth: rows"]) == {"get", "set"}
    assert {"commit", "cpus", "memory", "kernel", "Python", "date", "load at the start"} <= set(written["about"])
    html = output.read_text()
    assert html.count("<svg ") == 2
    assert "A quick report" in html


def test_what_fails_or_does_not_end_is_a_section_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_objects.py").write_text("raise SystemExit('no such thing here')")
    (tmp_path / "bench_heap.py").write_text("import time; print('begun', flush=True); time.sleep(600)")
    monkeypatch.setattr(report, "TOOLS", tmp_path)
    peers = {"ray": (report.Need(variable="NO_SUCH_VARIABLE"),)}
    failed, found = report.measured("objects", report.Bench("objects", peers=peers), True, 100)
    assert (failed.failed, found) == ("exit code 1: no such thing here", None)
    assert failed.absent == {"ray": "NO_SUCH_VARIABLE isn't set"}
    endless, _ = report.measured("heap", report.Bench("heap"), True, 100, limit=0.2)
    assert endless.failed.startswith("ended after 0 s: bench_heap.py printed no figures, but '")


def test_a_peer_that_the_benchmark_left_out_is_named_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = json.dumps({"ms": {"put": 1.0}, "ratio": 1.0, "target": 0.7})
    said = "import sys; print('ray: left out, it broke', file=sys.stderr)"
    (tmp_path / "bench_objects.py").write_text(f"{said}; print({printed!r})")
    monkeypatch.setattr(report, "TOOLS", tmp_path)
    section, _ = report.measured("objects", report.Bench("objects", peers={"ray": (), "dask": ()}), False, 100)
    assert section.absent == {"ray": "left out, it broke", "dask": "it gave no figures"}
    assert [figure.met for figure in section.figures] == [None, True]


def test_a_benchmark_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main(["--only", "nonsense"])
    assert "there is no benchmark 'nonsense' in the report: futures, programs" in capsys.readouterr().err
