"""Who reads the mail for all threads of a client gives that up, wherever a KeyboardInterrupt comes."""

from __future__ import annotations

import sys
from typing import Any

from futures_worker import Client
from futures_worker.client.turn import Turn


def test_one_at_a_time_has_it() -> None:
    turn, one, two = Turn(), object(), object()
    assert turn.take(one)
    assert not turn.take(two)
    turn.holder = None
    assert turn.take(two)


def test_an_interrupt_at_any_call_of_a_look_leaves_the_client_able_to_wait(any_url: str) -> None:
    """Python handles a signal where a function begins and where a call has returned."""
    with Client(any_url, "test") as client:
        session = client._live
        client.submit(abs, -1).done()
        count = at = 0

        def interrupt(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            code, caller = frame.f_code, frame.f_back
            if code.co_name == "__del__" or (caller is not None and caller.f_code.co_name == "__del__"):
                return  # the collector's: what is raised there reaches nobody
            if "/futures_worker/client/" in code.co_filename and event in ("call", "c_return"):
                count += 1
                if count == at:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        interrupted = 0
        for at in range(1, 60):
            count = 0
            sys.setprofile(interrupt)
            try:
                session._wait_for_mail(lambda: False, 0.0)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.setprofile(None)
            assert session._reading.holder is None, f"after an interrupt at call {at} the mail is never read again"
        assert interrupted > 10
