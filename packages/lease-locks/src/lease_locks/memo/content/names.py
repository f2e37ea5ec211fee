"""Names: what another process finds by one, what pickle knows by no more than one, and the line of a docstring that stands for what a
function does."""

from __future__ import annotations

import functools
import pickle
import re
import sys
import types
import typing
from typing import Any, Final

from fdb_schema.whole_copies import SCRIPTS
from lease_locks.memo.bindings import plain

_LOGIC_KEY = re.compile(r"^\s*function-logic-key:\s*(\S+)\s*$", re.MULTILINE)
_HEAP_TYPE: Final = 1 << 9  # of a class's flags: it was made at run time
NAMED_ONLY: Final = (type(functools.lru_cache(print)), typing.NewType, getattr(typing, "TypeAliasType", typing.NewType))
"""Types of what pickle knows by a name alone, also where no other process finds it by that."""
TYPE_PARAMETERS: Final = tuple(
    kind for name in ("TypeVar", "ParamSpec", "TypeVarTuple") if (kind := getattr(typing, name, None)) is not None
)
TYPE_PARAMETER_PARTS: Final = ("__bound__", "__constraints__", "__default__")
NAMED_PARTS: Final = ("__wrapped__", "__supertype__", "__value__")


def logic_key(thing: Any) -> str:
    """What the line `function-logic-key: KEY` of a docstring says; "" where it says nothing."""
    doc = getattr(thing, "__doc__", None)
    found = _LOGIC_KEY.search(doc) if isinstance(doc, str) and "function-logic-key" in doc else None
    return found.group(1) if found else ""


def by_name(thing: Any) -> bool:
    """Whether another process finds this function or class by its module and name."""
    if isinstance(thing, type) and not thing.__flags__ & _HEAP_TYPE:
        return True
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "<")
    if module is None or module in SCRIPTS or "<" in name:
        return False
    return held(module, name, thing)


def held(module: Any, name: str, thing: Any) -> bool:
    """Whether the module holds just this under the name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return plain(found) is thing


def importable(module: types.ModuleType) -> bool:
    """Whether its name tells it from any other: one that was loaded from a file, or made by hand, may have another's."""
    name = module.__name__
    parent, _, last = name.rpartition(".")
    return name not in SCRIPTS and (sys.modules.get(name) is module or held(parent, last, module))


def module_of(thing: Any) -> str | None:
    """The name of its module; that of a script is `__main__`, also in a process of multiprocessing."""
    module = getattr(thing, "__module__", None)
    return "__main__" if module in SCRIPTS else module


def which_module(value: Any, name: str) -> str:
    """Which of all modules holds it; a script where none does."""
    try:
        return pickle.whichmodule(value, name)  # type: ignore[attr-defined, no-any-return]
    except pickle.PicklingError:  # from Python 3.14 on
        return "__main__"


def name_of(thing: Any) -> bytes:
    """A function or class by its name alone."""
    return f"{module_of(thing)}:{thing.__qualname__}".encode()


def evaluated(value: Any, part: str) -> Any:
    """An attribute; None where there is none, or where it names what there isn't: some are evaluated when they are looked at."""
    try:
        return getattr(value, part, None)
    except NameError:
        return None
