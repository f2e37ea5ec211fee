"""What the engine says about itself: client status, `\\xff\\xff/status/json`, and the command line's `status`."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ..pure import idempotency, keys
from ..pure.versions import last_version
from .engine import Engine

ADDRESS = "127.0.0.1:4500"
PROTOCOL = "0fdb00b073000000"


def location(engine: Engine) -> bytes:
    """Where the database is: its directory, or `:memory:`."""
    return str(engine.path.resolve() if engine.path is not None else ":memory:").encode(errors="backslashreplace")


def cluster_id(engine: Engine) -> bytes:
    """The identity given to the database when it was created, in hexadecimal."""
    found: bytes = engine.store.read(lambda txn: txn.get(keys.IDENTITY))
    return found.hex().encode()


def connection(engine: Engine) -> bytes:
    """A connection string in FoundationDB's form."""
    return b"embedded:" + cluster_id(engine)[:8] + b"@" + ADDRESS.encode()


def measure(engine: Engine) -> dict[str, Any]:
    """Figures of the store: sizes in bytes, counts, the version and the age of the log in seconds."""
    store = engine.store
    info = store.map.env.info()
    with store.reading() as txn:
        stat = txn.stat()
        version = last_version(txn)
        cursor = txn.cursor()
        oldest = version
        if cursor.set_range(keys.LOG) and cursor.key().startswith(keys.LOG):
            oldest = int.from_bytes(cursor.key()[3:], "big")
        ids = sum(len(found) for _, found, _ in idempotency.logged(txn, 0, 1 << 63))
    page = stat["psize"]
    used = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * page
    return {
        "version": version,
        "rows": stat["entries"],
        "bytes_used": used,
        "bytes_file": info["last_pgno"] * page + page,
        "bytes_map": info["map_size"],
        "readers": store.readers.count(),
        "log_seconds": (version - oldest) / 1e6,
        "ids_on_log": ids,
    }


def client_status(engine: Engine) -> bytes:
    """`fdb_database_get_client_status` as JSON."""
    report: dict[str, Any] = {
        "Healthy": True,
        "InitializationState": "created",
        "DatabaseStatus": {
            "Healthy": True,
            "ClusterID": cluster_id(engine).decode(),
            "Coordinators": [ADDRESS],
            "CurrentCoordinator": ADDRESS,
            "CommitProxies": [ADDRESS],
            "GrvProxies": [ADDRESS],
            "StorageServers": [{"Address": ADDRESS, "SSID": cluster_id(engine).decode()}],
            "Connections": [
                {"Address": ADDRESS, "Status": "connected", "Compatible": True, "ProtocolVersion": PROTOCOL}
            ],
            "NumConnectionsFailed": 0,
        },
        "ProtocolVersion": PROTOCOL,
        "ConnectionRecord": location(engine).decode(),
        "AvailableClients": [{"ProtocolVersion": PROTOCOL, "ReleaseVersion": "7.3.0", "ThreadIndex": 0}],
    }
    return json.dumps(report).encode()


def status_json(engine: Engine) -> bytes:
    """The status document, with the fields that tools look at."""
    figures = measure(engine)
    report: dict[str, Any] = {
        "client": {
            "cluster_file": {"path": location(engine).decode(), "up_to_date": True},
            "coordinators": {"coordinators": [{"address": ADDRESS, "reachable": True}], "quorum_reachable": True},
            "database_status": {"available": True, "healthy": True},
            "messages": [],
            "timestamp": int(time.time()),
        },
        "cluster": {
            "cluster_controller_timestamp": int(time.time()),
            "connection_string": connection(engine).decode(),
            "configuration": {"storage_engine": "embedded", "redundancy_mode": "single", "usable_regions": 1},
            "data": {
                "state": {"healthy": True, "name": "healthy"},
                "total_disk_used_bytes": figures["bytes_file"],
                "total_kv_size_bytes": figures["bytes_used"],
            },
            "database_available": True,
            "database_lock_state": {"locked": False},
            "full_replication": True,
            "generation": 1,
            "latest_read_version": figures["version"],
            "processes": {
                cluster_id(engine).decode(): {
                    "address": ADDRESS,
                    "roles": [{"role": "storage"}],
                    "version": "7.3.0",
                    "uptime_seconds": time.monotonic(),
                    "pid": os.getpid(),
                }
            },
            "protocol_version": PROTOCOL,
        },
        "embedded": figures | {"durability": engine.durability},
    }
    return json.dumps(report).encode()
