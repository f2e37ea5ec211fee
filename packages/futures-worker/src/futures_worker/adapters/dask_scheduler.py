"""Dask on a cluster: `dask.compute(…, scheduler=client)`. Each node of a graph becomes a future that depends on those of its inputs.

Chains are fused into one. A large result goes as soon as all that need it have ended; its record stays until the end, so that one
that is lost with its worker is computed again from its inputs, and these from theirs.
"""

from __future__ import annotations

import contextlib
import types
from collections import Counter
from collections.abc import Generator, Mapping
from functools import partial
from inspect import isgeneratorfunction
from typing import Any, Final

from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    Set,
    Task,
    TaskRef,
    Tuple,
    convert_legacy_graph,
    cull,
    fuse_linear_task_spec,
)
from dask.core import flatten
from dask.local import nested_get
from dask.order import order
from dask.sizeof import sizeof
from dask.utils import ensure_dict, key_split

from fdb_datamodel.transitions.sweep import shed_results
from futures_worker.adapters.leaving import leave_nothing
from futures_worker.client import Future, as_completed
from futures_worker.client.bound import BoundOptions
from futures_worker.client.context import ClientContext
from futures_worker.client.data import delete_all, put
from futures_worker.client.future import record_of
from futures_worker.database import ask
from futures_worker.errors import UpstreamDependencyFailedException

KEPT_SECONDS: Final = 60.0
"""That what this process can't delete any more is kept: it was killed, say."""
SMALL_BYTES: Final = 65_536
"""Of data in the graph that goes with each task that needs it; more is a future of its own."""
MOST_BYTES: Final = 60_000_000
"""Of data that lies in the database, from which it is had again after any loss; more is put."""
SHED_AT_ONCE: Final = 16
SHED_BYTES: Final = 32 << 20
"""Results that nobody needs any more wait to be so many, or so large together, before they go."""
PLAIN: Final = (types.FunctionType, types.BuiltinFunctionType, type)
CONTAINERS: Final[dict[type, type]] = {List: list, Tuple: tuple, Set: set}


def get(context: ClientContext, dsk: Any, keys: Any, options: Mapping[str, Any]) -> Any:
    """See `Client.get`."""
    chosen = dict(options)
    chosen.setdefault("max_retries", chosen.pop("retries", None) or 0)
    context.options.changed(**chosen)  # a wrong option is told before anything is submitted
    wanted = set(flatten(keys)) if isinstance(keys, list) else {keys}
    graph = _graph(dsk, wanted)
    run = _Run(context, {"ttl": KEPT_SECONDS, **chosen}, graph, wanted)
    try:
        run.submit()
        run.follow()
        return nested_get(keys, {key: run.value(key) for key in wanted})
    finally:
        run.end()


def _graph(dsk: Any, wanted: set[Any]) -> dict[Any, GraphNode]:
    """The nodes that `wanted` needs, in the form of current Dask, chains fused."""
    if not isinstance(dsk, Mapping):
        dsk = dsk.__dask_graph__()
    nodes = cull(convert_legacy_graph(ensure_dict(dsk)), wanted)
    return dict(fuse_linear_task_spec(nodes, wanted))


class _Run:
    """One graph on its way."""

    def __init__(
        self, context: ClientContext, options: Mapping[str, Any], graph: dict[Any, GraphNode], wanted: set[Any]
    ) -> None:
        self._context = context
        self._options = options
        self._graph = graph
        self._wanted = {self._source(key) for key in wanted}
        self._values: dict[Any, Any] = {}  # node -> its future, or what it is where that is small data
        self._keys: dict[Future[Any], Any] = {}  # of what is submitted
        self._inputs: dict[Any, set[Any]] = {}
        self._needed: Counter[Any] = Counter()  # node -> dependents that haven't ended
        self._put: list[Future[Any]] = []
        self._shed: list[Future[Any]] = []
        self._shed_bytes = 0
        self._bound: dict[str, BoundOptions] = {}

    def submit(self) -> None:
        """Submit all of it, inputs first, in the order in which Dask holds least at a time."""
        ranks = order(self._graph)
        for key in sorted(self._graph, key=ranks.__getitem__):
            node = self._graph[key]
            if isinstance(node, Alias):
                continue
            self._inputs[key] = inputs = {self._source(one) for one in node.dependencies}
            self._needed.update(inputs)
            self._values[key] = self._data(key, node.value) if isinstance(node, DataNode) else self._task(key, node)

    def _source(self, key: Any) -> Any:
        """The node that an alias, and an alias of it, stands for."""
        while isinstance(node := self._graph[key], Alias):
            key = node.target
        return key

    def _data(self, key: Any, value: Any) -> Any:
        size = sizeof(value)
        if size < SMALL_BYTES:
            return value
        if size > MOST_BYTES:
            future = put(self._context, value, ttl=KEPT_SECONDS)
            self._put.append(future)
            return future
        return self._sent(key, itself, (value,), {})

    def _task(self, key: Any, node: GraphNode) -> Any:
        if isinstance(node, Task) and isinstance(node.func, PLAIN) and not isgeneratorfunction(node.func):
            with contextlib.suppress(_Nested):
                args = tuple(map(self._argument, node.args))
                kwargs = {name: self._argument(value) for name, value in node.kwargs.items()}
                return self._sent(key, node.func, args, kwargs)
        values = {one: self._values[self._source(one)] for one in node.dependencies}
        return self._sent(key, run_node, (node, list(values), list(values.values())), {})

    def _argument(self, value: Any) -> Any:
        """What a function is given: futures in the place of what other nodes make. Raises _Nested."""
        if isinstance(value, TaskRef):
            return self._values[self._source(value.key)]
        if not isinstance(value, GraphNode):
            return value
        if isinstance(value, Alias):
            return self._values[self._source(value.target)]
        if isinstance(value, DataNode):
            return value.value
        kind = CONTAINERS.get(type(value))
        if kind is not None:
            return kind(map(self._argument, value.args))
        if type(value) is Dict:
            parts = list(map(self._argument, value.args))
            return dict(zip(parts[::2], parts[1::2], strict=True))
        raise _Nested

    def _sent(self, key: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        name = key_split(key)[:500] or "node"
        bound = self._bound.get(name)
        if bound is None:
            options = self._context.options.changed(**{"name": name, **self._options})
            bound = self._bound[name] = BoundOptions(self._context, options)
        future: Future[Any] = bound.submit(function, *args, **kwargs)
        self._keys[future] = key
        return future

    def follow(self) -> None:
        """Until all have ended, let go what none needs any more. Raises what a task raised."""
        behind: BaseException | None = None
        for future in as_completed(list(self._keys)):
            error = future.exception()
            if isinstance(error, UpstreamDependencyFailedException):
                behind = behind or error  # the one that it names says why
            elif error is not None:
                raise error
            for one in self._inputs[self._keys[future]]:
                self._needed[one] -= 1
                if not self._needed[one] and one not in self._wanted:
                    self._let_go(self._values[one])
        if behind is not None:
            raise behind

    def _let_go(self, value: Any) -> None:
        if isinstance(value, Future) and value in self._keys:  # no small data, and nothing that was put
            entry = record_of(value).entry
            if entry is None or entry.result is None or entry.result.inline is not None:
                return
            self._shed.append(value)
            self._shed_bytes += entry.result.size
        if len(self._shed) >= SHED_AT_ONCE or self._shed_bytes >= SHED_BYTES:
            page, self._shed, self._shed_bytes = self._shed, [], 0
            ask(self._context.db, shed_results, self._context.space, [record_of(one).id for one in page])

    def value(self, key: Any) -> Any:
        """The value of a wanted node, once all have ended."""
        value = self._values[self._source(key)]
        return value.result() if isinstance(value, Future) else value

    def end(self) -> None:
        """Stop what still runs, and leave nothing."""
        # What is deleted while it runs is stopped. Dependents first: else each would be told of what it depends on.
        leave_nothing(partial(delete_all, self._context), [*reversed(self._keys), *self._put])


class _Nested(Exception):
    """A node has others inside, so it is run as a whole."""


def itself(value: Any) -> Any:
    """The task that data of a graph is."""
    return value


def run_node(node: GraphNode, keys: list[Any], values: list[Any]) -> Any:
    """The task of a node that is more than a call."""
    result = node(dict(zip(keys, values, strict=True)))
    return list(result) if isinstance(result, Generator) else result
