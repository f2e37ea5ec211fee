"""What tasks print is kept, and whoever submitted them is mailed of it if it hears of output."""

from __future__ import annotations

from datamodel_lab.lab import Lab

import fdb_datamodel as dm


def test_only_a_session_that_hears_is_mailed(lab: Lab) -> None:
    (one,) = lab.submit(lab.spec())
    lab(dm.beat_session, lab.session, 1)
    assert lab(dm.write_output, one, dm.TaskOutput(1, b"unheard", 7))
    assert [entry.kind for entry in lab.mail()] == []
    lab(dm.beat_session, lab.session, 2, hears=True)
    assert lab(dm.write_output, one, dm.TaskOutput(1, b"unheard, heard", 14))
    assert [(entry.id, entry.kind) for entry in lab.mail()] == [(one, "output")]
    lab(dm.beat_session, lab.session, 3)
    assert lab(dm.write_output, one, dm.TaskOutput(1, b"unheard, heard, unheard", 23))
    assert lab(dm.read_output, one) == [dm.TaskOutput(1, b"unheard, heard, unheard", 23)]
    assert lab.validate() == []
    lab(dm.delete_future, one)
    assert not lab(dm.write_output, one, dm.TaskOutput(1, b"late", 4))
