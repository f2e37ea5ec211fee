"""Objects of numpy, pandas and pydantic, without what they keep that says nothing of their values."""

from __future__ import annotations

import sys
from typing import Any, Final

_ASKED: Final = frozenset({"_cache", "_readonly"})
"""What pandas' arrays have in their state that says nothing of their values."""


def without_the_generator(state: Any) -> Any:
    """An object's state; the generator that numpy has for all, which those of `scipy.stats` hold, by its name: what it will draw next is
    no object's own, and another in each process."""
    generator = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if generator is None or not isinstance(state, dict) or all(part is not generator for part in state.values()):
        return state
    return {name: "numpy.random" if part is generator else part for name, part in state.items()}


def of_pandas(kind: type) -> bool:
    """Its classes say that they are of `pandas` itself from version 3 on, of modules within before."""
    return str(kind.__module__).partition(".")[0] == "pandas"


def without_what_was_asked(state: Any) -> Any:
    """The state of one of pandas' arrays without what it keeps of what it was asked once, as a frame that is shown asks its columns,
    and without whether it is lent, as a frame's is by each column that is looked at."""
    if isinstance(state, tuple):
        parts = (without_what_was_asked(part) if type(part) is dict else part for part in state)
        return tuple(part for part in parts if type(part) is not dict or part)
    return {name: part for name, part in state.items() if name not in _ASKED} if isinstance(state, dict) else state


def told_by(value: Any, kind: Any) -> tuple[bytes, tuple[Any, ...]] | None:
    """(tag, parts) of an object of which pickle would say too much; None of any other."""
    if kind.__module__.startswith("numpy.ma") and kind.__name__ == "MaskedArray":
        # Its pickle has the value to fill it with only once that was asked for, as its repr does.
        return b"o", (kind, value.data, sys.modules["numpy.ma"].getmaskarray(value), value.fill_value)
    if kind.__module__ == "pydantic._internal._decorators" and kind.__name__ == "Decorator":
        # `cls_ref` names the class by its place in memory.
        return b"o", (kind, {name: getattr(value, name) for name in kind.__dataclass_fields__ if name != "cls_ref"})
    if of_pandas(kind) and kind.__name__ == "DataFrame":
        # By columns: how pandas has put them into blocks depends on how the frame was made.
        columns = [value.iloc[:, n].array for n in range(value.shape[1])]
        return b"D", (value.columns, value.index, columns, value.attrs)
    return None
