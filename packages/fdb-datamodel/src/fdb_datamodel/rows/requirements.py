"""What a future needs and what a worker has: cpu, ram, gpu, and the rounded shapes the indices are keyed by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[_letter + "b"] = 1000**_power
    _UNITS[_letter + "i"] = _UNITS[_letter + "ib"] = 1024**_power
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)

_MOST = 1 << 60  # of what an index can hold, with room for rounding up

Named = tuple[tuple[str, int], ...]  # (name, thousandths) of other resources, by name
Triple = tuple[int, int, int]
Devices = tuple[int, ...]  # thousandths of each gpu
Shape = Triple | tuple[int, int, int, Named] | tuple[int, int, int, Named, Devices]
"""(cpu in thousandths, ram in bytes, gpu in thousandths), the unit of the indices; and what is named, if anything is. Of what a worker
has free also how much of each gpu, where it gives them out one by one: fractions of two are no whole one."""

_NAME = re.compile(r"[^\W\d][\w.:/-]{0,99}")
_OURS = {
    **dict.fromkeys(("cpus", "num_cpus", "cores"), "cpu"),
    **dict.fromkeys(("gpus", "num_gpus", "cuda"), "gpu"),
    **dict.fromkeys(("memory", "mem"), "ram"),
}


def parse_size(size: int | float | str) -> int:
    """Return a number of bytes from 1024, "2GiB", "500 MB" (k, M, G, T, P are powers of 1000; Ki, Mi… of 1024).

    Raises ValueError for anything else.
    """
    if isinstance(size, bool) or not isinstance(size, (int, float, str)):
        raise ValueError(f"a size is a number of bytes or text as '2GiB', not {size!r}")
    found = _parse_size(size)
    if found >= _MOST:
        raise ValueError(f"a size can't be {size!r}: that is more than any machine has")
    return found


def _parse_size(size: int | float | str) -> int:
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = match and _UNITS.get(match[2].lower())
        if not match or not unit:
            raise ValueError(
                f"can't read {size!r} as a size: write bytes, or a number with kB, MB, GB, KiB, MiB, GiB …"
            )
        return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size < 0 or size != size or size == float("inf"):
        raise ValueError(f"a size can't be {size!r}")
    return int(size)


def format_size(size: int) -> str:
    """Bytes as `parse_size` reads them: exactly, as "2GiB" or "1.5GB", where that is short; else to three digits."""
    for base, mark in ((1024, "iB"), (1000, "B")):
        power = max((power for power in range(1, 6) if size >= base**power), default=0)
        if power and size * 100 % base**power == 0:
            return f"{size / base**power:g}{'kMGTP'[power - 1] if base == 1000 else 'KMGTP'[power - 1]}{mark}"
    if size < 1024:
        return f"{size}B" if size else "0"
    power = max(power for power in range(1, 6) if size >= 1024**power)
    return f"{size / 1024**power:.3g}{'KMGTP'[power - 1]}iB"


def _thousandths(name: str, amount: int | float) -> int:
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < _MOST / 1000:
        raise ValueError(f"{name} is a number of {name}s, 0 or more, not {amount!r}")
    return round(amount * 1000)


def read_named(named: Mapping[str, int | float] | Named) -> Named:
    """Names and amounts, sorted, without those of nothing; of a tuple the amounts are thousandths. Raises ValueError."""
    if isinstance(named, tuple):
        return named
    found: list[tuple[str, int]] = []
    for name, amount in named.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"a resource has a name of letters, digits, '_', '.', ':', '/' and '-', a letter first, found {name!r:.80}"
            )
        meant = _OURS.get(name.lower()) or (name.lower() if name.lower() in ("cpu", "ram", "gpu") else None)
        if meant is not None:
            raise ValueError(f"a resource can't be named {name!r}: did you mean {meant!r}?")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < _MOST / 1000:
            raise ValueError(f"of the resource {name!r} is a number, 0 or more, not {amount!r:.80}")
        found.append((name, max(1, round(amount * 1000)) if amount else 0))
    return tuple(sorted(found))


def named_of(shape: Shape) -> Named:
    """What of a shape is named."""
    return shape[3] if len(shape) > 3 else ()


def shape_of(cpu: int, ram: int, gpu: int, named: Named) -> Shape:
    """A shape of these."""
    return (cpu, ram, gpu, named) if named else (cpu, ram, gpu)


def fits(shape: Shape, free: Shape) -> bool:
    """Whether what has the one can be had where the other is free."""
    if shape[0] > free[0] or shape[1] > free[1] or shape[2] > free[2]:
        return False
    if shape[2] and len(free) == 5 and allot(free[4], shape[2]) is None:
        return False
    return len(shape) == 3 or named_fits(shape[3], named_of(free))


def allot(devices: Devices, amount: int) -> tuple[tuple[int, int], ...] | None:
    """Which of these gpus `amount` is taken of, by their places, and how much of each; None: it can't be.

    Whole ones first; what is less than one is taken of a single one, of which the least is free.
    """
    whole, part = divmod(amount, 1000)
    chosen = [(at, 1000) for at, free in enumerate(devices) if free >= 1000][:whole]
    if len(chosen) < whole:
        return None
    if part:
        taken = {at for at, _ in chosen}
        fitting = [(free, at) for at, free in enumerate(devices) if free >= part and at not in taken]
        if not fitting:
            return None
        chosen.append((min(fitting)[1], part))
    return tuple(chosen)


def named_fits(needs: Named, free: Named) -> bool:
    """The same of what is named: what isn't offered there is none of."""
    have = dict(free)
    return all(have.get(name, 0) >= amount for name, amount in needs)


def less(free: Shape, shape: Shape) -> Shape:
    """What stays free."""
    left = free[0] - shape[0], free[1] - shape[1], free[2] - shape[2]
    if len(free) == 3:
        return left
    takes = dict(named_of(shape))
    named = tuple((name, amount - takes.get(name, 0)) for name, amount in free[3]) if takes else free[3]
    if len(free) == 4:
        return (*left, named)
    if not shape[2]:
        return (*left, named, free[4])
    devices = list(free[4])
    for at, amount in allot(free[4], shape[2]) or ():
        devices[at] -= amount
    return (*left, named, tuple(devices))


def round_up(amount: int, unit: int) -> int:
    """Return the smallest unit * 2**k * (1 + j/8) (k integer, j in 0..7), rounded up to an integer, that is >= amount.

    Amounts of one octave fall on eight values, so a million different amounts are still few shapes.
    """
    if amount <= 0:
        return 0
    # an octave [2**k, 2**(k+1)) of amount/unit, in exact integer arithmetic
    k = (amount // unit).bit_length() - 1 if amount >= unit else -((-(-unit // amount) - 1).bit_length())
    while True:  # below one unit the first guess may be an octave too low
        numerator, denominator = (unit << k, 8) if k >= 0 else (unit, 8 << -k)
        steps = -(-amount * denominator // numerator)
        if steps <= 16:
            return -(-max(steps, 8) * numerator // denominator)
        k += 1


def index_shape(shape: Shape) -> Shape:
    """The shape under which a future of this one stands in the pool, and which `Claims.blocked` names."""
    return shape_of(shape[0], round_up(shape[1], 1), round_up(shape[2], 1000), round_named(named_of(shape)))


def round_named(named: Named) -> Named:
    """Amounts as the pool's keys have them."""
    return tuple((name, round_up(amount, 1000)) for name, amount in named)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What one future needs, or what a worker has in total or free.

    cpu: cores (fractions allowed, kept in thousandths). ram: bytes, or text as "2GiB". gpu: devices, as cpu. named: of
    resources that workers were said to have, `{"db": 1}`, as cpu. `None` of a spec means all zero: any worker with a free slot.
    """

    cpu: int | float = 0
    ram: int | float | str = 0
    gpu: int | float = 0
    named: Mapping[str, int | float] | Named = ()
    shape: Shape = field(init=False, repr=False, compare=False, default=(0, 0, 0))

    def __post_init__(self) -> None:
        named = read_named(self.named)
        object.__setattr__(self, "named", named)
        shape = shape_of(_thousandths("cpu", self.cpu), parse_size(self.ram), _thousandths("gpu", self.gpu), named)
        object.__setattr__(self, "shape", shape)

    def __str__(self) -> str:
        """As people write them: `cpu=1 ram=2GiB gpu=0 db=1`."""
        ours = f"cpu={self.shape[0] / 1000:g} ram={format_size(self.shape[1])} gpu={self.shape[2] / 1000:g}"
        return " ".join([ours, *(f"{name}={amount / 1000:g}" for name, amount in named_of(self.shape))])

    @classmethod
    def from_shape(cls, shape: Shape) -> Requirements:
        """Return the requirements whose `.shape` is (thousandths of a cpu, bytes, thousandths of a gpu), and what is named."""
        return cls(shape[0] / 1000, shape[1], shape[2] / 1000, named_of(shape))

    def fits(self, capacity: Requirements) -> bool:
        """Whether a worker with `capacity` free can take this."""
        return fits(self.shape, capacity.shape)


NOTHING = Requirements()
_NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker offers in one claim: free slots are the claim's `limit`; these are its free resources.

    free: what may be taken now. total: what the worker has when idle: a shape over it is none of its business, a shape
    over `free` only is reported as blocked. hold_for: a shape that waited too long; nothing else is claimed from the
    pool until it fits, or if it waits for gpus or named resources nothing else that needs them. stripe: (which, of how many) workers that claim from this pool; each prefers its own part of the
    entries, so that two seldom choose the same. look: False if a bell would have told of work that came since the worker
    found nothing: then only what its own outcomes unblock is claimed. wanted: futures (ids) that running tasks of this
    worker wait for: claimed before all else, if they are in the pool; with `overcommit` whatever is free, if they fit the
    total: the tasks that hold what isn't free wait for them. ahead: how many futures may be claimed that only wait for
    another one of this worker's claims. wary: the claim before `passed` entries that don't fit: look at a few of what comes
    first before a page of it is read. survey: also name, as blocked, the shapes of the pool that weren't looked at because
    enough was found before them.

    seconds: of work that may be claimed, by `pace`: what a run of each code (as `Claim.code`) takes, those missing in it
    `unknown` seconds. The first `at_once` claims and the `wanted` ones are made whatever they take, and are counted; the first
    other one that would take more than what is left ends the claiming (`Claims.cut`), so that no lesser one overtakes it.
    ahead_seconds: the same of what is claimed behind other claims. devices: thousandths that are free of each gpu, where the worker
    gives them out one by one.
    """

    free: Requirements = NOTHING
    total: Requirements | None = None  # None: the same as free
    hold_for: Requirements | None = None
    stripe: tuple[int, int] = (0, 1)
    look: bool = True
    wanted: tuple[bytes, ...] = ()
    overcommit: bool = False
    ahead: int = 0
    survey: bool = False
    wary: bool = False
    seconds: float = _NO_LIMIT
    at_once: int = 0
    pace: Mapping[bytes, float] = field(default_factory=dict)
    unknown: float = 0.0
    ahead_seconds: float = _NO_LIMIT
    devices: Devices = ()

    @property
    def room(self) -> Shape:
        """What is free, as claims take from it."""
        shape = self.free.shape
        return (*shape[:3], named_of(shape), self.devices) if self.devices else shape

    def cost(self, code: bytes) -> float:
        """Seconds that a run of this code is expected to take."""
        return self.pace.get(code, self.unknown)
