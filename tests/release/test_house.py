"""`tools/house.py` sees what it is there to see, in a small tree with one of each; and the tree here is in order."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import house

    yield house
    sys.modules.pop("house", None)


def tree(house: ModuleType, **sources: str) -> dict[str, object]:
    known = {}
    for name, text in sources.items():
        dotted = name.replace("__", ".")
        file = ROOT / "packages" / dotted.partition(".")[0] / f"{dotted.rpartition('.')[2]}.py"
        known[dotted] = house.Module(dotted, dotted.partition(".")[0], file, ast.parse(text), text.count("\n"))
    return known


def graph(house: ModuleType, known: dict[str, object]) -> dict[str, set[str]]:
    return {name: set(house.imports(module, known)) for name, module in known.items()}


def test_an_import_of_a_package_above_is_seen_wherever_it_stands(house: ModuleType) -> None:
    known = tree(
        house,
        fdb_schema__low="def f():\n    from lease_locks.high import x\n",
        lease_locks__high="from fdb_schema import low\n",
        mainspring__cli="import fdb_schema.low\n",
    )
    assert [p.text for p in house.upward(known, graph(house, known))] == [
        "fdb_schema.low imports lease_locks.high",
    ]


def test_a_circle_is_seen_through_functions_and_type_checking(house: ModuleType) -> None:
    known = tree(
        house,
        lease_locks__a="from lease_locks import b\n",
        lease_locks__b="def f():\n    from .c import x\n",
        lease_locks__c="if TYPE_CHECKING:\n    import lease_locks.a\n",
        lease_locks__d="from .a import y\n",
    )
    assert sorted(p.text for p in house.circles(graph(house, known))) == [
        f"lease_locks.{name}: one of 3 in a circle" for name in "abc"
    ]


def test_private_names_of_others_are_seen_and_ones_own_are_not(house: ModuleType) -> None:
    known = tree(
        house,
        lease_locks__a="class A:\n    def f(self, other):\n        self._mine = other._mine + super()._up + other.__class__\n"
        "        return other._theirs\n",
    )
    assert [p.text for p in house.private_access(known)] == ["lease_locks.a:4 other._theirs"]


def test_what_has_no_public_name_elsewhere_is_explained_as_long_as_it_is_used(
    house: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tree(house, lease_locks__a="import fdb\nfdb.impl._capi.f(fdb.impl._other)\n")
    explained = dict.fromkeys(("fdb.impl._capi", "fdb.impl._gone"), "no public way: …")
    monkeypatch.setattr(house, "FOREIGN", {"lease_locks": explained})
    assert [p.text for p in house.ours(house.private_access(known))] == [
        "lease_locks.a:2 fdb.impl._other",
        "lease_locks uses fdb.impl._gone no more: take it out of FOREIGN",
    ]


def test_sizes_are_counted(house: ModuleType) -> None:
    long = "def f(\n    a,\n):\n" + "    x = 1\n" * 61
    fits = "def f(\n    a,\n):\n" + "    x = 1\n" * 60
    known = tree(house, lease_locks__long=long * 7, lease_locks__fits=fits)
    found = [(p.rule, p.text) for p in house.sizes(known)]
    assert found[0] == ("module", "lease_locks.long: 448 lines")
    assert [rule for rule, _ in found[1:]] == ["function"] * 7
    tangled = "def f(x):\n" + "    if x: pass\n" * 15 + "    def g(): return [y for y in x if y]\n"
    assert [p.text for p in house.sizes(tree(house, lease_locks__t=tangled))] == ["lease_locks.t:1 f: 16"]
    many = tree(house, **{f"lease_locks__m{n}": "" for n in range(17)})
    assert [p.text for p in house.sizes(many)] == ["packages/lease_locks: 17 modules"]


def test_what_is_too_large_has_a_reason_as_long_as_it_is_so(house: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "def f():\n" + "    x = 1\n" * 61
    known = tree(house, lease_locks__a=long, lease_locks__b=long)
    monkeypatch.setattr(house, "EXCEPTIONS", {"lease_locks.a.f": "a table", "lease_locks.c.g": "gone"})
    assert [p.text for p in house.unexcepted(house.sizes(known))] == [
        "lease_locks.b:1 f: 61 lines",
        "lease_locks.c.g is within the limits: take it out of EXCEPTIONS",
    ]
    monkeypatch.setattr(house, "EXCEPTIONS", {"lease_locks.a.f": "a table"})
    monkeypatch.setattr(house, "MOST_EXCEPTIONS", 0)
    assert "1 exceptions" in list(house.unexcepted(house.sizes(known)))[-1].text


def test_the_house_is_in_order() -> None:
    # In a process of its own: where greenlets have run (a browser's tests), CPython 3.11 can fail in `ast.parse`.
    done = subprocess.run(
        [sys.executable, "tools/house.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
