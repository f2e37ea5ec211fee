"""What the engine says about itself: client status and `\\xff\\xff/status/json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Database


def client_status(database: Database) -> bytes:
    """`fdb_database_get_client_status` as JSON."""
    report: dict[str, Any] = {
        "Healthy": True,
        "InitializationState": "created",
        "ClusterID": str(database.engine.path or "memory"),
        "CurrentCoordinator": "127.0.0.1:4500",
        "Coordinators": ["127.0.0.1:4500"],
        "ProtocolVersion": "0fdb00b073000000",
        "ConnectionRecord": f"embedded:{database.engine.path or ':memory:'}",
        "DatabaseStatus": {"Healthy": True},
        "Connections": [],
        "StorageServers": [],
        "NumConnectionsFailed": 0,
    }
    return json.dumps(report).encode()
