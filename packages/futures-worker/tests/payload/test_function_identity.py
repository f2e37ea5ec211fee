"""The key of a function's code: what behaves otherwise has another key, the same source in another process has the same.

Each seed draws a module of functions of many kinds and two edits of it. A fresh Python with another hash seed runs each
variant as a script and as a module that a script imports, and prints keys and behaviours.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import seed_params

WAIT = 120

RUNNER = """
import json, sys
from futures_worker import payload
{imported}
cache = payload.CodeCache()
found = {{}}
for name, one in sorted({where}.MADE.items()):
    code = cache.dump(one)
    assert code.digest == payload.dump_code(one).digest, name
    found[name] = [code.digest.hex(), repr(payload.load_code(code.data)(5))]
print(json.dumps(found))
"""

KINDS = {
    "plain": "def {name}(x): return x * {number} + 1\nMADE['{name}'] = {name}",
    "lambda": "MADE['{name}'] = lambda x: x - {number}",
    "closure": "def make_{name}(k):\n    def inner(x): return x + k\n    return inner\nMADE['{name}'] = make_{name}({number})",
    "nested": "def {name}(x):\n    def inner(y):\n        return y * {number}\n    return inner(x) + 1\nMADE['{name}'] = {name}",
    "global": "G_{name} = {number}\ndef {name}(x): return x + G_{name}\nMADE['{name}'] = {name}",
    "class within": "G_{name} = {number}\ndef {name}(x):\n    class A:\n        k = G_{name}\n    return x + A.k\nMADE['{name}'] = {name}",
    "calls": "def sub_{name}(x): return x * {number}\ndef {name}(x): return sub_{name}(x)\nMADE['{name}'] = {name}",
    "default": "def {name}(x, y={number}): return x + y\nMADE['{name}'] = {name}",
    "keyword": "def {name}(x, *, y={number}): return x + y\nMADE['{name}'] = {name}",
    "decorated": "def {name}_by(f):\n    @functools.wraps(f)\n    def wrapped(x): return f(x) + {number}\n    return wrapped\n"
    "@{name}_by\ndef {name}(x): return x\nMADE['{name}'] = {name}",
    "inner of decorated": "def {name}_by(f):\n    @functools.wraps(f)\n    def wrapped(x): return f(x) + 1\n    return wrapped\n"
    "@{name}_by\ndef {name}(x): return x * {number}\nMADE['{name}'] = {name}",
    "method": "class C_{name}:\n    def go(self, x): return x + {number}\nMADE['{name}'] = C_{name}().go",
    "state": "class C_{name}:\n    def __init__(self, k): self.k = k\n    def go(self, x): return x + self.k\n"
    "MADE['{name}'] = C_{name}({number}).go",
    "class method": "class C_{name}:\n    k = {number}\n    @classmethod\n    def go(cls, x): return x + cls.k\nMADE['{name}'] = C_{name}.go",
    "static method": "class C_{name}:\n    @staticmethod\n    def go(x): return x + {number}\nMADE['{name}'] = C_{name}.go",
    "partial": "def base_{name}(k, x): return x + k\nMADE['{name}'] = functools.partial(base_{name}, {number})",
    "callable": "class C_{name}:\n    def __call__(self, x): return x + {number}\nMADE['{name}'] = C_{name}()",
    "base class": "class B_{name}:\n    def go(self, x): return x + {number}\nclass C_{name}(B_{name}): pass\n"
    "def {name}(x): return C_{name}().go(x)\nMADE['{name}'] = {name}",
    "two classes": "class A_{name}:\n    def other(self): return B_{name}\nclass B_{name}:\n    def other(self): return A_{name}\n"
    "    k = {number}\ndef {name}(x): return x + A_{name}().other().k\nMADE['{name}'] = {name}",
    "dataclass": "@dataclasses.dataclass\nclass C_{name}:\n    k: int = {number}\ndef {name}(x): return x + C_{name}().k\nMADE['{name}'] = {name}",
    "enum": "class C_{name}(enum.Enum):\n    one = {number}\ndef {name}(x): return x + C_{name}.one.value\nMADE['{name}'] = {name}",
    "constant set": "def {name}(x): return str(x) in {{'5', 'a', 'b', 'c', '{number}'}}, {number}\nMADE['{name}'] = {name}",
    "attribute": "def {name}(x): return x + {name}.k\n{name}.k = {number}\nMADE['{name}'] = {name}",
    "annotated": "def {name}(x: int) -> 'list[int]': return [x] * ({number} % 7)\nMADE['{name}'] = {name}",
    "helper": "def {name}(x): return x + helper_{name}.K\nimport helper_{name}\nMADE['{name}'] = {name}",
    "lazy helper": "def {name}(x):\n    from helper_{name} import K\n    return x + K\nMADE['{name}'] = {name}",
    "helper of a helper": "import helper_{name}\nMADE['{name}'] = helper_{name}.go",
}


def write(folder: Path, drawn: list[tuple[str, str, int]]) -> None:
    """The module `drawn_code` and its helpers."""
    lines = ["import dataclasses, enum, functools", "MADE = {}"]
    for name, kind, number in drawn:
        lines.append(KINDS[kind].format(name=name, number=number))
        if kind in ("helper", "lazy helper"):
            (folder / f"helper_{name}.py").write_text(f"K = {number}\n")
        elif kind == "helper of a helper":
            (folder / f"helper_{name}.py").write_text(f"from deep_{name} import K\ndef go(x): return x + K\n")
            (folder / f"deep_{name}.py").write_text(f"K = {number}\n")
    (folder / "drawn_code.py").write_text("\n".join(lines) + "\n")


def run(folder: Path, *, script: bool, hash_seed: int) -> dict[str, Any]:
    """Keys and behaviours, told by a process of its own; the code is of its `__main__`, or of a module it imports."""
    if script:
        text = (folder / "drawn_code.py").read_text() + RUNNER.format(imported="", where="sys.modules['__main__']")
    else:
        text = RUNNER.format(imported="import drawn_code", where="drawn_code")
    (folder / "runner.py").write_text(text)
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "runner.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def names(drawn: Iterable[tuple[str, str, int]]) -> list[str]:
    return [name for name, _, _ in drawn]


@pytest.mark.parametrize("script", [True, False], ids=["main", "module"])
@pytest.mark.parametrize("seed", seed_params(4, fresh=1, most=200))
def test_keys_change_with_behaviour_and_with_nothing_else(tmp_path: Path, seed: int, script: bool) -> None:
    draw = random.Random(seed)
    drawn = [(f"f{n}", kind, draw.randrange(10, 99)) for n, kind in enumerate(draw.sample(sorted(KINDS), len(KINDS)))]
    edited = {name: number + 1 + draw.randrange(3) for name, _, number in draw.sample(drawn, len(drawn) // 2)}
    write(tmp_path, drawn)
    first = run(tmp_path, script=script, hash_seed=1)
    again = run(tmp_path, script=script, hash_seed=2)
    assert first == again  # another process, the same source
    write(tmp_path, [(name, kind, edited.get(name, number)) for name, kind, number in drawn])
    after = run(tmp_path, script=script, hash_seed=3)
    for name, kind, _ in drawn:
        behaves, key = first[name][1] == after[name][1], first[name][0] == after[name][0]
        assert behaves == (name not in edited), (kind, "the edit changes what it does")
        assert behaves or not key, (kind, "another behaviour under the same key")
        if script and behaves:
            assert key, (kind, "the same source under another key")
    everything = [key for key, _ in first.values()]
    assert len(set(everything)) == len(everything)
