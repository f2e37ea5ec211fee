"""Switches of the runner that a program, or its environment, may set without touching the code that calls it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_OFF = frozenset({"0", "false", "no", "off"})


class Switch:
    """On or off: what `set_local` says in this context, else `set_global`, else the first variable that is set."""

    def __init__(self, *variables: str, default: bool = True) -> None:
        self.variables = variables
        self._default = default
        self._global: bool | None = None
        self._local: ContextVar[bool | None] = ContextVar(f"switch-{variables[0]}", default=None)

    def __call__(self) -> bool:
        """The value now."""
        local = self._local.get()
        if local is not None:
            return local
        if self._global is not None:
            return self._global
        for name in self.variables:
            text = os.environ.get(name)
            if text:
                return text.strip().lower() not in _OFF
        return self._default

    def set_global(self, value: bool | None) -> None:
        """For the whole process; None gives it back to the environment."""
        self._global = value

    @contextmanager
    def set_local(self, value: bool) -> Iterator[None]:
        """For a block of this thread or task."""
        token = self._local.set(value)
        try:
            yield
        finally:
            self._local.reset(token)

    def __repr__(self) -> str:
        return f"<Switch {' or '.join(self.variables)} {'on' if self() else 'off'}>"


MAINTAIN_LOCKS = Switch("MAINSPRING_MAINTAIN_LOCKS", "THDS_MOPS_PURE_ORCHESTRATOR_MAINTAIN_LOCKS")
"""Whether an orchestrator's own heartbeats keep the lock of its invocation; remotes always maintain theirs."""
