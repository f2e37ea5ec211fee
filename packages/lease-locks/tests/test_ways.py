"""Values whose parts are met on more ways than can be walked have keys, too: a graph of objects that know their neighbours."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from lease_locks import MemoKeyError
from lease_locks.memo import walking
from lease_locks.memo.canonical import canonical


class Node:
    def __init__(self, at: Any, near: Any = ()) -> None:
        self.at = at
        self.near = near


@pytest.fixture(autouse=True)
def fewer_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "WAYS", 500)


def grid(size: int, kind: type[list[Any]] | type[set[Any]] = list) -> list[Node]:
    """Each knows those beside it."""
    nodes = {(x, y): Node((x, y)) for x in range(size) for y in range(size)}
    for (x, y), node in nodes.items():
        near = [nodes.get(at) for at in ((x, y + 1), (x + 1, y), (x, y - 1), (x - 1, y))]
        node.near = kind([one for one in near if one is not None])
    return list(nodes.values())


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("around", [list, tuple, set, lambda nodes: {node.at: node for node in nodes}])
def test_a_graph_has_one_key_wherever_it_is_made(size: int, around: Any) -> None:
    graph = around(grid(size))
    same = [graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), around(grid(size))]
    assert len({canonical(one) for one in same}) == 1


def test_graphs_that_differ_have_different_keys() -> None:
    def without(at: int, near: int) -> list[Node]:
        nodes = grid(5)
        del nodes[at].near[near]
        return nodes

    def turned() -> list[Node]:
        nodes = grid(5)
        nodes[12].near.reverse()
        return nodes

    def other() -> list[Node]:
        nodes = grid(5)
        nodes[24].at = "another"
        return nodes

    graphs = [grid(5), without(3, 1), without(24, 0), without(24, 1), turned(), other(), grid(5)[::-1]]
    assert len({canonical(graph) for graph in graphs}) == len(graphs)


def made_of_two(depth: int, last: Any) -> Node:
    """Of two parts, each made of the same two, and so on."""
    one, other = Node(last), Node(0)
    for _ in range(depth):
        one, other = Node(one, [other]), Node(one, [other])
    return one


def test_what_is_made_of_the_same_parts_over_and_over_has_a_key() -> None:
    assert canonical(made_of_two(40, 1)) == canonical(made_of_two(40, 1))
    assert len({canonical(made_of_two(40, last)) for last in (1, 2, 1.0)} | {canonical(made_of_two(41, 1))}) == 4


@pytest.mark.parametrize("many", [0, 1_000])
def test_equal_parts_count_alike_whether_they_are_one_object_or_several(many: int) -> None:
    part = [Node(1, [{"a": [2]}])]
    rest = [[n] for n in range(many)]
    assert canonical([rest, part, part]) == canonical([rest, part, copy.deepcopy(part)])
    assert canonical([rest, part, part]) != canonical([rest, part, [Node(1, [{"a": [3]}])]])


def test_a_graph_of_sets_has_a_key_or_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "ORDERINGS", 2_000)
    few = [(grid(2, set), [[n] for n in range(1_000)]) for _ in range(3)]
    assert len({canonical(graph) for graph in few}) == 1
    for graph in (grid(5, set), set(grid(5, set)), dict.fromkeys(grid(5, set))):
        with pytest.raises(MemoKeyError, match="refer to each other through sets"):
            canonical(graph)


def test_a_function_may_refer_to_a_graph() -> None:
    def made(graph: list[Node]) -> Any:
        return lambda: graph

    assert canonical(made(grid(5))) == canonical(made(grid(5)))
    assert canonical(made(grid(5))) != canonical(made(grid(5)[:-1]))
