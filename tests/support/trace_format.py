"""The Trace Event Format, as far as traces of futures use it, for tests."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

NUMBER = (int, float)
#: Phase -> the members an event of it must have, with their types; from the format's document.
SCHEMA: dict[str, dict[str, Any]] = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "pid": int, "tid": int, "ts": NUMBER, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER, "bp": str},
    "i": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "s": str, "args": dict},
}


def check_schema(trace: Any) -> None:
    """Raises AssertionError for anything that the format doesn't have."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] in ("ms", "ns")
    flows: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        wanted = SCHEMA[event["ph"]]
        assert set(event) == {"ph", *wanted}
        for member, kind in wanted.items():
            assert isinstance(event[member], kind), event
        assert event["ph"] == "M" or event["ts"] > 0
        assert event.get("dur", 0) >= 0
        assert event.get("s", "p") in ("g", "p", "t") and event.get("bp", "e") == "e"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
        if event["ph"] == "C":
            assert all(isinstance(value, NUMBER) and value >= 0 for value in event["args"].values())
        if event["ph"] in "sf":
            flows[event["id"]].append((event["ph"], event["ts"]))
    for ends in flows.values():
        assert [kind for kind, _ in ends] == ["s", "f"] and ends[0][1] <= ends[1][1]
