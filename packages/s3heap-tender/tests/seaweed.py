"""One real S3-compatible server for the test run of this package."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from s3heap_tender import HeapStore
from s3heap_tender.devserver import BUCKET, DevServer, DevServerError


def start(directory: Path) -> DevServer:
    """A started server; where it can't be had the tests that need it are skipped, which MAINSPRING_REQUIRE_S3 forbids."""
    server = DevServer(directory)
    try:
        return server.start()
    except DevServerError as error:
        if os.environ.get("MAINSPRING_REQUIRE_S3"):
            raise
        pytest.skip(f"no S3-compatible server with conditional writes can be had here: {error}")


def new_store(server: DevServer, **options: Any) -> HeapStore:
    """A store under a prefix of its own."""
    return HeapStore(f"s3://{BUCKET}/{uuid.uuid4().hex}", **server.options, **options)
