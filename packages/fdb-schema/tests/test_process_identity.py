"""Who a process is: certain, or not claimed at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fdb_schema import identity


def test_a_process_whose_proc_shows_another_namespace_claims_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    readlink = os.readlink
    assert identity.pid_namespace(), "here it can be told"
    monkeypatch.setattr(os, "readlink", lambda path: "4242" if path == "/proc/self" else readlink(path))
    assert identity.pid_namespace() == ""


def test_a_living_process_is_not_gone_to_one_that_can_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start = identity.process_start(child.pid)
        assert start is not None
        who = identity.boot_id(), identity.pid_namespace(), child.pid, start[0]
        assert not identity.process_gone(*who)
        # As seen from a namespace of its own, under the /proc of this one: its number is nobody's there.
        readlink = os.readlink
        monkeypatch.setattr(os, "readlink", lambda path: "1" if path == "/proc/self" else readlink(path))
        monkeypatch.setattr(os, "kill", lambda *_: (_ for _ in ()).throw(ProcessLookupError()))
        assert not identity.process_gone(*who)
    finally:
        child.communicate()


def test_a_number_that_no_process_can_have_is_no_proof() -> None:
    assert not identity.process_gone(identity.boot_id(), identity.pid_namespace(), 1 << 40, 0)
