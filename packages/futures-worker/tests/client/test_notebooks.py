"""What a notebook is shown while it waits for futures."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from futures_worker.client.waiting import progress
from futures_worker.client.waiting.progress import Progress


class ZMQInteractiveShell:
    """What IPython's own in the kernel of a notebook is called."""


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, text: str) -> None:
        self.shown.append(text)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cell shows, state after state."""
    states: list[str] = []
    shell, display = ModuleType("IPython"), ModuleType("IPython.display")

    def show(text: str, *, display_id: bool) -> Handle:
        states.append(text)
        return Handle(states)

    parts: dict[str, Any] = {"HTML": str, "display": show}
    display.__dict__.update(parts)
    shell.__dict__["get_ipython"] = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "PROGRESS_AFTER", 0.0)
    return states


def test_a_notebook_is_shown_how_far_it_is(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAWN_AFTER", 0.0)
    with Progress(1200, shown=True) as bar:
        bar.show(1200)
        bar.show(100)
    assert shown[-1] == '<progress value="1100" max="1200"></progress> 1,100 of 1,200 futures'
    assert len(shown) == 3


def test_not_each_future_is_drawn_but_the_last_state_is(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAWN_AFTER", 600.0)
    with Progress(50, shown=True) as bar:
        for left in range(50, -1, -1):
            bar.show(left)
    assert [text.partition("> ")[2] for text in shown] == ["0 of 50 futures", "50 of 50 futures"]


def test_who_wants_none_is_shown_none(shown: list[str]) -> None:
    with Progress(5, shown=False) as bar:
        bar.show(0)
    assert shown == []
