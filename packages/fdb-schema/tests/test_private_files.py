"""Files that hold what programs store or print are their owner's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdb_schema.serving.private_files import make_private_directory, private_opener


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_a_log_is_its_owners_and_one_that_was_there_becomes_so(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    for _ in range(2):
        with open(log, "ab", opener=private_opener) as file:
            file.write(b"line\n")
        assert mode(log) == 0o600
        log.chmod(0o644)
    assert log.read_bytes() == b"line\n" * 2


@pytest.mark.usefixtures("umask")
def test_a_directory_that_is_made_is_its_owners_and_one_that_is_there_stays(tmp_path: Path) -> None:
    made, there = tmp_path / "a" / "b", tmp_path / "there"
    there.mkdir()
    before = mode(there)
    assert mode(make_private_directory(made)) == 0o700
    assert not mode(made.parent) & 0o022  # who may write there could put another in its place
    assert mode(make_private_directory(there)) == before
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="in the place of a directory"):
        make_private_directory(tmp_path / "file")


def test_the_device_that_swallows_everything_keeps_its_mode() -> None:
    before = mode(Path(os.devnull))
    with open(os.devnull, "ab", opener=private_opener):
        assert mode(Path(os.devnull)) == before


def test_a_pipe_in_the_place_of_a_log_keeps_nobody_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "service.log"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"\[Errno 6\]"), open(pipe, "ab", opener=private_opener):
        pass
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # with somebody who reads it is as good as a file
    with open(pipe, "wb", opener=private_opener) as file:
        assert os.get_blocking(file.fileno())
        file.write(b"line")
    assert os.read(reader, 9) == b"line"
    os.close(reader)
