"""The mutants of `tools/mutants.toml` can all be made, the page tells of each, and one is found from end to end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mutants

    yield mutants
    sys.modules.pop("mutants", None)


def test_each_can_be_made_of_the_sources_as_they_are(mutants: ModuleType) -> None:
    _, table = mutants.read_table()
    assert len(table) >= 40
    for mutant in table:
        changed = mutant.apply()
        assert changed != (ROOT / mutant.path).read_text(encoding="utf-8"), mutant.name
        compile(changed, str(mutant.path), "exec")


def test_laboratories_are_there(mutants: ModuleType) -> None:
    laboratories, _ = mutants.read_table()
    for laboratory in laboratories.values():
        paths = [one for one in laboratory.run if one.startswith(("packages/", "tests/"))]
        assert paths
        assert all((ROOT / one).exists() for one in paths), laboratory.name


def test_the_page_tells_of_each_and_enough_are_found(mutants: ModuleType) -> None:
    _, table = mutants.read_table()
    lines = mutants.read_page()
    assert lines.keys() == {mutant.name for mutant in table}
    found = sum("**nothing**" not in line for line in lines.values())
    assert found >= mutants.LEAST_FOUND * len(table)


def test_a_text_that_is_gone_is_an_error_that_says_so(mutants: ModuleType) -> None:
    _, table = mutants.read_table()
    gone = replace(table[0], text="no such guard")
    with pytest.raises(
        mutants.TableError, match=r"its text is 0 times in .*, not once: bring tools/mutants.toml up to date"
    ):
        gone.apply()
    with pytest.raises(mutants.TableError, match=r"there is no .*nowhere.py any more"):
        replace(table[0], file="fdb-datamodel/nowhere.py").apply()


def test_one_is_found_and_one_that_changes_nothing_is_not(mutants: ModuleType) -> None:
    """Takes two runs of pytest, each a subprocess."""
    laboratories, table = mutants.read_table()
    small = {"worker": replace(laboratories["worker"], seeds=(3,))}
    mutant = next(one for one in table if one.name == "refused-turn-forgotten")
    verdict = mutants.judge(mutant, small, 3)
    assert verdict.found
    assert "test_core.py::test_" in verdict.check
    assert mutants.line_of(mutant, verdict).startswith("| `refused-turn-forgotten` |")
    same = replace(mutant, instead=mutant.text + "\n")
    assert not mutants.judge(same, small, 3).found
