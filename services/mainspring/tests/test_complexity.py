"""Complexity is McCabe's, and reports merge to the same whole in any order and grouping."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest

from mainspring.demo.complexity import Report, analyse_file, merge_reports, python_files


def complexities(tmp_path: Path, source: str) -> dict[str, int]:
    (tmp_path / "m.py").write_text(source)
    return {f.name: f.complexity for f in analyse_file(str(tmp_path), "m.py").ranking}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", 1),
        ("if a: pass\nelif b: pass\nelse: pass", 3),
        ("for x in y:\n  while z: pass", 3),
        ("try: pass\nexcept A: pass\nexcept B: pass\nfinally: pass", 3),
        ("return a and b and c or d", 4),
        ("return [x for x in y if x if y]", 4),
        ("return 1 if a else 2", 2),
        ("assert a", 2),
        ("match a:\n  case 1: pass\n  case _: pass", 3),
        ("with a: pass", 1),
    ],
)
def test_decisions_are_counted(tmp_path: Path, body: str, expected: int) -> None:
    indented = "\n".join("    " + line for line in body.splitlines())
    assert complexities(tmp_path, f"def f():\n{indented}\n") == {"f": expected}


def test_nested_functions_and_methods_are_ranked_by_themselves(tmp_path: Path) -> None:
    source = "class C:\n  async def m(self):\n    def inner():\n      if a: pass\n    return inner\n  class D: pass\n"
    assert complexities(tmp_path, source) == {"C.m": 1, "C.m.inner": 2}
    assert analyse_file(str(tmp_path), "m.py").classes == 2


@pytest.mark.parametrize("source", [b"def f(:", b"\0", b"\xff\xfe", b"(" * 500 + b")" * 500])
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "bad.py").write_bytes(source)
    report = analyse_file(str(tmp_path), "bad.py")
    assert report.unparsable == ("bad.py",)
    assert (report.files, report.functions) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_reports_merge_in_any_order_and_grouping(seed: int) -> None:
    root = Path(sysconfig.get_paths()["stdlib"]) / "json"
    reports = [analyse_file(str(root), file) for file in python_files(root)]
    rng = random.Random(seed)
    whole = merge_reports(reports)
    while len(reports) > 1:
        rng.shuffle(reports)
        cut = rng.randint(2, len(reports))
        reports = [merge_reports(reports[:cut]), *reports[cut:]]
    assert reports[0] == whole
    assert list(whole.ranking) == sorted(whole.ranking)


def test_nothing_merges_to_nothing() -> None:
    assert merge_reports([]) == Report()


def test_installed_packages_are_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "site-packages/b.py", "sub/c.py", "sub/__pycache__/d.py", "note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert python_files(tmp_path) == ["a.py", "sub/c.py"]
