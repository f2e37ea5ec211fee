"""Whether a stranger could live in this tree: layers, cycles, private access, sizes. `nox -s house`, or `python tools/house.py`.

What is demanded, of the sources of all packages and services:

- a package imports only packages below it (`LAYERS`), also inside functions and under `TYPE_CHECKING`;
- no modules import each other in a circle, wherever in them the imports stand;
- no module uses a private attribute of another module's objects; of those of other people's libraries it uses what has no public
  name (`FOREIGN`);
- no module has over 400 lines, no folder over 16 modules;
- no function has a body of over 60 lines (the options of a command, in its signature, are a table), nor a complexity over 15 (McCabe:
  one, and one for each place where it branches).

The functions that are longer or more tangled have a reason each (`EXCEPTIONS`, ten at most). `--list RULE` prints the places of a rule.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workspace import PROJECTS, ROOT

LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "fdb_embedded": (),
    "fdb_schema": ("fdb_embedded",),
    "idempotent_txn": ("fdb_schema",),
    "lease_locks": ("idempotent_txn", "fdb_schema"),
    "fdb_datamodel": ("idempotent_txn", "fdb_schema"),
    "futures_worker": ("fdb_datamodel", "idempotent_txn", "fdb_schema"),
    "futures_worker_pytest": ("futures_worker", "fdb_datamodel", "idempotent_txn", "fdb_schema", "fdb_embedded"),
    "s3heap_tender": ("lease_locks", "idempotent_txn", "fdb_schema"),
}
"""Package → what it may import of the others. A service may import everything; no package imports a service."""
MODULE_LINES: Final = 400
FUNCTION_LINES: Final = 60
FUNCTION_COMPLEXITY: Final = 15
BRANCHES: Final = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)
FOLDER_MODULES: Final = 16
PUBLIC: Final = frozenset({"_replace", "_asdict", "_make", "_fields", "_exit", "_getframe"})
"""Names that begin so and are documented as public: of named tuples, `os._exit`, `sys._getframe`."""
FOREIGN: Final[dict[str, dict[str, str]]] = {
    "fdb_embedded": {
        "impl.Value._getter": "no public way: what a read's result is made of, for which another stands here",
        "impl.Key._getter": "no public way: the same of a key selector's",
        "impl.Future._release_memory": "no public way: it frees memory of the C library, which has none here",
        "transaction_class._set_option": "no public way: all options of the binding go through it",
        "impl._TransactionOptions": "no public way: `Transaction.__init__` alone makes them, and is too slow",
        "impl._network_thread_reentrant_lock": "no public way: the lock under which the binding starts its network",
    },
    "fdb_schema": {
        "binding._capi": "no public way: what the library can, before an API version is selected",
        "fdb.impl._capi": "no public way: the C function that tells the library's release is in no module of the binding",
    },
    "futures_worker": {
        "cf._base": "no public way: the states of futures are named there only",
        "pickle._Pickler": "no public way: the one in C has no `dispatch` to say how sets are pickled",
        "cloudpickle._class_setstate": "no public way: where a class gets the state that came with code",
    },
}
"""Package → expression → why it uses this private attribute of a library that isn't ours."""
EXCEPTIONS: Final[dict[str, str]] = {
    "fdb_embedded.engine.batch._write": "all of a commit that is inside of the lock between processes: each call there is waited for by all",
    "fdb_embedded.pure.client_reads._forward": "FoundationDB's `getRangeValue` step by step, to be compared with it line by line",
    "fdb_embedded.pure.client_reads._backward": "the same of `getRangeValueBack`",
    "idempotent_txn.loop._execute": "the one retry loop: a signal may come at any call, so what must not be torn stands in one frame",
    "lease_locks.grants.transitions.acquire": "one transition of the state table, in the order in which its rows are read",
    "lease_locks.waiting.acquiring.acquiring": "one generator is the whole protocol of a wait, driven by threads and by asyncio",
}
"""Functions over the limits of length and complexity, and why they stay so."""
MOST_EXCEPTIONS: Final = 10


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, its package, its text parsed."""

    name: str
    package: str
    file: Path
    tree: ast.Module
    lines: int


@dataclass(frozen=True)
class Place:
    """Where a rule doesn't hold."""

    rule: str
    text: str


def modules() -> dict[str, Module]:
    """Every module of the sources, by its dotted name."""
    found: dict[str, Module] = {}
    for project in PROJECTS.values():
        source = project / "src"
        for file in sorted(source.rglob("*.py")):
            parts = file.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = file.read_text(encoding="utf-8")
            found[name] = Module(name, parts[0], file, ast.parse(text), text.count("\n"))
    return found


def imports(module: Module, known: dict[str, Module]) -> Iterator[str]:
    """The modules of this repository that `module` imports, wherever the import stands."""
    base = module.name if module.file.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(base.split(".")[: len(base.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (start, node.module) if part)
            names = [f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in known else origin for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name and name != module.name:
                yield name


def upward(known: dict[str, Module], graph: dict[str, set[str]]) -> Iterator[Place]:
    """Imports of a package that isn't below."""
    for name, targets in graph.items():
        package = known[name].package
        for target in sorted(targets):
            other = known[target].package
            if package in LAYERS and other != package and other not in LAYERS[package]:
                yield Place("layers", f"{name} imports {target}")


def circles(graph: dict[str, set[str]]) -> Iterator[Place]:
    """The modules that import each other in a circle (Tarjan's strongly connected components, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    circle = stack[stack.index(name) :]
                    del stack[stack.index(name) :]
                    if len(circle) > 1:
                        for member in circle:
                            yield Place("circles", f"{member}: one of {len(circle)} in a circle")


def _own_names(tree: ast.Module) -> set[str]:
    """Private names that a module defines: functions, methods, attributes assigned or declared, slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __slots__, getattr
            names.add(node.value)
    return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_access(known: dict[str, Module]) -> Iterator[Place]:
    """Uses of `x._name` where x isn't `self` and the module defines no `_name`."""
    for module in known.values():
        own = _own_names(module.tree)
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
                and not _is_self(node.value)
                and not (isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super")
                and node.attr not in own
                and node.attr not in PUBLIC
            ):
                yield Place("private", f"{module.name}:{node.lineno} {ast.unparse(node)}")


def ours(uses: Iterable[Place]) -> Iterator[Place]:
    """Of uses of private attributes those that `FOREIGN` doesn't explain; and what that explains and nothing uses."""
    used: set[tuple[str, str]] = set()
    for place in uses:
        where, _, expression = place.text.partition(" ")
        package = where.partition(".")[0]
        used.add((package, expression))
        if expression not in FOREIGN.get(package, {}):
            yield place
    for package, expression in sorted({(package, one) for package, table in FOREIGN.items() for one in table} - used):
        yield Place("private", f"{package} uses {expression} no more: take it out of FOREIGN")


def complexity(function: ast.AST) -> int:
    """McCabe's number of a function, without those that are defined in it."""
    count, inside = 1, list(ast.iter_child_nodes(function))
    while inside:
        node = inside.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        count += isinstance(node, BRANCHES)
        inside += ast.iter_child_nodes(node)
    return count


def sizes(known: dict[str, Module]) -> Iterator[Place]:
    """Long modules, long or tangled functions, full folders."""
    folders: Counter[Path] = Counter()
    for module in known.values():
        folders[module.file.parent] += module.file.name != "__init__.py"
        if module.lines > MODULE_LINES:
            yield Place("module", f"{module.name}: {module.lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{module.name}:{node.lineno} {node.name}"
                lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if lines > FUNCTION_LINES:
                    yield Place("function", f"{name}: {lines} lines")
                if (found := complexity(node)) > FUNCTION_COMPLEXITY:
                    yield Place("complexity", f"{name}: {found}")
    for folder, count in sorted(folders.items()):
        if count > FOLDER_MODULES:
            yield Place("folder", f"{folder.relative_to(ROOT)}: {count} modules")


def unexcepted(found: Iterable[Place]) -> Iterator[Place]:
    """Of what is too large what `EXCEPTIONS` gives no reason for; and what that names and is no longer so."""
    used: set[str] = set()
    for place in found:
        where, _, rest = place.text.partition(" ")
        name = f"{where.rpartition(':')[0]}.{rest.partition(':')[0]}"
        used.add(name)
        if name not in EXCEPTIONS:
            yield place
    for name in sorted(EXCEPTIONS.keys() - used):
        yield Place("function", f"{name} is within the limits: take it out of EXCEPTIONS")
    if len(EXCEPTIONS) > MOST_EXCEPTIONS:
        yield Place("function", f"{len(EXCEPTIONS)} exceptions, of which {MOST_EXCEPTIONS} are possible")


def places() -> list[Place]:
    """Everything that doesn't hold."""
    known = modules()
    graph = {name: set(imports(module, known)) for name, module in known.items()}
    return [*upward(known, graph), *circles(graph), *ours(private_access(known)), *unexcepted(sizes(known))]


def main() -> int:
    """The command; exit code 1 where a rule doesn't hold somewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="RULE", help="print the places of one rule alone")
    options = parser.parse_args()
    found = [place for place in places() if options.list in (None, "all", place.rule)]
    print("\n".join(f"{place.rule}  {place.text}" for place in found) or "the house is in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
