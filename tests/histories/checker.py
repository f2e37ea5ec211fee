"""Which anomalies a history shows: an inference from reads and writes alone, without asking the engine for any order.

    ww  two writers of neighbouring values of a list, or a writer that read the register's value it overwrote
    wr  who wrote the last value that a reader saw → the reader
    rw  a reader → who wrote the next value, which the reader did not see
    rt  a transaction that had ended → one that began afterwards

A cycle of these is no serial order that respects real time. Its kinds name it as Adya's thesis does: G0 (ww alone), G1c (ww
and wr), G-single (one rw), G2 (more), each with "-realtime" where it needs an rt edge. Reads that no order of versions explains
are anomalies of their own: G1a (of a failed transaction), G1b (in the middle of one), lost, duplicate and reordered values.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from histories.history import Append, Get, Outcome, Put, Read, Transaction

Node = int
"""A transaction's place in the history; places beyond it are moments of real time."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What is wrong, as a name and a story that a person can follow."""

    kind: str
    story: str


@dataclass(slots=True)
class _Graph:
    edges: dict[Node, dict[Node, str]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, before: Node, after: Node, kind: str) -> None:
        if before != after:
            self.edges[before].setdefault(after, kind)


def check(transactions: Iterable[Transaction]) -> list[Anomaly]:
    """The anomalies of a history: direct ones first, then one shortest cycle of each tangle. Empty: it is clean.

    A transaction whose outcome is unknown counts as committed as soon as somebody saw what it wrote.
    """
    history = sorted(transactions, key=lambda one: one.invoked)
    found: list[Anomaly] = []
    graph = _Graph()
    _lists(history, graph, found)
    _registers(history, graph, found)
    _real_time(history, graph)
    for tangle in _tangles(graph, len(history)):
        cycle = _shortest_cycle(graph, tangle, len(history))
        if cycle:
            found.append(_told(cycle, graph, history))
    return found


# --- lists


def _lists(history: Sequence[Transaction], graph: _Graph, found: list[Anomaly]) -> None:
    writers: dict[tuple[str, int], Node] = {}
    appended: dict[tuple[Node, str], list[int]] = defaultdict(list)
    reads: dict[str, list[tuple[Node, tuple[int, ...], int]]] = defaultdict(list)  # key → who, what, own values in it
    for node, one in enumerate(history):
        seen: dict[str, tuple[int, ...]] = {}
        for operation in one.operations:
            if isinstance(operation, Append):
                if (operation.key, operation.value) in writers:
                    found.append(Anomaly("bad history", f"{operation} is appended twice"))
                writers[operation.key, operation.value] = node
                appended[node, operation.key].append(operation.value)
                if operation.key in seen:
                    seen[operation.key] += (operation.value,)
            elif isinstance(operation, Read) and one.outcome is Outcome.ok:
                own = appended.get((node, operation.key), [])
                expected = seen.get(operation.key)
                if expected is not None and operation.values != expected:
                    found.append(Anomaly("internal", f"{one.name} read {operation}, and before it {expected}"))
                if own and operation.values[-len(own) :] != tuple(own):
                    found.append(Anomaly("internal", f"{one.name} doesn't see its own {own} in {operation}"))
                seen[operation.key] = operation.values
                reads[operation.key].append((node, operation.values, len(own)))
    for key, seen_of_key in reads.items():
        order = max((values for _, values, _ in seen_of_key), key=len)
        if len(set(order)) != len(order):
            found.append(Anomaly("duplicate", f"{key} holds a value twice: {order}"))
        _versions(key, order, writers, appended, history, graph, found)
        _observations(key, order, seen_of_key, writers, appended, history, graph, found)
    _losses(writers, reads, history, found)


def _versions(
    key: str,
    order: tuple[int, ...],
    writers: dict[tuple[str, int], Node],
    appended: dict[tuple[Node, str], list[int]],
    history: Sequence[Transaction],
    graph: _Graph,
    found: list[Anomaly],
) -> None:
    """The writers of a list's values, in the order of the longest read."""
    previous: Node | None = None
    for value in order:
        writer = writers.get((key, value))
        if writer is None:
            found.append(Anomaly("garbage", f"{key} holds {value}, which nobody wrote"))
            return
        if history[writer].outcome is Outcome.failed:
            found.append(Anomaly("G1a", f"{key} holds {value} of {history[writer].name}, which failed"))
        if previous is not None:
            graph.add(previous, writer, f"ww {key}")
        previous = writer
    for writer in {writers[key, value] for value in order}:
        own = appended[writer, key]
        at = order.index(own[0]) if own[0] in order else -1
        if at < 0 or order[at : at + len(own)] != tuple(own):
            found.append(Anomaly("reordered", f"{history[writer].name} appended {own} to {key}, which reads {order}"))


def _observations(
    key: str,
    order: tuple[int, ...],
    seen: list[tuple[Node, tuple[int, ...], int]],
    writers: dict[tuple[str, int], Node],
    appended: dict[tuple[Node, str], list[int]],
    history: Sequence[Transaction],
    graph: _Graph,
    found: list[Anomaly],
) -> None:
    """What each reader of a list must have come after, and before."""
    for reader, values, own in seen:
        if order[: len(values)] != values:
            found.append(
                Anomaly("incompatible order", f"{history[reader].name} read {key} as {values}, others {order}")
            )
            continue
        others = values[: len(values) - own]
        if others:
            writer = writers.get((key, others[-1]))
            if writer is not None and writer != reader:
                graph.add(writer, reader, f"wr {key}")
                if others[-1] != appended[writer, key][-1]:
                    found.append(
                        Anomaly("G1b", f"{history[reader].name} read {key} in the middle of {history[writer].name}")
                    )
        if len(values) < len(order) and not own:
            following = writers.get((key, order[len(values)]))
            if following is not None:
                graph.add(reader, following, f"rw {key}")


def _losses(
    writers: dict[tuple[str, int], Node],
    reads: dict[str, list[tuple[Node, tuple[int, ...], int]]],
    history: Sequence[Transaction],
    found: list[Anomaly],
) -> None:
    """Values whose append was acknowledged before somebody read the list, and which no read holds."""
    held = {key: frozenset(value for _, values, _ in seen for value in values) for key, seen in reads.items()}
    last_look = {key: max(history[node].invoked for node, _, _ in seen) for key, seen in reads.items()}
    for (key, value), writer in writers.items():
        one = history[writer]
        if one.outcome is not Outcome.ok or one.ended is None or value in held.get(key, ()):
            continue
        if one.ended < last_look.get(key, 0):
            found.append(Anomaly("lost", f"{one.name} appended {value} to {key}, and no later read has it"))


# --- registers


def _registers(history: Sequence[Transaction], graph: _Graph, found: list[Anomaly]) -> None:
    writers: dict[tuple[str, int], Node] = {}
    for node, one in enumerate(history):
        for operation in one.operations:
            if isinstance(operation, Put):
                writers[operation.key, operation.value] = node
    readers: dict[tuple[str, int | None], list[Node]] = defaultdict(list)
    overwriters: dict[tuple[str, int | None], list[Node]] = defaultdict(list)
    observed = {
        (operation.key, operation.value)
        for one in history
        if one.outcome is Outcome.ok
        for operation in one.operations
        if isinstance(operation, Get)
    }
    for node, one in enumerate(history):
        read: dict[str, int | None] = {}
        wrote: set[str] = set()
        for operation in one.operations:
            if isinstance(operation, Get) and one.outcome is Outcome.ok and operation.key not in wrote:
                read.setdefault(operation.key, operation.value)
                readers[operation.key, operation.value].append(node)
                if operation.value is None:
                    continue
                writer = writers.get((operation.key, operation.value))
                if writer is None:
                    found.append(Anomaly("garbage", f"{one.name} read {operation}, which nobody wrote"))
                elif history[writer].outcome is Outcome.failed:
                    found.append(Anomaly("G1a", f"{one.name} read {operation} of {history[writer].name}, which failed"))
                else:
                    graph.add(writer, node, f"wr {operation.key}")
            elif isinstance(operation, Get) and one.outcome is Outcome.unknown:
                read.setdefault(operation.key, operation.value)
            elif isinstance(operation, Put):
                wrote.add(operation.key)
                landed = one.outcome is Outcome.ok or (operation.key, operation.value) in observed
                if landed and one.outcome is not Outcome.failed and operation.key in read:
                    overwriters[operation.key, read[operation.key]].append(node)
    for version, by in overwriters.items():
        if len(by) > 1:
            names = ", ".join(history[node].name for node in by)
            found.append(Anomaly("lost update", f"{names} all read {version[0]} = {version[1]} and wrote it"))
        if version[1] is not None and (previous := writers.get((version[0], version[1]))) is not None:
            graph.add(previous, by[0], f"ww {version[0]}")
        for reader in readers[version]:
            graph.add(reader, by[0], f"rw {version[0]}")


# --- real time


def _real_time(history: Sequence[Transaction], graph: _Graph) -> None:
    """Moments of time as nodes: each end leads to its moment, each moment to the next and to what begins after it.

    So the edges are as many as the transactions, and not as their pairs.
    """
    ends = sorted((one.ended, node) for node, one in enumerate(history) if one.outcome is Outcome.ok and one.ended)
    moment, at = len(history) - 1, 0
    for node, one in enumerate(history):
        while at < len(ends) and ends[at][0] < one.invoked:
            moment += 1
            graph.add(ends[at][1], moment, "rt")
            if moment > len(history):
                graph.add(moment - 1, moment, "rt")
            at += 1
        if moment >= len(history):
            graph.add(moment, node, "rt")


# --- cycles


def _tangles(graph: _Graph, size: int) -> list[set[Node]]:
    """Strongly connected components that hold more than one transaction: Tarjan's algorithm, without recursion."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    on_stack: set[Node] = set()
    stack: list[Node] = []
    found: list[set[Node]] = []
    for root in list(graph.edges):
        if root in number:
            continue
        work = [(root, iter(graph.edges.get(root, ())))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(graph.edges.get(other, ()))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component: set[Node] = set()
                    while True:
                        one = stack.pop()
                        on_stack.discard(one)
                        component.add(one)
                        if one == node:
                            break
                    if sum(one < size for one in component) > 1:
                        found.append(component)
    return found


def _shortest_cycle(graph: _Graph, tangle: set[Node], size: int) -> list[Node]:
    """A cycle of few edges in a component, from a few of its transactions."""
    best: list[Node] = []
    for start in sorted(one for one in tangle if one < size)[:20]:
        came: dict[Node, Node] = {}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in graph.edges.get(node, ()):
                if other == start:
                    path = [node]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    path.reverse()
                    if not best or len(path) < len(best):
                        best = path
                    queue.clear()
                    break
                if other in tangle and other not in came:
                    came[other] = node
                    queue.append(other)
    return best


def _told(cycle: list[Node], graph: _Graph, history: Sequence[Transaction]) -> Anomaly:
    """The cycle as a story. Moments of time are left out: what leads through them is one rt edge."""
    kinds = [graph.edges[node][after] for node, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    steps = []
    for node, kind in zip(cycle, kinds, strict=True):
        if node < len(history):
            steps.append(f"{history[node].name} {history[node].operations} -[{kind}]->")
    short = [kind.partition(" ")[0] for kind in kinds]
    against = short.count("rw")
    name = (
        "G2" if against > 1 else "G-single" if against else "G1c" if "wr" in short else "G0" if "ww" in short else "rt"
    )
    return Anomaly(name + ("-realtime" if "rt" in short else ""), "\n    ".join([*steps, history[cycle[0]].name]))
