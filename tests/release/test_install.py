"""`tools/install.py` hands pip the folders of packages and their siblings, with the extras that were asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from install import paths  # noqa: E402
from workspace import PROJECTS, extras, requirements  # noqa: E402

HEAP = PROJECTS["s3heap-tender"]


def test_a_package_comes_with_its_siblings_and_without_extras() -> None:
    found = paths(["s3heap-tender"], [])
    assert found[-1] == str(HEAP)
    assert str(PROJECTS["fdb-schema"]) in found


def test_an_extra_that_is_asked_for_is_installed() -> None:
    assert paths(["s3heap-tender[s3,parquet]"], ["-e"])[-2:] == ["-e", f"{HEAP}[s3,parquet]"]


def test_everything_is_every_package_with_every_extra() -> None:
    found = paths([], [])
    assert len(found) == len(PROJECTS)
    assert f"{HEAP}[{','.join(extras('s3heap-tender'))}]" in found


def test_a_package_that_isn_t_there_is_named() -> None:
    with pytest.raises(SystemExit, match="no package 'nonsense'"):
        paths(["nonsense[x]"], [])


def test_what_few_need_is_not_installed_for_all() -> None:
    lean = {one.partition(">")[0] for one in requirements(optional=False)}
    assert not lean & {"aioboto3", "aiobotocore", "boto3", "botocore", "obstore", "pyarrow", "cryptography"}
