"""What went wrong is told once for all to which the same happened; what somebody ended on purpose isn't wrong."""

from __future__ import annotations

from fdb_datamodel import Failure, FutureInfo, FutureState
from fdb_datamodel.views.troubles import find_troubles


def _failed(name: str, reason: str, at: int) -> FutureInfo:
    failure = Failure(reason, f"{name} ended", wall_us=at)
    return FutureInfo(id=bytes(16), state=FutureState.failed, reason="", name=name, failure=failure)


def test_cancelled_ones_are_counted_and_are_no_trouble() -> None:
    found = find_troubles(
        [_failed("load", "crash", 5), _failed("actor Hits", "cancelled", 9), _failed("actor Hits", "cancelled", 8)]
    )
    assert [(one.name, one.what) for one in found.listed()] == [("load", "crash")]
    assert found.cancelled == 2
