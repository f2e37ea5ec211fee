"""Datasets: lists cut into partitions that live in the cluster, transformed by one future per partition.

Nothing here is special to datasets: a partition is a future whose result is a list, so it is durable, computed again if it
is lost, moved by `clone` and `transfer`, and freed when it is deleted or nobody holds it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from functools import reduce as fold
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from fdb_datamodel import new_future_id
from futures_worker.client.basis.options import DEFAULT_OPTIONS, SubmitOptions
from futures_worker.client.context import ClientContext
from futures_worker.client.data import delete_all, put_with
from futures_worker.client.future import Future
from futures_worker.client.submits.submitting import submit
from futures_worker.client.waiting.gathering import gather
from futures_worker.client.waiting.waits import await_all
from futures_worker.code.function_code import function_name

T = TypeVar("T")
U = TypeVar("U")

FAN_IN: Final = 8
"""Partial results that one future of `reduce` combines."""


class Dataset(Generic[T]):
    """An ordered collection in partitions. Made by `Client.dataset`; never changed: each method makes a new one.

    Work begins at once and doesn't wait; `collect`, `reduce`, `count` and `repartition` wait for what they need.
    """

    def __init__(self, context: ClientContext, partitions: Sequence[Future[Any]], options: SubmitOptions) -> None:
        self._context = context
        self._options = options
        self.partitions: tuple[Future[Any], ...] = tuple(partitions)
        """The futures of the partitions, in order; each one's result is a list."""

    def __len__(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    def map(self, fn: Callable[[T], U]) -> Dataset[U]:
        """`fn(item)` of every item."""
        return self._each("map", _map, fn)

    def flat_map(self, fn: Callable[[T], Iterable[U]]) -> Dataset[U]:
        """All the items of `fn(item)` of every item."""
        return self._each("flat_map", _flat_map, fn)

    def filter(self, fn: Callable[[T], Any]) -> Dataset[T]:
        """The items of which `fn(item)` is true."""
        return self._each("filter", _filter, fn)

    def map_partitions(self, fn: Callable[[list[T]], Iterable[U]]) -> Dataset[U]:
        """`fn(list of items)` of every partition."""
        return self._each("map_partitions", _map_partition, fn)

    def reduce(self, fn: Callable[[T, T], T], *initial: T, timeout: float | None = None) -> T:
        """All items combined by `fn(one, next)`, in order but in no particular grouping: `fn` has to be associative.

        `initial` comes before all others. Raises TypeError if there is neither it nor any item.
        """
        options = _named(self._options, "reduce", fn)
        level = [self._submit(partial(_reduce, fn), partition, options=options) for partition in self.partitions]
        while len(level) > 1:
            groups = [level[at : at + FAN_IN] for at in range(0, len(level), FAN_IN)]
            level = [self._submit(partial(_combine, fn), group, options=options) for group in groups]
        found = level[0].result(timeout) if level else []
        values: list[T] = [*initial, *found]
        if not values:
            raise TypeError("reduce of an empty dataset with no initial value")
        return fold(fn, values)

    def count(self, timeout: float | None = None) -> int:
        """How many items there are."""
        return sum(self._counts(timeout))

    def repartition(self, number: int, timeout: float | None = None) -> Dataset[T]:
        """The same items, in order, in `number` partitions of nearly equal length. Waits until the present ones are there.

        A new partition is made near the one that most of it comes from. The present ones stay until `delete`.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"a dataset has 1 partition or more, found {number!r}")
        counts = self._counts(timeout)
        made = []
        total = sum(counts)
        chosen = _of_one(_named(self._options, "repartition"))
        for index in range(number):
            pieces = list(_overlap(counts, total * index // number, total * (index + 1) // number))
            largest = max(pieces, key=lambda piece: piece[2] - piece[1], default=None)
            options = chosen
            if largest is not None and options.locality is None:
                options = options.changed(locality=self.partitions[largest[0]])
            parts = [(self.partitions[at], start, stop) for at, start, stop in pieces]
            made.append(self._submit(_join, parts, options=options))
        return Dataset(self._context, made, self._options)

    def collect(self, timeout: float | None = None, *, progress: bool = False) -> list[T]:
        """All items, in order, in this process."""
        lists = gather(self.partitions, timeout=timeout, progress=progress)
        return [item for part in lists for item in part]

    def wait(self, timeout: float | None = None) -> Dataset[T]:
        """Itself, once every partition is there. Raises the first failure."""
        await_all(self.partitions, timeout=timeout)
        return self

    def delete(self) -> None:
        """Delete the partitions: this dataset is of no use any more."""
        delete_all(self._context, self.partitions)

    def __iter__(self) -> Iterator[T]:
        for partition in self.partitions:
            yield from partition.result()

    def __repr__(self) -> str:
        return f"<Dataset of {len(self.partitions)} partitions>"

    def _each(self, verb: str, step: Callable[..., list[Any]], fn: Callable[..., Any]) -> Dataset[Any]:
        step = partial(step, fn)  # none of the arguments: a future that `fn` refers to stays one
        options = _of_one(_named(self._options, verb, fn))
        made = [self._submit(step, partition, options=options) for partition in self.partitions]
        return Dataset(self._context, made, self._options)

    def _submit(self, step: Callable[..., Any], *args: Any, options: SubmitOptions | None = None) -> Future[Any]:
        return submit(self._context, options or self._options, step, args, {})

    def _counts(self, timeout: float | None) -> list[int]:
        options = _named(self._options, "count")
        counts: list[Future[int]] = [self._submit(len, partition, options=options) for partition in self.partitions]
        return gather(counts, timeout=timeout, progress=False)


def make_dataset(context: ClientContext, parts: Iterable[Any], options: SubmitOptions) -> Dataset[Any]:
    """See `Client.dataset`."""
    if isinstance(parts, (str, bytes)):
        raise TypeError("a dataset is made from partitions: lists of items, or futures of lists")
    marked = _of_one(_named(DEFAULT_OPTIONS, "put"))
    partitions = [part if isinstance(part, Future) else put_with(context, marked, list(part)) for part in parts]
    return Dataset(context, partitions, options)


def _of_one(options: SubmitOptions) -> SubmitOptions:
    """For the partitions of one dataset: a mark that they have in common, by which people find them together."""
    return replace(options, dataset=new_future_id())


def _named(options: SubmitOptions, verb: str, fn: Callable[..., Any] | None = None) -> SubmitOptions:
    """With what people know a step by: `map(tokens)`. It is no name that the caller gave, and keeps nothing."""
    name = verb if fn is None else f"{verb}({function_name(fn).rpartition('.')[2]})"
    return options if options.name else replace(options, name=name, keep=options.kept)


def _overlap(counts: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """What items `start` to `stop` are of which partition: (partition, from, to) within it."""
    begin = 0
    for at, count in enumerate(counts):
        first, last = max(start - begin, 0), min(stop - begin, count)
        if first < last:
            yield at, first, last
        begin += count


def _map(fn: Callable[[Any], Any], part: Iterable[Any]) -> list[Any]:
    return [fn(item) for item in part]


def _flat_map(fn: Callable[[Any], Iterable[Any]], part: Iterable[Any]) -> list[Any]:
    return [made for item in part for made in fn(item)]


def _filter(fn: Callable[[Any], Any], part: Iterable[Any]) -> list[Any]:
    return [item for item in part if fn(item)]


def _map_partition(fn: Callable[[list[Any]], Iterable[Any]], part: Iterable[Any]) -> list[Any]:
    return list(fn(list(part)))


def _reduce(fn: Callable[[Any, Any], Any], part: Iterable[Any]) -> list[Any]:
    """The partial result, or nothing of no items."""
    items = list(part)
    return [fold(fn, items)] if items else []


def _combine(fn: Callable[[Any, Any], Any], partials: Sequence[list[Any]]) -> list[Any]:
    return _reduce(fn, [value for partial in partials for value in partial])


def _join(parts: Sequence[tuple[Iterable[Any], int, int]]) -> list[Any]:
    # What a generator made has no slices.
    return [item for part, start, stop in parts for item in islice(part, start, stop)]
