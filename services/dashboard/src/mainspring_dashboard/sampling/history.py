"""What the plots show: a sample every second for a quarter of an hour, and one every 30 seconds for a day. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

FINE: Final = 900  # samples, one a second
COARSE_SECONDS: Final = 30.0
COARSE: Final = 2_880


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Rates are per second since the sample before; latencies are seconds from submit to end, or None."""

    at: float  # wall time, seconds since 1970, for people
    counts: dict[str, int] = field(default_factory=dict)
    finished: float = 0.0
    failed: float = 0.0
    p50: float | None = None
    p99: float | None = None
    workers: int = 0
    slots: int = 0
    busy: int = 0


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile of ascending values; None of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * 1000) * len(ordered) // 1000) - 1))]


class History:
    """Samples of the last day; the older ones thinned out."""

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque(maxlen=FINE)
        self._coarse: deque[Sample] = deque(maxlen=COARSE)

    def add(self, sample: Sample) -> None:
        """Append the newest sample."""
        self._fine.append(sample)
        if not self._coarse or sample.at - self._coarse[-1].at >= COARSE_SECONDS:
            self._coarse.append(sample)

    @property
    def last(self) -> Sample | None:
        return self._fine[-1] if self._fine else None

    def since(self, at: float) -> list[dict[str, Any]]:
        """Samples later than `at`, oldest first: the coarse ones where the fine ones don't reach back."""
        first_fine = self._fine[0].at if self._fine else float("inf")
        older = [one for one in self._coarse if at < one.at < first_fine]
        return [asdict(one) for one in (*older, *(one for one in self._fine if one.at > at))]
