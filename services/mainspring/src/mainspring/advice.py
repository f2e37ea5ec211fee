"""Commands that are advised, such as can be pasted: with the database and the cluster, where a command wouldn't take them by itself."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final

from fdb_schema.database import URL_VARIABLE
from fdb_schema.keyspace import CLUSTER_VARIABLE, DEFAULT_CLUSTER

_COMMAND: Final = re.compile(r"`mainspring ([^`]+)`")


def placed(advice: str, db: str | None, cluster: str) -> str:
    """The advice with `--db` and `--cluster` in each of its commands, where this one was given them and the environment has not."""
    where = f" --db {shlex.quote(db)}" if db is not None and db != os.environ.get(URL_VARIABLE) else ""
    named = f" --cluster {shlex.quote(cluster)}" if cluster != os.environ.get(CLUSTER_VARIABLE, DEFAULT_CLUSTER) else ""

    def whole(found: re.Match[str]) -> str:
        own = "" if found[1].startswith("ids ") else named  # ids are of a database, not of a cluster
        return f"`mainspring {found[1]}{where}{own}`"

    return _COMMAND.sub(whole, advice)
