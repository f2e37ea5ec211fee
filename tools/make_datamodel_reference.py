"""Write docs/fdb-datamodel/keys.md, the reference of every key, state, transition and invariant, from the code that uses them.

    python tools/make_datamodel_reference.py [--check]

`--check` writes nothing and exits 1 if the page isn't what the code says.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from fdb_datamodel import INVARIANTS, TRANSITIONS, FutureSpec, FutureState
from fdb_datamodel.rows.table import KEYS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fdb-datamodel" / "keys.md"

_STATES = {
    FutureState.waiting: "on dependencies (rows in `dependencies`) or on a back-off (`due`)",
    FutureState.unclaimed: "in the resource indices, of cpu and of what else it needs, xor assigned to one worker",
    FutureState.claimed: "`claim` is set; a `claim_future` row of the worker lists it with the same token",
    FutureState.realized: "`claim` is set and `latest_result` carries that claim's token",
    FutureState.failed: "the terminal `failure` is set",
}

_SUBSPACES = {
    "futures": "All futures. An absent key means its default, so a plain future costs few rows.",
    "resource_requirements_cpu": (
        "The index that claims walk, from shape to shape: the exact need first, then the rest of the shape, rounded up to "
        "an eighth of a power of two, so that any number of different amounts is few shapes."
    ),
    "resource_requirements_ram": "Those of these futures that need ram, by how much.",
    "resource_requirements_gpu": "Those of these futures that need gpus, by how many.",
    "results": "Every copy of a result that a worker stores; it is available iff its holder's incarnation is the live one. What is inline in "
    "`latest_result` has no row here, unless a release before format 2 wrote one (is_inline).",
    "workers": "Workers are known by address; each start is a new incarnation.",
    "worker_assignments": "Futures that should, or must (`pinned`), run on one worker.",
    "dependencies": "Edges, from the future that waits.",
    "listeners": "Edges from the future waited for, and sessions that asked to be told of its end.",
    "waits": "Followed, with `dependencies`, to find a cycle of waits when it closes.",
    "unsettled": "Work left over by an end with more listeners than one transaction settles.",
    "timers": "Never disarmed: a timer that has become stale does nothing when it fires.",
    "mailboxes": "What sessions are told; a worker's session is its incarnation (cancel, free).",
    "bells": "Watched, as are events, and sizes of queues and semaphores and places in their lines.",
    "children": "Which futures a task submitted, so that they can be cancelled with it.",
    "streams": "What generators yielded, item by item.",
    "programs": "What programs asked for and got, request by request; events sent to them, and what they published.",
    "queues": "What processes hand to one another, by the queue's name, and who waits for that.",
    "semaphores": "What so many processes have at once, by its name, and who waits for that.",
    "events": "What has happened or not, by its name.",
    "limits": "How many futures of a kind run at once, or begin in a second, on all workers together.",
    "schedules": "What is submitted again and again, by its name.",
    "actors": "Where actors take calls, and their names. An actor and its calls are futures.",
    "logs": "Standard output and error of tasks that print; deleted with the future.",
    "sessions": "Client processes that live, judged like workers by a counter. One that is gone has no row.",
    "references": "Who holds a future, besides its submitter, which needs no row.",
    "lineage": "The other direction of arguments: what a deleted future would take the ground from.",
    "garbage": "Futures that wait for the end of their grace, then for whoever collects them.",
    "collector": "The pace of collecting.",
    "dead_workers": "Incarnations that were fenced and still hold rows.",
}


def page() -> str:
    lines = [
        "# Keys, states and invariants",
        "",
        "Made by `tools/make_datamodel_reference.py` from the code; don't edit it by hand.",
        "",
        "Every key is a FoundationDB tuple `(cluster, subspace, …)`. An id is the 16 bytes of a UUIDv7. Values are msgpack",
        "arrays that grow by appending fields; readers give absent trailing fields their default and ignore more. A token is",
        "10 bytes that order like versionstamps. Nothing is pickled but the payloads of users, which are opaque here.",
    ]
    for subspace in dict.fromkeys(doc.subspace for doc in KEYS):
        lines += ["", f"## {subspace}", "", _SUBSPACES[subspace], "", "| key | value | meaning |", "|---|---|---|"]
        lines += [f"| `{doc.key}` | {doc.value} | {doc.purpose} |" for doc in KEYS if doc.subspace == subspace]
    lines += ["", "## States", "", "| state | its keys |", "|---|---|"]
    lines += [f"| {state} | {_STATES[state]} |" for state in FutureState]
    lines += ["", "## Transitions", "", "| function or event | from | to |", "|---|---|---|"]
    for row in TRANSITIONS.values():
        lines.append(f"| `{row.event}` | {_names(row.sources)} | {_names(row.targets)} |")
    lines += ["", "## Options of a future and their defaults", "", "| field of `FutureSpec` | default |", "|---|---|"]
    for field in dataclasses.fields(FutureSpec):
        default = "a new UUIDv7" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        lines.append(f"| `{field.name}` | {default} |")
    lines += ["", "## Invariants that `validate()` checks", "", "| name | what holds |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in INVARIANTS.items()]
    return "\n".join(lines) + "\n"


def _names(states: frozenset[FutureState | None]) -> str:
    order = [None, *FutureState]
    return ", ".join("–" if state is None else str(state) for state in order if state in states)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE} isn't what the code says: run python tools/make_datamodel_reference.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
